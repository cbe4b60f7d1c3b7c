//! Tracing is transparent: return values, errno, output, exit codes and signals equal those of a
//! run without the hook. The trace has the program's requests, regardless of how it ended.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::compile::compile;
use miot_tests::process::{Ended, run};
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, command, events};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct SemanticsDirs {
    top: PathBuf,
    program: PathBuf,
}

impl SemanticsDirs {
    fn new(name: &str) -> SemanticsDirs {
        let top = fresh(&format!("hook-{name}"));
        let program = compile(&top, "semantics", &["semantics.c"], &[]);
        SemanticsDirs { top, program }
    }

    fn work(&self) -> PathBuf {
        let work = self.top.join("work");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir(&work).unwrap();
        work
    }

    /// Runs `semantics CASE` without and with the hook, and compares the visible results.
    fn same(&self, case: &str, environment: &[(&str, &str)]) -> (Ended, Vec<PrintedEvent>) {
        let without = run(Command::new(&self.program)
            .arg(case)
            .current_dir(self.work())
            .envs(environment.iter().copied()));
        let trace = self.top.join("trace");
        let words = [self.program.as_os_str(), case.as_ref()];
        let traced = run(command(&self.work(), &trace, &words).envs(environment.iter().copied()));
        assert_eq!(traced.stdout, without.stdout, "{case}: what the program printed");
        assert_eq!(traced.code(), without.code(), "{case}: exit code or 128 + signal\n{}", traced.stderr);
        assert_good(&trace);
        (traced, events(&trace))
    }
}

fn writes(rows: &[PrintedEvent], name: &str) -> usize {
    let named =
        |row: &&PrintedEvent| row.path.as_deref().is_some_and(|path| path.ends_with(&format!("/{name}")));
    rows.iter().filter(named).filter(|row| row.op == "write" && row.result == 1).count()
}

#[test]
fn return_values_and_errno_are_unchanged() {
    let (_, rows) = SemanticsDirs::new("errno").same("errno", &[]);
    assert!(rows.iter().any(|row| row.result == -i64::from(libc::EBADF)));
}

#[test]
fn fork_vfork_exec_spawn_exit_and_kill_are_unchanged() {
    let (_, rows) = SemanticsDirs::new("children").same("children", &[]);
    for name in ["forked", "left", "killed", "vforked", "parent", "spawned", "grandchild", "executed"] {
        assert_eq!(writes(&rows, name), 100, "{name}");
    }
}

#[test]
fn hundreds_of_short_threads_are_recorded() {
    let (_, rows) = SemanticsDirs::new("threads").same("threads", &[]);
    let lost: usize = (0..200).filter(|i| writes(&rows, &format!("t{i}")) != 300).count();
    assert_eq!(lost, 0, "threads whose writes are not all in the trace");
}

#[test]
fn cancellation_of_a_blocked_read_works() {
    let (ended, rows) = SemanticsDirs::new("cancellation").same("cancellation", &[]);
    assert!(ended.stdout.contains("cancelled 1 cleaned 1\nnot cancelled: 1"), "{}", ended.stdout);
    assert_eq!(writes(&rows, "after-cancel"), 100);
}

#[test]
fn exceptions_pass_through_a_hook() {
    let place = SemanticsDirs::new("throws");
    let program = compile(&place.top, "throws", &["throws.cc"], &["-lstdc++"]);
    let without = run(Command::new(&program).current_dir(place.work()));
    assert_eq!(without.stdout, "out of the callback\n".repeat(3));
    let trace = place.top.join("trace");
    let traced = run(&mut command(&place.work(), &trace, &[program.as_os_str()]));
    assert_eq!((traced.stdout.as_str(), traced.code()), (without.stdout.as_str(), 0));
    let rows = events(&trace);
    assert_eq!(writes(&rows, "after"), 10);
    // They never returned, and no thread died in them.
    assert_eq!(rows.iter().filter(|row| row.op == "scandir").count(), 0, "{rows:#?}");
}

#[test]
fn signal_handlers_may_do_io() {
    let (_, rows) = SemanticsDirs::new("signals").same("signals", &[]);
    assert_eq!(writes(&rows, "between"), 100_000);
    assert_eq!(writes(&rows, "in-handler"), 1001);
}

#[test]
fn io_before_main_and_after_exit_works() {
    let (_, rows) = SemanticsDirs::new("atexit").same("atexit", &[("EARLY", "1")]);
    for name in ["before-main", "main", "at-exit", "after-main"] {
        assert_eq!(writes(&rows, name), 100, "{name}");
    }
}

#[test]
fn every_way_to_end_works() {
    for case in ["abort", "segfault", "kill", "quick_exit"] {
        let (_, rows) = SemanticsDirs::new(case).same(case, &[]);
        assert_eq!(writes(&rows, "main"), 100, "{case}");
    }
    let (_, rows) = SemanticsDirs::new("thread_exit").same("thread_exit", &[]);
    assert_eq!(writes(&rows, "other"), 100);
}

#[test]
fn inherited_descriptors_are_known_by_path() {
    let place = SemanticsDirs::new("inherited");
    let script = format!(
        "printf 0123456789 > in; exec 8< in 9>> out; head -c 3 <&8 > /dev/null; {} inherited",
        place.program.display()
    );
    let words = ["sh", "-c", &script];
    let without = run(Command::new(words[0]).args(&words[1..]).current_dir(place.work()));
    let trace = place.top.join("trace");
    let traced = run(&mut command(&place.work(), &trace, &words));
    assert_eq!((&traced.stdout, traced.code()), (&without.stdout, 0));
    // The position where `head` left the descriptor is unspecified, so the program reports it.
    let position =
        traced.stdout.lines().next().and_then(|line| line.split(' ').nth(1)).and_then(|n| n.parse().ok());
    assert!(position.is_some(), "{}", traced.stdout);
    let rows = events(&trace);
    let of = |op: &str, name: &str| {
        let file = place.work().join(name);
        rows.iter()
            .filter(|row| row.op == op && row.path.as_deref().map(Path::new) == Some(&file))
            .map(|row| (row.offset, row.length, row.result))
            .collect::<Vec<_>>()
    };
    assert!(of("write", "out").contains(&(Some(0), Some(4), 4)), "{rows:#?}");
    let reads = of("read", "in");
    assert_eq!(
        reads.last().map(|(offset, length, _)| (*offset, *length)),
        Some((position, Some(5))),
        "{rows:#?}"
    );
}

/// The first attempt to record fails, because it opens files. A later one succeeds.
#[test]
fn program_without_free_descriptors_is_recorded_later() {
    let (_, rows) = SemanticsDirs::new("full-table").same("full-table", &[]);
    let written = writes(&rows, "full-table");
    assert!((800..1000).contains(&written), "{written} of 1000");
}

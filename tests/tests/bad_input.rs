//! Errors around `miot run` and trace directories: a clear message, a matching exit code, and no
//! harm to the traced program.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::daemons::{free_port, server_command};
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{Background, Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::tmpfs::{as_nobody, with_tmpfs};
use miot_tests::traced::{command, events, traced};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn place(name: &str) -> PathBuf {
    fresh(&format!("bad-{name}"))
}

/// Checks the exit code of `miot run` and that its message contains all of `words`.
#[track_caller]
fn says(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code(), code, "{}", ended.stderr);
    // `miot fsck` prints its findings to standard output.
    let text = format!("{}{}", ended.stderr, ended.stdout).to_lowercase();
    for word in words {
        assert!(text.contains(&word.to_lowercase()), "no `{word}` in: {text}");
    }
    assert!(!text.contains("panicked"), "{}", ended.stderr);
}

fn miot(arguments: &[&str], trace: &Path) -> Ended {
    run(Command::new(&built().miot).args(arguments).arg(trace))
}

#[test]
fn missing_command_is_refused() {
    let place = place("not-found");
    says(&traced(&place, &place.join("trace"), &["no-such-command"]), 127, &["no-such-command", "not found"]);
    says(
        &traced(&place, &place.join("trace"), &["./no-such-file"]),
        127,
        &["./no-such-file", "no such file"],
    );
    assert!(!place.join("trace").exists(), "nothing was traced");
}

#[test]
fn non_executable_command_is_refused() {
    let place = place("not-executable");
    fs::write(place.join("text"), "hello").unwrap();
    says(&traced(&place, &place.join("trace"), &["./text"]), 126, &["./text", "not an executable"]);
    says(&traced(&place, &place.join("trace"), &["/"]), 126, &["not an executable"]);
    assert!(!place.join("trace").exists(), "nothing was traced");
}

#[test]
fn file_the_kernel_cannot_execute_is_refused() {
    let place = place("no-format");
    fs::write(place.join("strange"), [0u8, 1, 2, 3]).unwrap();
    fs::set_permissions(place.join("strange"), fs::Permissions::from_mode(0o755)).unwrap();
    says(&traced(&place, &place.join("trace"), &["./strange"]), 126, &["strange"]);
    assert!(!place.join("trace").exists(), "an empty trace directory was left behind");
    fs::create_dir(place.join("trace")).unwrap();
    says(&traced(&place, &place.join("trace"), &["./strange"]), 126, &["strange"]);
    assert_eq!(fs::read_dir(place.join("trace")).unwrap().count(), 0, "the user's directory is as it was");
}

#[test]
fn static_program_runs_with_a_warning() {
    let place = place("static");
    let program = compile(&place, "many", &["many.c"], &["-static"]);
    let words = [program.to_str().unwrap(), "1", "1", "10"];
    let ended = traced(&place, &place.join("trace"), &words);
    says(&ended, 0, &["statically linked", "LD_PRELOAD", "FUSE"]);
    assert_eq!(fs::metadata(place.join("block-0-0")).unwrap().len(), 160);
    assert_eq!(events(&place.join("trace")).len(), 0);
}

#[test]
fn set_uid_program_runs_with_a_warning() {
    let place = place("set-uid");
    let program = place.join("touch");
    fs::copy("/usr/bin/touch", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(65_534), Some(65_534)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    let ended = traced(&place, &place.join("trace"), &["./touch", "made"]);
    says(&ended, 0, &["set-uid", "LD_PRELOAD"]);
    assert!(place.join("made").exists());
}

#[test]
fn existing_output_directory_is_refused() {
    let place = place("exists");
    let trace = place.join("trace");
    fs::create_dir(&trace).unwrap();
    fs::write(trace.join("thesis.txt"), "years of work").unwrap();
    says(&traced(&place, &trace, &["touch", "ran"]), 125, &["trace", "not empty"]);
    assert_eq!(fs::read_to_string(trace.join("thesis.txt")).unwrap(), "years of work");
    assert_eq!(fs::read_dir(&trace).unwrap().count(), 1);
    assert!(!place.join("ran").exists(), "the command must not run");

    fs::write(place.join("file"), "").unwrap();
    says(&traced(&place, &place.join("file"), &["touch", "ran"]), 125, &["file"]);
    assert!(!place.join("ran").exists());
    // The trace of another run is not continued: it would mix two runs.
    let other = place.join("other");
    let _ = traced(&place, &other, &["true"]).success();
    says(&traced(&place, &other, &["touch", "ran"]), 125, &["other", "not empty"]);
    assert!(!place.join("ran").exists());
    // An empty directory is accepted.
    fs::create_dir(place.join("empty")).unwrap();
    says(&traced(&place, &place.join("empty"), &["touch", "ran"]), 0, &[]);
    assert!(!events(&place.join("empty")).is_empty());
}

#[test]
fn impossible_output_directory_is_refused() {
    let place = place("not-writable");
    says(&traced(&place, Path::new("/proc/trace"), &["touch", "ran"]), 125, &["/proc/trace"]);
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let mut miot = command(Path::new("/"), &place.join("trace"), &["true"]);
    let ended = run(as_nobody(&mut miot));
    says(&ended, 125, &["trace", "permission denied"]);
    assert!(!place.join("ran").exists());
}

#[test]
fn full_disk_during_the_run_does_not_harm_the_program() {
    let place = place("disk-full");
    let disk = place.join("disk");
    fs::create_dir(&disk).unwrap();
    // Far more events than fit on the disk. The program writes to another disk.
    let program = compile(&place, "many", &["many.c"], &[]);
    let words = [program.to_str().unwrap(), "2", "2", "200000"];
    let trace = disk.join("trace");
    let (miot, shown, words) = (built().miot.display(), trace.display(), words.join(" "));
    let shell = format!(
        "{miot} run -o {shown} -- {words}; echo code $?; {miot} cat {shown} > events; echo cat $?; {miot} fsck {shown}; echo fsck $?"
    );
    let ended = run(with_tmpfs(&disk, "3m", &["sh", "-c", &shell]).current_dir(&place));
    assert!(ended.stdout.contains("code 125"), "{}\n{}", ended.stdout, ended.stderr);
    let text = ended.stderr.to_lowercase();
    assert!(text.contains("no space left") || text.contains("full"), "{text}");
    assert!(text.contains("not complete"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for process in 0..2 {
        for thread in 0..2 {
            let file = place.join(format!("block-{process}-{thread}"));
            assert_eq!(fs::metadata(file).unwrap().len(), 200_000 * 16, "the program is not harmed");
        }
    }
    // The stored part is a valid trace.
    assert!(ended.stdout.contains("cat 0") && ended.stdout.contains("fsck 0"), "{}\n{text}", ended.stdout);
}

#[test]
fn missing_shared_memory_is_reported() {
    let place = place("no-shm");
    let mut miot = Command::new(&built().miot);
    miot.args(["run", "--shm-dir", "/no/such/place", "-o"]).arg(place.join("trace"));
    let ended = run(miot.args(["--", "touch", "ran"]).current_dir(&place));
    says(&ended, 125, &["/no/such/place", "--shm-dir"]);
    assert!(!place.join("ran").exists());
}

#[test]
fn full_shared_memory_at_start_is_reported() {
    let place = place("full-shm");
    let small = place.join("small");
    fs::create_dir(&small).unwrap();
    let (tool, trace) = (built().miot.to_str().unwrap(), place.join("trace"));
    let words = [
        tool,
        "run",
        "--shm-dir",
        small.to_str().unwrap(),
        "-o",
        trace.to_str().unwrap(),
        "--",
        "touch",
        "ran",
    ];
    let ended = run(with_tmpfs(&small, "64k", &words).current_dir(&place));
    says(&ended, 125, &["small", "--shm-dir"]);
    assert!(!place.join("ran").exists());
}

#[test]
fn full_shared_memory_during_the_run_is_reported() {
    let place = place("shm-fills");
    let small = place.join("small");
    fs::create_dir(&small).unwrap();
    let program = compile(&place, "many", &["many.c"], &[]);
    let (tool, trace) = (built().miot.to_str().unwrap(), place.join("trace"));
    let words = [
        tool,
        "run",
        "--shm-dir",
        small.to_str().unwrap(),
        "-o",
        trace.to_str().unwrap(),
        "--",
        program.to_str().unwrap(),
        "16",
        "16",
        "500",
    ];
    let ended = run(with_tmpfs(&small, "2m", &words).current_dir(&place));
    for process in 0..16 {
        for thread in 0..16 {
            let file = place.join(format!("block-{process}-{thread}"));
            assert_eq!(fs::metadata(file).unwrap().len(), 8000, "the program is not harmed");
        }
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(
        ended.stderr.to_lowercase().contains("lost"),
        "the summary says that events were lost: {}",
        ended.stderr
    );
    let seen = events(&trace).iter().filter(|row| row.op == "pwrite").count();
    assert!((1..16 * 16 * 500).contains(&seen), "{seen}");
}

#[test]
fn leftovers_of_a_killed_run_are_removed_by_the_next() {
    let place = place("killed-run");
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let temporary = place.join("temporary");
    fs::create_dir(&temporary).unwrap();
    let miot = |trace: &str, words: &[&str]| {
        let mut miot = Command::new(&built().miot);
        miot.arg("run")
            .arg("--shm-dir")
            .arg(shared.path())
            .arg("-o")
            .arg(place.join(trace))
            .arg("--")
            .args(words);
        miot.env("TMPDIR", &temporary).current_dir(&place);
        miot
    };
    let left = || {
        let names = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names(shared.path()).chain(names(&temporary)).collect::<BTreeSet<_>>()
    };
    let living = Background::start(&mut miot("living", &["sh", "-c", "touch begun; exec sleep 300"]));
    until("the command runs", || place.join("begun").exists());
    let of_living = left();
    assert_eq!(of_living.len(), 2, "{of_living:?}");
    let killed = run(&mut miot("killed", &["sh", "-c", "kill -PIPE $PPID"]));
    assert_eq!(killed.code(), 128 + 13, "{}", killed.stderr);
    assert_eq!(left().len(), 4, "{:?}", left());
    let _ = run(&mut miot("next", &["touch", "ran"])).success();
    assert_eq!(left(), of_living);
    assert!(!events(&place.join("next")).is_empty());
    let (status, text) = living.stop(Signal::TERM);
    assert_eq!(status.code(), Some(128 + 15), "{text}");
    assert!(!events(&place.join("living")).is_empty() && left().is_empty(), "{:?}", left());
}

/// Creates a small valid trace to be damaged.
fn sound(place: &Path) -> PathBuf {
    let trace = place.join("trace");
    let _ = traced(place, &trace, &["sh", "-c", "echo hello > file; cat file"]).success();
    trace
}

#[test]
fn directory_that_is_not_a_trace_is_refused() {
    let place = place("none");
    fs::create_dir(place.join("empty")).unwrap();
    fs::write(place.join("file"), "x").unwrap();
    for command in ["cat", "stat", "fsck", "tail"] {
        for what in ["empty", "file", "missing"] {
            says(&miot(&[command], &place.join(what)), 1, &[what]);
        }
    }
}

/// Checks the messages of a log-server that must not become ready.
fn never_ready(command: &mut Command, words: &[&str]) {
    let ended = run(command);
    says(&ended, 2, words);
    assert!(!ended.stderr.contains("is ready"), "{}", ended.stderr);
}

#[test]
fn trace_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: becoming another user can be shown only by root");
    }
    // A directory that other users may enter.
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let trace = sound(open.path());
    let empty = open.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let log_server = |dir: &Path| {
        let mut command = server_command(&format!("127.0.0.1:{}", free_port()), dir);
        command.args(["--user", "nobody"]);
        command
    };
    for dir in [&trace, &empty] {
        let name = format!("cannot write to {}:", dir.display());
        never_ready(&mut log_server(dir), &[&name, "permission denied", "get write permission for it"]);
    }
    // Its folders count as well, because parts are sealed into them.
    std::os::unix::fs::chown(&trace, Some(65534), None).unwrap();
    never_ready(&mut log_server(&trace), &["permission denied", "get write permission for it"]);
}

#[test]
fn trace_directory_on_a_read_only_file_system_is_refused() {
    let Some(room) = Namespaces::new(&["--mount"]) else { return };
    let place = place("read-only");
    let mounted = place.join("mounted");
    fs::create_dir(&mounted).unwrap();
    room.mount(&mounted, "16m");
    let trace = sound(&place);
    room.shell(&format!(
        "cp -r '{0}' '{1}' && mkdir '{1}/empty' && mount -o remount,ro '{1}'",
        trace.display(),
        mounted.display()
    ));
    for name in ["trace", "empty", "new"] {
        let command = server_command(&format!("127.0.0.1:{}", free_port()), &mounted.join(name));
        never_ready(
            &mut room.inside(&command),
            &["cannot write to", "read-only file system", "mount its file system for writing"],
        );
    }
}

#[test]
fn trace_directory_of_a_newer_schema_is_refused() {
    let place = place("newer");
    let trace = sound(&place);
    let manifest = fs::read_to_string(trace.join("miot-trace.json")).unwrap();
    let version = format!("\"schema\":{}", miot_trace_store::schema::VERSION);
    let squeezed = manifest.replace("\": ", "\":");
    assert!(squeezed.contains(&version), "{manifest}");
    fs::write(trace.join("miot-trace.json"), squeezed.replace(&version, "\"schema\":999")).unwrap();
    for command in ["cat", "stat", "tail"] {
        says(&miot(&[command], &trace), 1, &["999", "newer"]);
    }
    fs::write(trace.join("miot-trace.json"), "{").unwrap();
    says(&miot(&["cat"], &trace), 1, &["miot-trace.json"]);
}

#[test]
fn truncated_trace_is_reported() {
    let place = place("truncated");
    let trace = sound(&place);
    let part = trace.join("events/part-000000.parquet");
    let whole = fs::read(&part).unwrap();
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        fs::write(&part, &whole[..length]).unwrap();
        for command in ["cat", "stat", "fsck"] {
            says(&miot(&[command], &trace), 1, if command == "fsck" { &[] } else { &["part-000000"] });
        }
    }
    let mut flipped = whole.clone();
    let middle = flipped.len() / 3;
    flipped[middle] ^= 0xff;
    fs::write(&part, &flipped).unwrap();
    let ended = miot(&["cat"], &trace);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    // A missing side table is detected as well.
    fs::write(&part, &whole).unwrap();
    fs::remove_file(trace.join("files/part-000000.parquet")).unwrap();
    let ended = miot(&["fsck"], &trace);
    assert_eq!(ended.code(), 1, "{}{}", ended.stdout, ended.stderr);
}

/// Readers of a whole trace report which part is missing, in addition to their output. A complete
/// trace gives no message.
#[test]
fn missing_part_of_a_trace_is_reported() {
    let place = place("part");
    let trace = sound(&place);
    let commands: [&[&str]; 4] =
        [&["cat"], &["export", "--format", "csv", "-o", "-"], &["devices"], &["stat"]];
    for words in commands {
        assert!(!miot(words, &trace).success().stderr.contains("missing"), "{words:?}");
    }
    fs::remove_file(trace.join("events/part-000000.parquet")).unwrap();
    for words in commands {
        let ended = miot(words, &trace);
        says(&ended, 4, &["part 0 of the trace is missing", "miot fsck"]);
        assert_eq!(ended.stderr.matches("missing").count(), 1, "{words:?}: {}", ended.stderr);
    }
}

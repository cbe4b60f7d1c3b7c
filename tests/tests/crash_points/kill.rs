//! SIGKILL at the N-th invocation of a system call, for every existing N.

use super::{go_on, judge, number, peer, place, server};
use crate::peer::Plan;
use miot_tests::built::built;
use miot_tests::daemons::free_port;
use miot_tests::process::{Background, until};
use miot_tests::random::Random;
use rustix::process::Signal;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Calls that change files or send data, and those that open files.
const CALLS: [&str; 19] = [
    "write",
    "pwrite64",
    "writev",
    "pwritev2",
    "fdatasync",
    "fsync",
    "sync_file_range",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "ftruncate",
    "openat",
    "mkdir",
    "mkdirat",
    "sendto",
    "sendmsg",
    "flock",
];
/// Number of points tried on every change. `MIOT_CRASH_POINTS=all` tries each.
const POINTS: usize = 20;
const BATCHES: usize = 30;

fn strace(options: &[String]) -> Command {
    let mut command = Command::new("strace");
    // The server is the child of the test, and strace attaches from another process.
    command.args(["-D", "-f", "-qq"]).args(options).arg(&built().log_server);
    command
}

/// Runs the whole scenario in one life of the server. Returns the number of invocations of each
/// call by the thread that made it most, because strace counts per thread.
fn calls(place: &Path) -> BTreeMap<&'static str, usize> {
    let (trace, log) = (place.join("trace"), place.join("strace.out"));
    let options =
        ["-o".to_owned(), log.display().to_string(), "-e".into(), format!("trace={}", CALLS.join(","))];
    let plan = Plan::new(BATCHES);
    let port = free_port();
    let mut running = Background::start(&mut server(strace(&options), port, &trace));
    let acked = peer::run(&plan, 0, port, || running.running());
    assert_eq!(acked, BATCHES, "{}", running.printed());
    running.end();
    judge(&trace, &plan, acked, "undisturbed");
    let report = miot_trace_store::fsck::check(&trace);
    assert!(
        report.removed.parts >= 1 && report.sealed_parts >= 2,
        "the scenario covers everything: {report}"
    );
    until("strace has written everything", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("exit_group") || text.ends_with('\n'))
    });
    let mut by_thread: HashMap<(&str, &str), usize> = HashMap::new();
    let text = fs::read_to_string(&log).unwrap();
    for line in text.lines() {
        let Some((tid, rest)) = line.split_once(' ') else { continue };
        if let Some(name) = rest.trim_start().split('(').next() {
            *by_thread.entry((tid, name)).or_default() += 1;
        }
    }
    let most = |call: &str| by_thread.iter().filter(|((_, name), _)| *name == call).map(|(_, n)| *n).max();
    CALLS.into_iter().filter_map(|call| Some((call, most(call)?))).collect()
}

/// Kills the server at one point, if it is reached, and lets a new server continue. Returns whether
/// it was reached.
fn killed(place: &Path, call: &str, at: usize) -> bool {
    let what = format!("killed at {call} number {at}");
    let trace = place.join("trace");
    let _ = fs::remove_dir_all(&trace);
    let options = [
        "-o".to_owned(),
        "/dev/null".into(),
        "-e".into(),
        format!("trace={call}"),
        "-e".into(),
        format!("inject={call}:signal=KILL:when={at}"),
    ];
    let plan = Plan::new(BATCHES);
    let port = free_port();
    let mut running = Background::start(&mut server(strace(&options), port, &trace));
    let acked = peer::run(&plan, 0, port, || running.running());
    // If it still runs, it may be killed during its orderly end.
    let (status, _) = running.stop(Signal::TERM);
    judge(&trace, &plan, acked, &what);
    go_on(&trace, &plan, acked, &what);
    !status.success()
}

#[test]
fn server_killed_at_any_call_loses_nothing() {
    let mut random = Random::new("crash points");
    let place = place("kill");
    let counts = calls(&place);
    eprintln!("calls by one thread: {counts:?}");
    assert!(["pwrite64", "fdatasync", "fsync", "unlink"].iter().all(|call| counts.contains_key(call)));
    let mut points: Vec<(&str, usize)> =
        counts.iter().flat_map(|(call, most)| (1..=*most).map(move |at| (*call, at))).collect();
    let all = points.len();
    let wanted = number("MIOT_CRASH_POINTS", POINTS);
    // Each call has its share, including rare ones.
    let mut chosen = Vec::new();
    while chosen.len() < wanted && !points.is_empty() {
        let call = points[random.place(points.len())].0;
        let of_call: Vec<usize> = (0..points.len()).filter(|i| points[*i].0 == call).collect();
        chosen.push(points.swap_remove(of_call[random.place(of_call.len())]));
    }
    let killed = chosen.iter().filter(|(call, at)| killed(&place, call, *at)).count();
    eprintln!("killed {killed} times, at {} of {all} points", chosen.len());
    assert!(killed * 2 > chosen.len(), "killed only {killed} times at {} points", chosen.len());
}

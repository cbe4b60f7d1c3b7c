//! The numbers of `miot ctl --server status`, and of a node that is cut off, beside what is known
//! otherwise.

use crate::site::Site;
use miot_tests::process::until;
use miot_tests::steered::Steered;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs;

/// How well two clocks are read at one moment, nanoseconds.
const SLACK: i64 = 20_000;
const SECOND: i64 = 1_000_000_000;

/// Nodes whose clocks are wrong, by so many seconds.
pub(crate) const WRONG_CLOCKS: [(&str, i64); 2] = [("n1", 5), ("n2", -3)];

/// What is added to a node's times is what its clock is off, to within the error that is stated.
pub(crate) fn clocks(site: &Site) {
    let off: HashMap<&str, i64> = WRONG_CLOCKS.into();
    let status = site.status();
    for node in status["nodes"].as_array().unwrap() {
        let [offset, uncertainty, estimated] = ["offset_ns", "uncertainty_ns", "estimated_error_ns"]
            .map(|key| node["clock"][key].as_i64().unwrap_or_else(|| panic!("{key}: {node}")));
        let name = node["node"].as_str().unwrap();
        let truth = -off.get(name).copied().unwrap_or(0) * SECOND;
        assert!((offset - truth).abs() <= uncertainty + SLACK, "{truth} ns of {node}");
        assert!((0..=uncertainty).contains(&estimated) && uncertainty < SECOND / 10, "{node}");
        println!("{name}: {} ns off, {estimated} estimated, {uncertainty} at most", offset - truth);
    }
}

/// A node that is cut off: its spool holds what a program does meanwhile, and is as large as its
/// files.
pub(crate) fn spool(site: &Site, node: &str, program: &mut Steered, writes: u64) {
    let told = |metric: &str| -> u64 {
        let (code, text) = site.get_from(node, "/metrics");
        assert_eq!(code, 200, "{text}");
        let value = text.lines().find_map(|line| line.strip_prefix(metric)).map(str::trim);
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metric}: {text}"))
    };
    let before = (told("miot_client_events_read_total "), told("miot_client_spool_bytes "));
    let _ = program.tell(&format!("pwrite {writes}"));
    until("what was written is read", || told("miot_client_events_read_total ") >= before.0 + writes);
    until("the spool has grown, and is as large as its files", || {
        let files = fs::read_dir(site.dir(node).join("spool")).unwrap();
        let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        let bytes = told("miot_client_spool_bytes ");
        // An event takes two bytes at the very least.
        bytes == on_disk && bytes >= before.1 + 2 * writes
    });
}

/// A log-client that is stopped is behind by the time that it has been.
pub(crate) fn lag(site: &Site, node: &str) {
    let of_it = || {
        let status = site.status();
        let nodes = status["nodes"].as_array().unwrap().clone();
        nodes.into_iter().find(|known| known["node"] == node).unwrap()
    };
    let promised = of_it()["watermark"].as_i64().unwrap();
    site.signal(node, Signal::STOP);
    let stopped = now();
    until("it is seen to be behind", || {
        let asked = now();
        let lag = of_it()["lag_ns"].as_i64().unwrap();
        let answered = now();
        // All that it promised it had promised when it was stopped, and no less than before.
        let possible = asked - stopped - SECOND / 10..=answered - promised + SECOND / 10;
        assert!(possible.contains(&lag), "{lag} ns behind, not {possible:?}");
        lag >= 2 * SECOND
    });
    site.signal(node, Signal::CONT);
    until("it has caught up", || of_it()["lag_ns"].as_i64().unwrap() < 2 * SECOND);
}

/// By this machine's clock, nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * SECOND + time.tv_nsec
}

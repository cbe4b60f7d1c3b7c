//! Numbers of `miot ctl --server status` and of a node that is cut off, compared with independent
//! sources.

use crate::site::Site;
use miot_tests::process::until;
use miot_tests::steered::Steered;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs;

/// Accuracy in nanoseconds with which two clocks are read at one moment.
const SLACK: i64 = 20_000;
const SECOND: i64 = 1_000_000_000;

/// Nodes with wrong clocks, and their errors in seconds.
pub(crate) const WRONG_CLOCKS: [(&str, i64); 2] = [("n1", 5), ("n2", -3)];

/// Checks that the correction of a node's times equals the error of its clock, to within the stated
/// error.
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

/// Checks a node that is cut off: its spool holds the program's events, and the reported size
/// equals that of its files.
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
    until("the spool has grown, and its reported size is that of its files", || {
        let files = fs::read_dir(site.dir(node).join("spool")).unwrap();
        let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        let bytes = told("miot_client_spool_bytes ");
        // An event takes at least two bytes.
        bytes == on_disk && bytes >= before.1 + 2 * writes
    });
}

/// Checks that the lag of a stopped log-client is the time since it was stopped.
pub(crate) fn lag(site: &Site, node: &str) {
    let of_it = || {
        let status = site.status();
        let nodes = status["nodes"].as_array().unwrap().clone();
        nodes.into_iter().find(|known| known["node"] == node).unwrap()
    };
    let promised = of_it()["watermark"].as_i64().unwrap();
    site.signal(node, Signal::STOP);
    let stopped = now();
    until("its lag is reported", || {
        let asked = now();
        let lag = of_it()["lag_ns"].as_i64().unwrap();
        let answered = now();
        // The watermark is at most the time of the stop, and at least the watermark before.
        let possible = asked - stopped - SECOND / 10..=answered - promised + SECOND / 10;
        assert!(possible.contains(&lag), "{lag} ns behind, not {possible:?}");
        lag >= 2 * SECOND
    });
    site.signal(node, Signal::CONT);
    until("it has caught up", || of_it()["lag_ns"].as_i64().unwrap() < 2 * SECOND);
}

/// Time of this machine's clock, nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * SECOND + time.tv_nsec
}

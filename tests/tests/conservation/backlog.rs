//! A restarted log-client finds more data in the lanes than its spool holds. Everything is
//! delivered, each stream in order, and events that could not be merged in order are marked late.
//! If the spool is large enough, no event is late.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::judge::{Rules, Verdict};
use miot_tests::process::until;
use miot_tests::producers::ProducerLoad;
use miot_tests::random::Random;
use miot_tests::victim::NOISE;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Minimum bytes of waiting lanes. Their contents exceed the small spool below.
const BACKLOG: u64 = 40 << 20;
/// Limit of the lanes of each of two processes. Together they hold less than the large spool.
const PROCESS: &str = "26 MiB";
/// Nearly fills a lane, so that the bytes of lanes measure their contents.
const REQUESTS: u64 = 10_000;

/// Bytes of memory of all segments in a MIOT directory.
fn in_lanes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let segments = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".seg"));
    segments.filter_map(|entry| entry.metadata().ok()).map(|segment| segment.blocks() * 512).sum()
}

fn backlog(name: &str, spool: &str) -> Verdict {
    let mut random = Random::new(name);
    let address = format!("127.0.0.1:{}", free_port());
    let mut deployment = Deployment::new(name, |trace| {
        let mut server = server_command(&address, trace);
        server.env("MIOT_SERVER_LOG", "warn");
        server
    });
    let node = deployment.add("node", |dir| {
        let mut client = client_command(&address, "node", dir);
        client
            .env("MIOT_CLIENT_LOG", "error")
            .env("MIOT_CLIENT_STOP", "120s")
            .env("MIOT_CLIENT_SPOOL_BYTES", spool);
        // Lanes have their full size from the start, so that no half-empty lane is replaced by a
        // larger one.
        client.env("MIOT_CLIENT_LANE_SLOTS", "32768").env("MIOT_CLIENT_LANE_SLOTS_MAX", "32768");
        client.env("MIOT_CLIENT_PROCESS_BYTES", PROCESS);
        client
    });
    deployment.nodes[node].client.signal(Signal::STOP);
    // At the same times in two processes, one of which is read before the other.
    let busy = ProducerLoad { threads: 4, requests: REQUESTS, stride: 16, pause: 0, paths: NOISE };
    deployment.populate(node, 2, (600_000, 600_001), &mut random, |_| busy);
    until("the lanes hold enough", || in_lanes(&deployment.nodes[node].dir) > BACKLOG);
    deployment.nodes[node].producers.clear(&mut deployment.asked);
    deployment.nodes[node].client.signal(Signal::CONT);
    deployment.end(Rules { lost_at: &["lane_full", "no_lane"], served: false })
}

#[test]
fn backlog_larger_than_the_spool_is_complete_and_late() {
    let verdict = backlog("backlog-large", "16 MiB");
    assert!(verdict.late > 0, "{verdict}");
}

#[test]
fn backlog_that_fits_the_spool_is_not_late() {
    let verdict = backlog("backlog-small", "64 MiB");
    assert_eq!(verdict.late, 0, "{verdict}");
}

//! A stopped node delays the others no longer than permitted. Its events of that time are stored
//! later, in order, and marked late. Subscribers receive one contiguous piece of the trace.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::judge::{Rules, placed};
use miot_tests::process::WATCHDOG;
use miot_tests::producers::ProducerLoad;
use miot_tests::random::Random;
use miot_tests::watch::Watch;
use rustix::process::Signal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const NODES: [&str; 3] = ["a", "b", "c"];
const STOPS: u64 = 3;

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

#[test]
fn stopped_node_does_not_delay_others_and_is_late() {
    let mut random = Random::new("silence");
    let address = format!("127.0.0.1:{}", free_port());
    let mut deployment = Deployment::new("silence", |trace| {
        let mut server = server_command(&address, trace);
        server.env("MIOT_SERVER_LOG", "warn").env("MIOT_SERVER_SILENT_AFTER", "500ms");
        server
    });
    for node in NODES {
        deployment.add(node, |dir| {
            let mut client = client_command(&address, node, dir);
            client.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_STOP", "120s");
            client
        });
    }
    let mut watches = [Watch::start(&address, None), Watch::start(&address, Some("b"))];
    // Slow enough for subscribers to read all of it.
    let steady = ProducerLoad { threads: 2, requests: 500, stride: 1, pause: 200_000, paths: 0 };
    let mut step = |deployment: &mut Deployment, watches: &mut [Watch; 2]| {
        for node in 0..NODES.len() {
            deployment.populate(node, 2, (500, 5000), &mut random, |_| steady);
        }
        deployment.kill_due();
        watches.iter_mut().for_each(Watch::tend);
        std::thread::sleep(Duration::from_millis(50));
    };
    let start = Instant::now();
    while !watches.iter().all(Watch::sees) {
        step(&mut deployment, &mut watches);
        assert!(start.elapsed() < WATCHDOG, "subscribers see nothing");
    }
    for stop in 0..STOPS {
        let still = stop as usize % NODES.len();
        deployment.nodes[still].client.signal(Signal::STOP);
        // Events of the others from well after the stop are stored while the node is stopped.
        let after = now() + 1_000_000_000;
        let start = Instant::now();
        loop {
            step(&mut deployment, &mut watches);
            let stored = placed(&deployment.trace);
            let is_there = |node: &str| stored.iter().any(|event| event.node == node && event.key.0 > after);
            if NODES.iter().filter(|node| **node != NODES[still]).all(|node| is_there(node)) {
                break;
            }
            assert!(start.elapsed() < WATCHDOG, "{} delays the others", NODES[still]);
        }
        deployment.nodes[still].client.signal(Signal::CONT);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        step(&mut deployment, &mut watches);
    }
    let verdict = deployment.end_and(Rules::LANES, |trace| {
        let stored = placed(trace);
        let seen = watches.map(|watch| watch.end(&stored, true));
        eprintln!("silence: subscribers saw {seen:?} of {} events", stored.len());
        assert!(seen.iter().all(|seen| *seen > 0));
    });
    for (node, (events, late)) in &verdict.nodes {
        eprintln!("silence: {node}: {events} events, {late} late");
        assert!(*late > 0, "the events of {node} while it was stopped are late");
    }
}

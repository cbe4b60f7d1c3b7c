//! Faulty links between log-clients and log-server ([`miot_tests::faulty_link`]).
//! `MIOT_ROAD_SECONDS`: default 15.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::faulty_link::FaultyLink;
use miot_tests::judge::Rules;
use miot_tests::process::until;
use miot_tests::producers::ProducerLoad;
use miot_tests::random::{Random, number};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[test]
fn faulty_links_lose_no_event() {
    let mut random = Random::new("road");
    let seconds = Duration::from_secs(number("MIOT_ROAD_SECONDS", 15));
    let port = free_port();
    let mut deployment = Deployment::new("road", |trace| {
        let mut server = server_command(&format!("127.0.0.1:{port}"), trace);
        server.env("MIOT_SERVER_LOG", "warn").env("MIOT_SERVER_SEAL_ROWS", "50000");
        server.env("MIOT_SERVER_SILENT_AFTER", "1s");
        server
    });
    let links: Vec<FaultyLink> =
        (0..2).map(|_| FaultyLink::start(port, 60, random.number()).unwrap()).collect();
    for (link, node) in links.iter().zip(["a", "b"]) {
        deployment.add(node, |dir| {
            let mut client = client_command(&format!("127.0.0.1:{}", link.port), node, dir);
            client.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_STOP", "120s");
            client
        });
    }
    let count = |of: fn(&FaultyLink) -> u64| links.iter().map(of).sum::<u64>();
    let start = Instant::now();
    while start.elapsed() < seconds
        || count(|link| link.done.flips.load(Relaxed)) < 5
        || count(|link| link.done.repeats.load(Relaxed)) < 5
        || count(|link| link.done.cuts.load(Relaxed)) < 5
    {
        for node in 0..links.len() {
            deployment.populate(node, 2, (100, 3000), &mut random, |random| ProducerLoad {
                pause: 20_000,
                ..ProducerLoad::any(random)
            });
        }
        deployment.kill_due();
        std::thread::sleep(Duration::from_millis(5));
    }
    links.iter().for_each(FaultyLink::stop_faults);
    until("every flipped bit is detected", || {
        links.iter().all(|link| link.done.noticed.load(Relaxed) == link.done.flips.load(Relaxed))
    });
    for link in &links {
        eprintln!("road: {:?}", link.done);
    }
    deployment.end(Rules::LANES);
}

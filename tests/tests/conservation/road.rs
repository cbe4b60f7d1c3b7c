//! Rough roads between log-clients and log-server ([`miot_tests::rough`]). `MIOT_ROAD_SECONDS`: default 15.

use miot_tests::crowd::Habit;
use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::field::Field;
use miot_tests::judge::Rules;
use miot_tests::process::until;
use miot_tests::random::{Random, number};
use miot_tests::rough::Road;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[test]
fn delays_cuts_repeats_and_flipped_bits() {
    let mut random = Random::new("road");
    let seconds = Duration::from_secs(number("MIOT_ROAD_SECONDS", 15));
    let port = free_port();
    let mut field = Field::new("road", |trace| {
        let mut server = server_command(&format!("127.0.0.1:{port}"), trace);
        server.env("MIOT_SERVER_LOG", "warn").env("MIOT_SERVER_SEAL_ROWS", "50000");
        server.env("MIOT_SERVER_SILENT_AFTER", "1s");
        server
    });
    let roads: Vec<Road> = (0..2).map(|_| Road::start(port, 60, random.number()).unwrap()).collect();
    for (road, node) in roads.iter().zip(["a", "b"]) {
        field.add(node, |dir| {
            let mut client = client_command(&format!("127.0.0.1:{}", road.port), node, dir);
            client.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_STOP", "120s");
            client
        });
    }
    let count = |of: fn(&Road) -> u64| roads.iter().map(of).sum::<u64>();
    let start = Instant::now();
    while start.elapsed() < seconds
        || count(|road| road.done.flips.load(Relaxed)) < 5
        || count(|road| road.done.repeats.load(Relaxed)) < 5
        || count(|road| road.done.cuts.load(Relaxed)) < 5
    {
        for node in 0..roads.len() {
            field.populate(node, 2, (100, 3000), &mut random, |random| Habit {
                pause: 20_000,
                ..Habit::any(random)
            });
        }
        field.cull();
        std::thread::sleep(Duration::from_millis(5));
    }
    roads.iter().for_each(Road::smooth);
    until("every flipped bit is noticed", || {
        roads.iter().all(|road| road.done.noticed.load(Relaxed) == road.done.flips.load(Relaxed))
    });
    for road in &roads {
        eprintln!("road: {:?}", road.done);
    }
    field.end(Rules::LANES);
}

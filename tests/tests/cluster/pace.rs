//! Rates, lag, spool and losses of `miot ctl --server status` compared with the requests of
//! programs at a known pace.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the tests")]

use crate::site::{NODES, Site};
use crate::truth::now;
use miot_tests::process::until;
use miot_tests::steered::Steered;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Requests of one round, by node: four paces that cannot be confused.
const ROUND: [u64; 4] = [10, 30, 90, 270];
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(50);

/// Start and end of a round.
type Round = (i64, i64);

/// Number of rounds that had begun before a time.
fn begun(rounds: &[Round], time: i64) -> u64 {
    rounds.iter().filter(|round| round.0 < time).count() as u64
}

/// Number of rounds that had ended by a time.
fn over(rounds: &[Round], time: i64) -> u64 {
    rounds.iter().filter(|round| round.1 <= time).count() as u64
}

/// Start and end of a time span, and the number of events in it.
type Counted = (i64, i64, f64);

/// Events of each node and, last, of the log-server in a status: the total, and those of the time
/// span of its rates.
fn told(status: &Value) -> Vec<(u64, Option<Counted>)> {
    let of = |part: &Value| {
        let window = &part["rates_of"];
        let rate = part["events_per_second"].as_f64().unwrap();
        let window = window["from"].as_i64().zip(window["to"].as_i64());
        let counted = window.map(|(from, to)| (from, to, rate * (to - from) as f64 / 1e9));
        (part["events"].as_u64().unwrap(), counted)
    };
    status["nodes"].as_array().unwrap().iter().chain([&status["server"]]).map(of).collect()
}

#[test]
fn status_matches_programs_at_a_known_pace() {
    let Some(site) = Site::start("pace") else { return };
    let mut programs = NODES.map(|node| site.program(node, "pace"));
    let ids = programs.each_ref().map(Steered::id);
    let rows = || site.so_far();
    until("their first requests are in the trace", || {
        let rows = rows();
        ids.iter().all(|id| rows.iter().any(|row| row.pid == *id && row.op == "fclose"))
    });
    let mut first = Vec::new();
    until("all their requests are counted", || {
        first = told(&site.status()).iter().map(|(events, _)| *events).collect();
        first[4] == rows().len() as u64 && first[..4].iter().sum::<u64>() == first[4]
    });
    let (rounds, stop) = (Mutex::new(Vec::<Round>::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let pace = scope.spawn(|| {
            while !stop.load(Relaxed) {
                let begin = now();
                programs.iter_mut().zip(ROUND).for_each(|(program, n)| program.send(&format!("pwrite {n}")));
                for program in &mut programs {
                    let _ = program.answer();
                }
                rounds.lock().unwrap().push((begin, now()));
                std::thread::sleep(PAUSE);
            }
        });
        let followed = catch_unwind(AssertUnwindSafe(|| follow(&site, &first, &rounds)));
        stop.store(true, Relaxed);
        pace.join().unwrap();
        followed.unwrap_or_else(|panic| resume_unwind(panic));
    });
    let done = rounds.into_inner().unwrap().len() as u64;
    let all: Vec<u64> = ROUND.iter().map(|n| n * done).collect();
    let expected: Vec<u64> =
        (0..4).map(|at| first[at] + all[at]).chain([first[4] + all.iter().sum::<u64>()]).collect();
    until("each event is counted once, and the rates are those of a cluster at rest", || {
        let status = site.status();
        let told = told(&status);
        let nodes = status["nodes"].as_array().unwrap();
        told.iter().zip(&expected).all(|(told, expected)| told.0 == *expected)
            && told.iter().all(|(_, counted)| counted.is_some_and(|(.., counted)| counted == 0.0))
            && nodes.iter().all(|node| node["report"]["spool"]["messages"] == 0)
    });
    for node in site.status()["nodes"].as_array().unwrap() {
        assert!(node["losses"].as_object().unwrap().values().all(|lost| lost == 0), "{node}");
    }
    lose(&site, &mut programs[1], "n2");
    programs.into_iter().for_each(Steered::end);
    let rows = site.end();
    for (at, id) in ids.iter().enumerate().filter(|(at, _)| *at != 1) {
        assert_eq!(rows.iter().filter(|row| row.pid == *id && row.op == "pwrite").count() as u64, all[at]);
    }
}

/// Queries the status while programs work, until its rates cover a time span that was observed
/// completely, and the bounds from both sides are close.
fn follow(site: &Site, first: &[u64], rounds: &Mutex<Vec<Round>>) {
    let pace: Vec<u64> = ROUND.iter().copied().chain([ROUND.iter().sum()]).collect();
    // Lower bound of each counter from a time on.
    let mut least: Vec<(i64, Vec<u64>)> = Vec::new();
    // Ends of time spans with close bounds.
    let mut near = BTreeSet::new();
    until("rates are of a time with the pace", || {
        let status = site.status();
        let (answered, told) = (now(), told(&status));
        least.push((answered, told.iter().map(|(events, _)| *events).collect()));
        let rounds = rounds.lock().unwrap().clone();
        let mut all_near = true;
        for (at, (events, counted)) in told.iter().enumerate() {
            let name = NODES.get(at).unwrap_or(&"log-server");
            let Some((from, to, counted)) = *counted else {
                all_near = false;
                continue;
            };
            // Upper bound by a time: no more than was requested. Lower bound: no less than was
            // reported before.
            let most = |time| first[at] + pace[at] * (begun(&rounds, time) + 1);
            let known =
                |time| least.iter().rev().find(|poll| poll.0 <= time).map_or(first[at], |poll| poll.1[at]);
            assert!(*events <= most(answered), "{name}: {events} events");
            let possible = known(to).saturating_sub(most(from))..=most(to) - known(from);
            let slack = pace[at] as f64 * 4.0;
            assert!(
                (*possible.start() as f64 - slack..=*possible.end() as f64 + slack).contains(&counted),
                "{name}: {counted} events between {from} and {to}, not {possible:?}"
            );
            let (start, end) = (*possible.start() as f64, *possible.end() as f64);
            all_near &= end > 40.0 * pace[at] as f64 && start >= 0.6 * end;
        }
        lag(&status, first, &rounds);
        if all_near {
            near.insert(told[0].1.map(|(_, to, _)| to));
        }
        near.len() >= 3
    });
}

/// Checks that all requests before the time to which a node lags have arrived.
fn lag(status: &Value, first: &[u64], rounds: &[Round]) {
    let time = status["server"]["time"].as_i64().unwrap();
    for (at, node) in status["nodes"].as_array().unwrap().iter().enumerate() {
        let (lag, wrong) =
            (node["lag_ns"].as_i64().unwrap(), node["clock"]["uncertainty_ns"].as_i64().unwrap());
        let due = first[at] + ROUND[at] * over(rounds, time - lag - wrong);
        let events = node["events"].as_u64().unwrap();
        assert!(events >= due, "{lag} ns behind, {events} of {due} events of {node}");
    }
}

/// Stops a log-client while a program makes more requests than its lane holds. The losses must
/// equal the missing events.
fn lose(site: &Site, program: &mut Steered, node: &str) {
    const BURST: u64 = 300_000;
    let of = || {
        let status = site.status();
        status["nodes"].as_array().unwrap().iter().find(|known| known["node"] == node).cloned().unwrap()
    };
    let before = of()["events"].as_u64().unwrap();
    site.signal(node, Signal::STOP);
    let _ = program.tell(&format!("pwrite {BURST}"));
    site.signal(node, Signal::CONT);
    // A gap is reported with the events after it.
    let mut more = 0;
    until("arrived and lost events add up", || {
        let _ = program.tell("pwrite 1");
        more += 1;
        let node = of();
        let (events, lost) =
            (node["events"].as_u64().unwrap() - before, node["losses"]["lane_full"].as_u64().unwrap_or(0));
        assert!(events + lost <= BURST + more, "{events} and {lost} lost of {BURST}");
        // The last few events are still on their way.
        lost > 0 && events + lost + 100 > BURST
    });
    until("each event is accounted for", || {
        let node = of();
        node["events"].as_u64().unwrap() - before + node["losses"]["lane_full"].as_u64().unwrap_or(0)
            == BURST + more
    });
    let lost = of()["losses"]["lane_full"].clone();
    println!("{lost} of {BURST} lost in the lane");
}

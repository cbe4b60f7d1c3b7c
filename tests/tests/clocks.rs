//! Log-clients with wrong clocks as nodes of one log-server.
//!
//! Dependent events are in causal order to within the uncertainty that the trace states. The
//! uncertainty is small compared with the round trip, and the true time lies within it. The
//! estimated error is right where both directions take equally long. The nodes' own times can be
//! recovered exactly.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType};
use miot_proto::event::flag;
use miot_tests::built::{built, root};
use miot_tests::daemons::{client_command, free_port, preloaded, server, started};
use miot_tests::delaying::{Delaying, Delays};
use miot_tests::process::{Background, run, until};
use miot_tests::random::number;
use miot_tests::test_dir::fresh;
use miot_tests::trace::{PrintedEvent, rows};
use miot_tests::traced::{assert_good, events};
use miot_trace_store::{Corrections, Reader, Table};
use rustix::process::Signal;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TURNS: usize = 2000;

/// Variable that sets the error of a log-client's clock.
const CLOCK_ENV: &str = "MIOT_TEST_CLOCK";

/// A node whose clock has an error of `offset` seconds and `drift` ppm.
struct Node {
    name: &'static str,
    offset: i64,
    drift: i64,
    dir: PathBuf,
    _folder: TempDir,
    /// Log-client, until it is stopped.
    client: Option<Background>,
}

impl Node {
    fn start(name: &'static str, offset: i64, drift: i64, port: u16) -> Node {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = folder.path().join("miot");
        let mut command = client_command(&format!("127.0.0.1:{port}"), name, &dir);
        command.env(CLOCK_ENV, format!("offset={offset}s,drift={drift}ppm"));
        let client = Some(started(&mut command, &dir));
        Node { name, offset, drift, dir, _folder: folder, client }
    }

    fn stop(&mut self) {
        let text = self.client.take().unwrap().end();
        assert!(text.contains("artificial error"), "{text}");
    }

    /// Converts the node's time to this machine's time. The skew is proportional to the time since
    /// boot.
    fn truth(&self, node_time: i64, boot: i64) -> i64 {
        let since_boot = i128::from(node_time - self.offset * 1_000_000_000 - boot);
        boot + (since_boot * 1_000_000 / i128::from(1_000_000 + self.drift)) as i64
    }
}

/// A row of `clocks`.
#[derive(Clone, Debug)]
struct Piece {
    time: i64,
    uncertainty: i64,
    estimated_error: i64,
    round_trip: i64,
    reason: String,
}

fn pieces(trace: &Path) -> HashMap<String, Vec<Piece>> {
    let mut nodes: HashMap<String, Vec<Piece>> = HashMap::new();
    for batch in Reader::open(trace).unwrap().table(Table::Clocks).unwrap() {
        let i64s = |name: &str| batch[name].as_primitive::<Int64Type>().clone();
        let (uncertainties, round_trips) = (i64s("uncertainty"), i64s("round_trip"));
        let estimates = i64s("estimated_error");
        let times = batch["time"].as_primitive::<TimestampNanosecondType>();
        for row in 0..batch.num_rows() {
            let piece = Piece {
                time: times.value(row),
                uncertainty: uncertainties.value(row),
                estimated_error: estimates.value(row),
                round_trip: round_trips.value(row),
                reason: batch["reason"].as_string::<i32>().value(row).to_owned(),
            };
            nodes.entry(batch["node"].as_string::<i32>().value(row).to_owned()).or_default().push(piece);
        }
    }
    nodes
}

/// Returns the row for a node at a time: the last row that starts before it. A killed log-server
/// may have left rows that start after those of its successor.
fn stated(pieces: &[Piece], time: i64) -> &Piece {
    pieces.iter().rev().find(|piece| piece.time <= time).unwrap_or(&pieces[0])
}

/// Boot time of this machine, since 1970.
fn boot() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    let ns = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    };
    let once = || {
        let before = ns(ClockId::Boottime);
        let time = ns(ClockId::Realtime);
        let gap = ns(ClockId::Boottime) - before;
        (gap, time - before - gap / 2)
    };
    (0..64).map(|_| once()).min().unwrap().1
}

/// Two programs, each on its node, take turns: each writes to its file after the other has written
/// to its own.
fn take_turns(place: &Path, round: usize, first: &Node, second: &Node) {
    let pipes = [format!("there{round}"), format!("back{round}")].map(|name| place.join(name));
    for pipe in &pipes {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    let program = root().join("tests/programs/turns.py");
    let start = |node: &Node, from: &Path, to: &Path, which: &str| {
        let mut command = preloaded("python3", &node.dir);
        command.arg(&program).args([from, to]).args([&TURNS.to_string(), which]);
        command
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&mut start(first, &pipes[1], &pipes[0], "first")).success());
        scope.spawn(|| run(&mut start(second, &pipes[0], &pipes[1], "second")).success());
    });
}

/// Result of checking the turns in a trace.
#[derive(Debug, Default)]
struct Found {
    /// Number of pairs of dependent writes.
    pairs: usize,
    /// Number of pairs in the wrong order.
    swapped: usize,
    /// Error of the worst such pair, and the uncertainty stated for it, in nanoseconds.
    worst: (i64, i64),
}

/// Checks the writes of a round, in the order in which they must have completed.
fn check_turns(
    rows: &[PrintedEvent],
    round: usize,
    nodes: [&Node; 2],
    stated_of: &HashMap<String, Vec<Piece>>,
) -> Found {
    let writes = |node: &Node, pipe: &str| {
        let name = format!("/{pipe}{round}.log");
        let is = |row: &&PrintedEvent| {
            row.node == node.name
                && row.op == "pwrite"
                && row.path.as_deref().is_some_and(|p| p.ends_with(&name))
        };
        rows.iter().filter(is).collect::<Vec<_>>()
    };
    let (there, back) = (writes(nodes[1], "there"), writes(nodes[0], "back"));
    assert_eq!((there.len(), back.len()), (TURNS, TURNS), "writes of round {round}");
    let chain: Vec<&PrintedEvent> = there.iter().zip(&back).flat_map(|(a, b)| [*a, *b]).collect();
    let mut found = Found::default();
    for pair in chain.windows(2) {
        let uncertain = |row: &PrintedEvent| stated(&stated_of[&row.node], row.time).uncertainty;
        let (swapped_by, both) = (pair[0].time - pair[1].time, uncertain(pair[0]) + uncertain(pair[1]));
        assert!(swapped_by <= both, "{swapped_by} ns against the order, {both} ns stated: {pair:?}");
        found.pairs += 1;
        found.swapped += usize::from(swapped_by > 0);
        if swapped_by > found.worst.0 {
            found.worst = (swapped_by, both);
        }
    }
    found
}

/// Stops all daemons and checks the trace. Returns its rows and its statements about the clocks.
fn finish(
    server: Background,
    nodes: &mut [Node],
    trace: &Path,
    boot: i64,
) -> (Vec<PrintedEvent>, HashMap<String, Vec<Piece>>) {
    nodes.iter_mut().for_each(Node::stop);
    server.end();
    let stated = pieces(trace);
    (check_trace(trace, nodes, &stated, boot), stated)
}

/// Checks everything in the trace of these nodes except the order of turns. Prints the quality of
/// the estimated errors.
fn check_trace(
    trace: &Path,
    nodes: &[Node],
    stated_of: &HashMap<String, Vec<Piece>>,
    boot: i64,
) -> Vec<PrintedEvent> {
    assert_good(trace);
    let merged = events(trace);
    assert!(merged.is_sorted_by_key(|row| row.time), "ordered by completion time");
    let late = merged.iter().filter(|row| row.flags & u64::from(flag::LATE) != 0).count();
    assert_eq!(late, 0, "events that are late");
    let own = own_times(trace);
    assert_eq!(own.len(), merged.len());
    for node in nodes {
        let claims = &stated_of[node.name];
        let (mut worst, mut sum, mut count) = (0, 0, 0);
        let (mut stated_worst, mut shares) = (0, Vec::new());
        let corrections = Corrections::read(&Reader::open(trace).unwrap()).unwrap();
        for (row, own) in merged.iter().zip(&own).filter(|(row, _)| row.node == node.name) {
            let (error, claim) = ((row.time - node.truth(own.time, boot)).abs(), stated(claims, row.time));
            assert!(error <= claim.uncertainty + SLACK, "{error} ns off: {claim:?} {row:?}");
            (worst, sum, count) = (worst.max(error), sum + error, count + 1);
            stated_worst = stated_worst.max(claim.uncertainty);
            shares.push(claim.uncertainty as f64 / claim.round_trip.max(1) as f64);
            let error = corrections.error(node.name, row.time).unwrap();
            let before_first = (claims[0].time - row.time).max(0) / 1000;
            assert_eq!(
                (error.uncertainty, error.estimated),
                (claim.uncertainty + before_first, Some(claim.estimated_error + before_first))
            );
        }
        shares.sort_by(f64::total_cmp);
        let last = claims.last().unwrap();
        let covered = covered(&merged, &own, node, claims, boot);
        println!(
            "{} ({:+} s, {:+} ppm): {count} events, off by {:.1} us on average, {:.1} us at worst; stated at most {:.1} us, \
             at the end {:.1} us with a round trip of {:.1} us; half of the events below {:.2} round trips; {} rows; \
             estimated at the end {:.1} us, three times that covers {:.1} %",
            node.name,
            node.offset,
            node.drift,
            sum as f64 / f64::from(count.max(1)) / 1e3,
            worst as f64 / 1e3,
            stated_worst as f64 / 1e3,
            last.uncertainty as f64 / 1e3,
            last.round_trip as f64 / 1e3,
            shares[shares.len() / 2],
            claims.len(),
            last.estimated_error as f64 / 1e3,
            covered * 100.0
        );
    }
    merged
}

/// Returns the share of a node's events whose error is covered by three times the estimated error.
fn covered(merged: &[PrintedEvent], own: &[PrintedEvent], node: &Node, claims: &[Piece], boot: i64) -> f64 {
    let errors = merged.iter().zip(own).filter(|(row, _)| row.node == node.name);
    let is_covered = |(row, own): (&PrintedEvent, &PrintedEvent)| {
        let estimated = stated(claims, row.time).estimated_error;
        (row.time - node.truth(own.time, boot)).abs() <= 3 * estimated + SLACK
    };
    let covered: Vec<bool> = errors.map(is_covered).collect();
    covered.iter().filter(|covered| **covered).count() as f64 / covered.len() as f64
}

/// Returns the trace with the nodes' own times.
fn own_times(trace: &Path) -> Vec<PrintedEvent> {
    let mut cat = Command::new(&built().miot);
    let cat = run(cat.args(["cat", "--node-time", "--format", "json"]).arg(trace)).success();
    rows(&cat.stdout).unwrap()
}

/// Accuracy in nanoseconds with which the test and the daemons read two clocks at one moment.
const SLACK: i64 = 20_000;

fn until_clocks_are_known(trace: &Path, nodes: &[Node], times: i64) {
    until("the clocks are known", || {
        let stated = pieces(trace);
        nodes.iter().all(|node| {
            let last = stated.get(node.name).and_then(|pieces| pieces.last());
            last.is_some_and(|last| last.round_trip > 0 && last.uncertainty <= times * last.round_trip)
        })
    });
}

#[test]
fn effects_follow_causes_with_wrong_clocks() {
    let place = fresh("clocks");
    let (trace, port, boot) = (place.join("trace"), free_port(), boot());
    let server = server(port, &trace);
    let mut nodes = [
        Node::start("ahead", 5, 100, port),
        Node::start("behind", -5, -100, port),
        Node::start("right", 0, 0, port),
    ];
    until_clocks_are_known(&trace, &nodes, 8);
    let rounds = [[0, 1], [1, 0], [2, 0], [1, 2]];
    for (round, [first, second]) in rounds.into_iter().enumerate() {
        take_turns(&place, round, &nodes[first], &nodes[second]);
    }
    let (merged, stated) = finish(server, &mut nodes, &trace, boot);
    for (round, pair) in rounds.into_iter().enumerate() {
        let [first, second] = pair.map(|at| &nodes[at]);
        let found = check_turns(&merged, round, [first, second], &stated);
        println!("{} and {}: {found:?}", first.name, second.name);
    }
}

/// The log-server is killed twice and is absent for a while. Programs continue on nodes with wrong
/// clocks.
#[test]
fn killed_log_server_continues_with_the_clocks() {
    let place = fresh("clocks-killed");
    let (trace, port, boot) = (place.join("trace"), free_port(), boot());
    let mut nodes = [Node::start("ahead", 5, 100, port), Node::start("behind", -5, -100, port)];
    let mut rows = Vec::new();
    for round in 0..3 {
        let before = if trace.exists() { pieces(&trace) } else { HashMap::new() };
        let before = |name: &str| before.get(name).map_or(0, Vec::len);
        let server = server(port, &trace);
        until("the nodes are back", || {
            let stated = pieces(&trace);
            nodes.iter().all(|node| stated.get(node.name).is_some_and(|now| now.len() > before(node.name)))
        });
        until_clocks_are_known(&trace, &nodes, 8);
        take_turns(&place, 2 * round, &nodes[0], &nodes[1]);
        // Kill it with data in memory, acknowledged or not.
        let (_, text) = server.stop(Signal::KILL);
        assert!(!text.contains("panicked"), "{text}");
        // These events are spooled and sent to the next server.
        take_turns(&place, 2 * round + 1, &nodes[1], &nodes[0]);
        rows.push(pieces(&trace).values().map(Vec::len).sum::<usize>());
    }
    let server = server(port, &trace);
    let (merged, stated) = finish(server, &mut nodes, &trace, boot);
    for round in 0..3 {
        for (turns, [first, second]) in
            [(2 * round, [&nodes[0], &nodes[1]]), (2 * round + 1, [&nodes[1], &nodes[0]])]
        {
            println!("round {turns}: {:?}", check_turns(&merged, turns, [first, second], &stated));
        }
    }
    // The continuation of a clock is not a step, even if one side was absent meanwhile.
    for (node, pieces) in &stated {
        assert!(pieces.iter().all(|piece| piece.reason != "step"), "{node}: {pieces:?}");
    }
    println!("rows of `clocks` when the servers were killed: {rows:?}");
}

#[test]
fn slow_network_is_stated_and_own_times_are_recovered() {
    let place = fresh("clocks-slow");
    let (trace, port, boot) = (place.join("trace"), free_port(), boot());
    let seed = number("MIOT_SEED", 7);
    println!("MIOT_SEED={seed}");
    let server = server(port, &trace);
    let ms = Duration::from_millis;
    let even = Delays { up: ms(5), down: ms(5), jitter: ms(2) };
    // This cannot be distinguished from a clock with an error of 3 ms. The uncertainty covers it.
    let crooked = Delays { up: ms(8), down: ms(2), jitter: ms(1) };
    let proxies = [even, crooked].map(|delays| Delaying::start(port, delays, seed).unwrap());
    let mut nodes =
        [Node::start("far", -5, 100, proxies[0].port), Node::start("crooked", 5, -100, proxies[1].port)];
    until_clocks_are_known(&trace, &nodes, 2);
    until("the errors are estimated at a quarter of the round trip", || {
        let stated = pieces(&trace);
        let last = |node: &Node| stated[node.name].last().unwrap().clone();
        nodes.iter().map(last).all(|last| 4 * last.estimated_error <= last.round_trip)
    });
    for round in 0..2 {
        take_turns(&place, round, &nodes[0], &nodes[1]);
    }
    let (merged, stated) = finish(server, &mut nodes, &trace, boot);
    for round in 0..2 {
        println!("{:?}", check_turns(&merged, round, [&nodes[0], &nodes[1]], &stated));
    }
    assert!(stated["far"].iter().all(|piece| ["first", "exchange", "gap"].contains(&piece.reason.as_str())));

    let own = own_times(&trace);
    // Only this node has equal delays in both directions.
    let far = covered(&merged, &own, &nodes[0], &stated["far"], boot);
    assert!(far >= 0.95, "three times the estimated error covers only {far} of the events");
    for (node, proxy) in nodes.iter().zip(&proxies) {
        let mut had_back: Vec<i64> =
            own.iter().filter(|row| row.node == node.name).map(|row| row.time).collect();
        let mut sent = proxy.node_times();
        had_back.sort_unstable();
        sent.sort_unstable();
        assert!(!sent.is_empty());
        // Records that name a file are not events.
        let mut left = sent.into_iter();
        for time in &had_back {
            assert!(left.any(|sent| sent == *time), "{}: {time} was never sent", node.name);
        }
        println!("{}: {} own times recovered exactly", node.name, had_back.len());
    }
}

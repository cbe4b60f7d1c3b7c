//! Clusters in virtual time, judged by conservation. `MIOT_SEED` runs one seed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_simulation::judge::judge;
use miot_simulation::{Bug, Fault, Plan, Verdict, run};
use std::time::{Duration, Instant};

/// Seeds of every run of CI.
const SEEDS: [u64; 2] = [1, 2];

fn seeds() -> Vec<u64> {
    std::env::var("MIOT_SEED").map_or_else(|_| SEEDS.to_vec(), |seed| vec![seed.parse().unwrap()])
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Runs and judges a plan.
fn judged(plan: &Plan) -> Verdict {
    eprintln!("seed {}: {} nodes, {} log-servers", plan.seed, plan.nodes, plan.servers);
    let began = Instant::now();
    let outcome = run(plan);
    eprintln!("{}\nsimulated in {:.1} s", outcome.figures, began.elapsed().as_secs_f64());
    let verdict = judge(&outcome).unwrap_or_else(|violation| panic!("seed {}: {violation}", plan.seed));
    eprintln!("{verdict}\njudged after {:.1} s", began.elapsed().as_secs_f64());
    verdict
}

/// Returns what the judge finds in a run with a bug.
fn found(plan: Plan, bug: Bug) -> String {
    judge(&run(&plan.with(bug))).expect_err("the judge has found nothing")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn cluster_without_faults_loses_nothing_and_has_no_late_rows() {
    let verdict = judged(&Plan::quiet(1, 40, 3));
    assert_eq!((verdict.late, verdict.lost, verdict.not_delivered, verdict.moved), (0, 0, 0, 0));
    assert_eq!(verdict.attempts, verdict.delivered);
}

/// The size follows from `MIOT_SIMULATION_NODES` and `MIOT_SIMULATION_SERVERS`.
#[test]
fn every_event_is_in_one_trace_once_whatever_happens() {
    let (nodes, servers) = (number("MIOT_SIMULATION_NODES", 60), number("MIOT_SIMULATION_SERVERS", 4));
    for seed in seeds() {
        check_everything(&Plan::everything(seed, nodes, servers));
    }
}

/// The same with rare acknowledgments and late answers about clocks.
#[test]
fn every_event_of_a_crowded_cluster_is_in_one_trace_once_whatever_happens() {
    let (nodes, servers) = (number("MIOT_SIMULATION_NODES", 60), number("MIOT_SIMULATION_SERVERS", 4));
    for seed in seeds() {
        check_everything(&Plan::everything(seed, nodes, servers).as_crowded());
    }
}

fn check_everything(plan: &Plan) {
    let verdict = judged(plan);
    assert!(verdict.delivered > 0 && verdict.not_delivered < verdict.delivered / 4);
    assert!(verdict.checkpoints > 0, "no reader has read the set while log-servers ran");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let plan = Plan::everything(3, 20, 3);
    let runs = [run(&plan), run(&plan)];
    let [one, other] = runs.map(|outcome| format!("{}{}", outcome.figures, judge(&outcome).unwrap()));
    assert_eq!(one, other);
}

/// With little memory, nodes wait until the rows of others are durable. After a restart the rows
/// that wait for the next message of a node leave no space for it.
#[test]
fn log_servers_without_memory_make_nodes_wait() {
    let faults = vec![(seconds(8), Fault::Restart { servers: vec![0], away: seconds(10) })];
    let plan =
        Plan { memory: 16 << 10, event_every: Duration::from_millis(200), faults, ..Plan::quiet(4, 30, 1) };
    let outcome = run(&plan);
    eprintln!("{}", outcome.figures);
    assert!(outcome.figures.waited > 0);
    let verdict = judge(&outcome).unwrap();
    assert_eq!((verdict.attempts, verdict.not_delivered), (verdict.delivered + verdict.lost, 0));
}

#[test]
fn judge_finds_acknowledgments_before_rows_are_durable() {
    let faults = vec![(seconds(12), Fault::Restart { servers: vec![0, 1], away: seconds(2) })];
    let text =
        found(Plan { faults, recording: seconds(20), ..Plan::quiet(5, 20, 2) }, Bug::AcknowledgesEarly);
    assert!(text.contains("spool_damaged") || text.contains("0 events, 0 losses"), "{text}");
}

#[test]
fn judge_finds_batches_that_are_offered_twice() {
    let faults = vec![(seconds(10), Fault::Restart { servers: vec![0], away: seconds(20) })];
    let plan = Plan { faults, fail_over_after: Some(seconds(5)), ..Plan::quiet(6, 20, 2) };
    let text = found(plan, Bug::OffersTwice);
    assert!(text.contains("numbers") && text.contains(" are in "), "{text}");
}

#[test]
fn judge_finds_watermarks_that_ignore_a_stopped_thread() {
    let faults = vec![(seconds(10), Fault::StopThreads { one_in: 2, lasts: seconds(3) })];
    let text =
        found(Plan { faults, recording: seconds(20), ..Plan::quiet(7, 20, 2) }, Bug::IgnoresStoppedThreads);
    assert!(text.contains("below its watermark"), "{text}");
}

#[test]
fn judge_finds_merges_that_do_not_wait_for_watermarks() {
    let text = found(Plan { recording: seconds(15), ..Plan::quiet(8, 20, 2) }, Bug::IgnoresWatermarks);
    assert!(text.contains("is late") || text.contains("not marked late"), "{text}");
}

#[test]
fn judge_finds_a_lost_batch() {
    let text = found(Plan::quiet(9, 40, 2), Bug::LosesBatches);
    assert!(text.contains("spool_damaged"), "{text}");
}

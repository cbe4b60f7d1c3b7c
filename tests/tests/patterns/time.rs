//! Throughput, idle periods and cycles.

use crate::{PatternProgram, Trace};
use miot_tests::built::built;
use miot_tests::process::run;
use miot_tests::traced::events;
use serde_json::Value;
use std::process::Command;

/// Start, end and bytes written of the events of a trace.
fn times(trace: &Trace) -> Vec<(i64, i64, u64)> {
    let rows = events(&trace.0);
    assert!(
        rows.iter().all(|row| row.enclosing.is_none()),
        "nested calls: the tests would have to distinguish them"
    );
    let bytes = |op: &str, result: i64| if op == "pwrite" { result as u64 } else { 0 };
    rows.iter().map(|row| (row.time - row.duration, row.time, bytes(&row.op, row.result))).collect()
}

/// Durations without a request in flight, found by checking each end of a request.
fn gaps(times: &[(i64, i64, u64)]) -> Vec<i64> {
    let under_way_after = |moment: i64| times.iter().any(|(begin, end, _)| *begin <= moment && moment < *end);
    let mut ends: Vec<i64> =
        times.iter().map(|(_, end, _)| *end).filter(|end| !under_way_after(*end)).collect();
    ends.sort_unstable();
    ends.dedup();
    let next = |end: i64| times.iter().map(|(begin, _, _)| *begin).filter(|begin| *begin >= end).min();
    ends.into_iter().filter_map(|end| next(end).map(|begin| begin - end)).collect()
}

fn u64s(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Six bursts of 32 writes of 64 KiB, 150 ms apart.
fn bursty(name: &str) -> Trace {
    PatternProgram::new(name).traced(0, "bursts 6 32 65536 150")
}

#[test]
fn intervals_and_idle_periods_follow_from_the_events() {
    const BYTES: u64 = 6 * 32 * 65536;
    const INTERVAL: i64 = 20_000_000;
    let trace = bursty("bursts");
    let times = times(&trace);
    assert_eq!(times.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), BYTES, "no other program writes");

    let bursts = trace.json("bursts", &["--interval", "20ms"]);
    assert_eq!((u64s(&bursts["interval"]), u64s(&bursts["written"]["bytes"])), (INTERVAL as u64, BYTES));
    assert_eq!(bursts["total"]["bytes"], BYTES, "nothing is read");
    let series = bursts["series"].as_array().unwrap();
    assert_eq!(series.iter().map(|one| u64s(&one["written"])).sum::<u64>(), BYTES);
    for one in series {
        let begin = one["begin"].as_i64().unwrap();
        let end = begin + INTERVAL;
        let within = |from: i64, to: i64, bytes: u64| {
            let share = (to.min(end) - from.max(begin)).max(0) as f64 / (to - from).max(1) as f64;
            bytes as f64 * share
        };
        let expected: f64 = times.iter().map(|(from, to, bytes)| within(*from, *to, *bytes)).sum();
        assert!((u64s(&one["written"]) as f64 - expected).abs() < 2.0, "{one}: {expected}");
        let touching = times.iter().filter(|(from, to, _)| *from < end && (*to > begin || *from >= begin));
        assert_eq!(u64s(&one["requests"]), touching.count() as u64, "{one}");
    }
    let first = times.iter().map(|(begin, ..)| begin.div_euclid(INTERVAL)).min().unwrap();
    let last = times.iter().map(|(_, end, _)| (end - 1).div_euclid(INTERVAL)).max().unwrap();
    let intervals = (last - first + 1) as u64;
    assert_eq!(u64s(&bursts["intervals"]), intervals);
    // Carns et al.: the share of intervals below 33 % of the peak, over all of them.
    let rates: Vec<f64> = series.iter().map(|one| u64s(&one["written"]) as f64).collect();
    let peak = rates.iter().copied().fold(0.0, f64::max);
    let busy = rates.iter().filter(|rate| **rate >= 0.33 * peak).count() as u64;
    let below = bursts["total"]["below"].as_array().unwrap();
    let of_third = below.iter().find(|row| row["of_peak"] == 0.33).unwrap()["share"].as_f64().unwrap();
    assert!((of_third - (intervals - busy) as f64 / intervals as f64).abs() < 1e-12, "{of_third}");
    let told = bursts["total"]["peak"].as_f64().unwrap();
    assert!((told - peak / 0.02).abs() < 1e-6 * told, "{told}");

    let idle = trace.json("idle", &["--interval", "20ms"]);
    let [below_peak, silent, none] = &idle["definitions"].as_array().unwrap()[..] else { panic!("{idle:#}") };
    let gaps = gaps(&times);
    let of = |least: i64| gaps.iter().copied().filter(|gap| *gap >= least).collect::<Vec<_>>();
    let expected = of(1_000_000);
    assert_eq!(u64s(&none["count"]), expected.len() as u64);
    assert_eq!(u64s(&none["idle"]), expected.iter().sum::<i64>() as u64);
    assert_eq!(u64s(&none["longest"]["length"]) as i64, *expected.iter().max().unwrap());
    let (begin, end) = (times.iter().map(|t| t.0).min().unwrap(), times.iter().map(|t| t.1).max().unwrap());
    assert_eq!(u64s(&none["total"]), (end - begin) as u64);
    for row in none["at_least"].as_array().unwrap() {
        let long = of(u64s(&row["length"]) as i64);
        assert_eq!(
            (u64s(&row["count"]), u64s(&row["time"])),
            (long.len() as u64, long.iter().sum::<i64>() as u64)
        );
    }
    // Six bursts have five pauses between them, each longer than 100 ms unless a burst was late.
    assert!(of(1_000_000).len() >= 5);

    let active: Vec<i64> =
        series.iter().map(|one| one["begin"].as_i64().unwrap().div_euclid(INTERVAL)).collect();
    let silent_intervals = intervals - active.len() as u64;
    assert_eq!(u64s(&silent["idle"]), silent_intervals * INTERVAL as u64);
    let runs = active.windows(2).filter(|pair| pair[1] > pair[0] + 1).count() as u64;
    assert_eq!(u64s(&silent["count"]), runs);
    let calm = series.iter().filter(|one| (u64s(&one["written"]) as f64) < 0.05 * peak).count() as u64;
    assert_eq!(u64s(&below_peak["idle"]), (silent_intervals + calm) * INTERVAL as u64);
}

#[test]
fn periodic_writer_has_its_cycle() {
    const PERIOD: u64 = 50_000_000;
    const TIMES: u64 = 24;
    let place = PatternProgram::new("cycles");
    // On a busy machine bursts are late, and the trace has no such cycle.
    let trace = (0..40)
        .map(|_| place.traced(0, "bursts 24 4 65536 50"))
        .find(|trace| {
            let mut begins: Vec<i64> =
                times(trace).into_iter().filter(|(.., bytes)| *bytes > 0).map(|(begin, ..)| begin).collect();
            begins.sort_unstable();
            let bursts: Vec<i64> = begins.chunks(4).map(|burst| burst[0]).collect();
            let ends: Vec<i64> = begins.chunks(4).map(|burst| burst[3]).collect();
            bursts.windows(2).all(|pair| (pair[1] - pair[0]).abs_diff(PERIOD as i64) < PERIOD / 10)
                && bursts.iter().zip(&ends).all(|(begin, end)| end - begin < PERIOD as i64 / 10)
        })
        .expect("a run in which no burst was late");
    let cycles = trace.json("cycles", &[]);
    let rhythm = cycles["processes"].as_array().unwrap().iter().find(|row| row["bytes"] == TIMES * 4 * 65536);
    let rhythm = rhythm.unwrap_or_else(|| panic!("{cycles:#}"));
    let [cycle] = &rhythm["cycles"].as_array().unwrap()[..] else { panic!("{rhythm:#}") };
    assert!(u64s(&cycle["period"]).abs_diff(PERIOD) < PERIOD / 50, "{cycle:#}");
    assert_eq!((u64s(&cycle["count"]), u64s(&cycle["bytes"])), (TIMES, 4 * 65536), "{cycle:#}");
    // How strong it is depends on how late each burst was: `cycle_of_exact_times_is_strong`.
    assert!(cycle["strength"].as_f64().unwrap() > cycle["bound"].as_f64().unwrap(), "{cycle:#}");
    assert_eq!(cycles["all"]["cycles"], rhythm["cycles"], "no other program writes");

    let told = trace.shown("cycles", &[]).success().stdout;
    assert!(told.lines().any(|line| line.starts_with("all ") && line.contains(" 24 ")), "{told}");
}

#[test]
fn cycle_of_exact_times_is_strong() {
    let place = PatternProgram::new("exact-cycles");
    let log = place.folder.join("log");
    let lines: Vec<String> = (0..24 * 4)
        .map(|i| {
            let micros = 1_700_000_000_000_000_i64 + i / 4 * 50_000 + i % 4 * 20;
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            let offset = i * 65536;
            format!(
                "77 {seconds}.{rest:06} pwrite64(3</d/out>, \"\"..., 65536, {offset}) = 65536 <0.000012>\n"
            )
        })
        .collect();
    std::fs::write(&log, lines.concat()).unwrap();
    let trace = Trace(place.folder.join("trace"));
    let mut import = Command::new(&built().miot);
    let _ = run(import.args(["import", "--format", "strace", "-o"]).arg(&trace.0).arg(&log)).success();
    let cycles = trace.json("cycles", &[]);
    let [cycle] = &cycles["all"]["cycles"].as_array().unwrap()[..] else { panic!("{cycles:#}") };
    assert!(u64s(&cycle["period"]).abs_diff(50_000_000) < 500_000, "{cycle:#}");
    assert_eq!((u64s(&cycle["count"]), u64s(&cycle["bytes"])), (24, 4 * 65536), "{cycle:#}");
    assert!(cycle["strength"].as_f64().unwrap() > 0.85, "{cycle:#}");
}

#[test]
fn continuous_writer_has_no_cycle() {
    let place = PatternProgram::new("no-cycles");
    // A program that gets only every second time slice does have a cycle.
    let trace = (0..40)
        .map(|_| place.undisturbed("strided 3000 65536 65536 0"))
        .find(|trace| {
            let writes: Vec<_> = times(trace).into_iter().filter(|(.., bytes)| *bytes > 0).collect();
            gaps(&writes).iter().all(|gap| *gap < 1_000_000)
        })
        .expect("a run that was not interrupted");
    let cycles = trace.json("cycles", &[]);
    assert_eq!(cycles["all"]["cycles"], serde_json::json!([]), "{cycles:#}");
    assert_eq!(cycles["all"]["bytes"], 3000 * 65536);
}

#[test]
fn tables_and_csv_equal_json() {
    let trace = bursty("bursts-tables");
    let csv = trace.shown("bursts", &["--interval", "20ms", "--format", "csv"]).success().stdout;
    let bursts = trace.json("bursts", &["--interval", "20ms"]);
    let written = |line: &str| line.split(',').nth(2).unwrap().parse::<u64>().unwrap();
    let series: Vec<u64> =
        bursts["series"].as_array().unwrap().iter().map(|one| u64s(&one["written"])).collect();
    assert_eq!(csv.lines().skip(1).map(written).collect::<Vec<_>>(), series);
    let csv = trace.shown("idle", &["--interval", "20ms", "--format", "csv"]).success().stdout;
    let idle = trace.json("idle", &["--interval", "20ms"]);
    let rows: usize = idle["definitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["at_least"].as_array().unwrap().len())
        .sum();
    assert_eq!(csv.lines().count(), rows + 1);
    let text = trace.shown("bursts", &["--interval", "20ms"]).success().stdout;
    assert!(text.contains("12.0 MiB") && text.contains("time below 33 % of peak"), "{text}");
}

//! Traces that are empty, extreme or incomplete, and invalid options.

use crate::{PatternProgram, Trace, shown};
use miot_proto::op::posix;
use miot_tests::losses::lose;
use miot_tests::test_dir::fresh;
use miot_trace_exchange::{Event, Process, TraceBuilder};
use miot_trace_store::schema;
use serde_json::Value;
use std::path::Path;

const VIEWS: [&str; 5] = ["bursts", "idle", "cycles", "patterns", "findings"];

/// Creates a trace of writes and reads with these start times, end times, offsets and results.
fn forged(dir: &Path, events: &[(i64, i64, Option<i64>, i64)]) {
    let mut builder = TraceBuilder::create(dir).unwrap();
    let process =
        builder.process(Process { node: "n1".into(), exe: "/home/p\\xff".into(), ..Process::default() });
    let thread = builder.thread(process, 1, "p");
    let file = builder.file(process, b"/scratch/not\xffutf8").unwrap();
    for (i, (begin, end, offset, result)) in events.iter().enumerate() {
        let op = if i % 2 == 0 { posix::PWRITE } else { posix::PREAD };
        let event = Event::new(thread, op, *begin, *end);
        builder.event(&Event { file: Some(file), offset: *offset, result: *result, ..event }).unwrap();
    }
    let _ = builder.finish(|_| {}).unwrap();
}

/// Runs all views of a trace in all formats. None may fail.
fn all_views(trace: &Path) -> Vec<Value> {
    for view in VIEWS {
        for format in ["text", "csv"] {
            let told = shown(trace, view, &["--format", format, "--interval", "1s"]).success();
            assert!(!told.stdout.is_empty() || format == "csv", "{view} {format}");
            assert_eq!(told.stderr, "", "{view} {format}");
        }
    }
    VIEWS.iter().map(|view| Trace(trace.to_owned()).json(view, &["--interval", "1s"])).collect()
}

#[test]
fn empty_trace_has_empty_views() {
    let trace = fresh("patterns-empty").join("trace");
    forged(&trace, &[]);
    let [bursts, idle, cycles, patterns, findings] = &all_views(&trace)[..] else { panic!() };
    assert_eq!((&bursts["intervals"], &bursts["total"]["bytes"]), (&0.into(), &0.into()));
    assert!(idle["definitions"].as_array().unwrap().iter().all(|one| one["count"] == 0 && one["idle"] == 0));
    assert_eq!((&cycles["all"], &patterns["programs"]), (&Value::Null, &serde_json::json!([])));
    assert_eq!(findings["findings"], serde_json::json!([]));
}

#[test]
fn one_event_is_one_interval() {
    let trace = fresh("patterns-one").join("trace");
    forged(&trace, &[(5_000_000_000, 5_000_001_000, Some(0), 4096)]);
    let [bursts, idle, cycles, patterns, findings] = &all_views(&trace)[..] else { panic!() };
    assert_eq!((&bursts["intervals"], &bursts["total"]["peak"]), (&1.into(), &4096.0.into()));
    assert!(idle["definitions"].as_array().unwrap().iter().all(|one| one["count"] == 0));
    assert_eq!(cycles["all"]["cycles"], serde_json::json!([]));
    assert_eq!(patterns["programs"][0]["pattern"], "1:1");
    assert_eq!(
        (&patterns["files"][0]["order"], &patterns["files"][0]["accesses"]),
        (&"single".into(), &1.into())
    );
    assert_eq!(findings["findings"], serde_json::json!([]));
}

/// 1970, 2262, a request of 292 years, a result and an offset of 8 EiB: no computation overflows,
/// and bytes saturate.
#[test]
fn extreme_values_are_handled() {
    let trace = fresh("patterns-absurd").join("trace");
    let (least, most) = (0, i64::MAX - 1);
    forged(
        &trace,
        &[
            (least, least, Some(0), i64::MAX),
            (least, most, Some(i64::MAX), i64::MAX),
            (most, most, Some(-5), i64::MAX),
            (most, most, None, 1),
            (1_790_000_000_000_000_000, 1_790_000_000_000_000_500, Some(i64::MAX - 1), 4096),
            (1_790_000_000_000_000_000, 1_790_000_000_000_000_500, Some(0), i64::MIN),
        ],
    );
    let [bursts, idle, _, patterns, _] = &all_views(&trace)[..] else { panic!() };
    assert_eq!((&bursts["begin"], &bursts["end"]), (&least.into(), &most.into()));
    assert!(
        bursts["interval"].as_u64() > bursts["asked"].as_u64(),
        "intervals of a second would be too many: joined"
    );
    assert_eq!(bursts["read"]["bytes"].as_u64().unwrap(), i64::MAX as u64 + 1);
    assert_eq!(idle["definitions"][2]["idle"], 0, "the long request is under way all the time");
    assert_eq!(patterns["programs"][0]["bytes"].as_u64(), Some(u64::MAX));
}

/// Every figure of a trace with losses is marked as a lower bound.
#[test]
fn losses_are_reported() {
    let trace = fresh("patterns-losses").join("trace");
    forged(&trace, &[(5_000_000_000, 5_000_001_000, Some(0), 4096)]);
    lose(&trace, &[("lane_full", 12), (schema::FILTERED, 3)]);
    for view in VIEWS {
        let text = shown(&trace, view, &[]).success().stdout;
        assert!(text.contains("12 events lost: counts and bytes are lower bounds"), "{view}: {text}");
        assert!(text.contains("3 requests left out"), "{view}: {text}");
        let json = shown(&trace, view, &["--format", "json"]).success().stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["missing"]["lost"], &json["missing"]["filtered"]), (&12.into(), &3.into()));
    }
}

#[test]
fn invalid_options_are_refused() {
    let place = PatternProgram::new("options");
    let trace = place.traced(0, "strided 1 1 1 0");
    for (options, said) in [
        (&["--interval", "0s"][..], "expected an interval above 0"),
        (&["--interval", "5 bananas"], "a duration such as"),
        (&["--by", "job"], "cannot be used with"),
        (&["--job", "7"], "cannot be used with"),
    ] {
        let refused = trace.shown("bursts", options);
        assert!(refused.code() != 0 && refused.stderr.contains(said), "{options:?}: {}", refused.stderr);
        assert_eq!(refused.stdout, "");
    }
    let refused = trace.shown("findings", &["--block-size", "many"]);
    assert!(refused.code() == 1 && refused.stderr.contains("a size such as"), "{}", refused.stderr);
    let nowhere = shown(&place.folder.join("nowhere"), "idle", &[]);
    assert!(nowhere.code() == 1 && nowhere.stderr.contains("nowhere"), "{}", nowhere.stderr);
    // A damaged part is reported, and partial figures are not printed as complete.
    let events = trace.0.join("events");
    let part = std::fs::read_dir(&events).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&part, b"PAR1 and no more").unwrap();
    for view in VIEWS {
        let damaged = trace.shown(view, &[]);
        assert!(damaged.code() == 1 && damaged.stderr.contains("part-000000"), "{view}: {}", damaged.stderr);
    }
}

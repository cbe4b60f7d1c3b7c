//! Each finding is reported for a program that has the problem, and not for its corrected twin.

use crate::{PatternProgram, Trace, of_file};
use miot_tests::mpi;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// Returns the findings of a program.
fn all_found(trace: &Trace, exe: &str) -> Vec<Value> {
    let all = trace.json("findings", &[]);
    let of = |finding: &&Value| finding["program"]["exe"].as_str().unwrap().ends_with(exe);
    all["findings"].as_array().unwrap().iter().filter(of).cloned().collect()
}

/// Returns the findings of a program, without late ranks: a busy machine delays ranks of any
/// program.
fn found(trace: &Trace, exe: &str) -> Vec<Value> {
    all_found(trace, exe).into_iter().filter(|finding| finding["rule"] != "straggler").collect()
}

fn rules(found: &[Value]) -> BTreeSet<&str> {
    found.iter().map(|finding| finding["rule"].as_str().unwrap()).collect()
}

fn figures(finding: &Value, names: &[&str]) -> Vec<f64> {
    let figure = |name: &&str| {
        let figures = finding["figures"].as_array().unwrap().iter();
        figures.clone().find(|figure| figure["name"] == *name).unwrap()["value"].as_f64().unwrap()
    };
    names.iter().map(figure).collect()
}

/// Larger than a small request.
const LARGE: u64 = 72 << 10;

struct Case<'a> {
    ranks: usize,
    /// Bytes of the file that exists before the run.
    before: u64,
    bad: String,
    rule: &'a str,
    /// Other findings of the same program.
    also: &'a [&'a str],
    figures: &'a [(&'a str, u64)],
    /// File of the finding, and its count.
    file: Option<(&'a str, u64)>,
    good: String,
}

#[test]
#[expect(clippy::too_many_lines, reason = "one row per finding")]
fn each_finding_is_reported_only_for_its_problem() {
    let place = PatternProgram::new("findings");
    let case = |ranks, before, bad: String, rule, also, figures, file, good: String| Case {
        ranks,
        before,
        bad,
        rule,
        also,
        figures,
        file,
        good,
    };
    let cases = [
        case(
            0,
            0,
            "strided 1500 512 512 0".into(),
            "small_writes",
            &[],
            &[("small", 1500), ("requests", 1500), ("bytes", 1500 * 512), ("mean", 512)],
            Some(("/data", 1500)),
            "strided 1 768000 768000 0".into(),
        ),
        case(
            0,
            1500 * 512,
            "reads 1 1500 512 0".into(),
            "small_reads",
            &[],
            &[("small", 1500), ("requests", 1500), ("bytes", 1500 * 512), ("mean", 512)],
            Some(("/data", 1500)),
            "reads 1 1 768000 0".into(),
        ),
        case(
            0,
            LARGE * 1101,
            format!("reads 1 1100 {LARGE} 100"),
            "misaligned",
            &[],
            &[("misaligned", 1100), ("requests", 1100), ("block", 4096)],
            Some(("/data", 1100)),
            format!("reads 1 1100 {LARGE} 4096"),
        ),
        case(
            0,
            0,
            "stats 1200 0".into(),
            "metadata_storm",
            &[],
            &[("metadata_requests", 1200), ("data_requests", 0)],
            None,
            "stats 20 0".into(),
        ),
        case(
            0,
            LARGE * 1100,
            format!("seeks 1100 {LARGE}"),
            "seeks",
            &[],
            &[("seeks", 1100), ("data_requests", 1100)],
            Some(("/data", 1100)),
            format!("positions 1100 {LARGE}"),
        ),
        case(
            0,
            1,
            "opens 1201".into(),
            "redundant_opens",
            &["metadata_storm"],
            &[("again", 1200), ("all", 1201)],
            Some(("/data", 1200)),
            "opens 2".into(),
        ),
        case(
            0,
            1,
            "stats 1201 1".into(),
            "redundant_stats",
            &["metadata_storm"],
            &[("again", 1200), ("all", 1201)],
            Some(("/data", 1200)),
            "stats 2 1".into(),
        ),
        case(
            0,
            0,
            "files 1000 4096".into(),
            "many_small_files",
            &["metadata_storm", "small_writes"],
            &[("files", 1000), ("small", 1000), ("bytes", 1000 * 4096), ("mean", 4096)],
            None,
            "files 4 1024000".into(),
        ),
        case(
            4,
            0,
            "one 2 1048576 1".into(),
            "one_rank",
            &[],
            &[("bytes", 2 << 20), ("of_rank", 2 << 20), ("ranks", 4)],
            None,
            "late 0 524288".into(),
        ),
        case(
            0,
            2 << 20,
            "reads 4 2 1048576 0".into(),
            "redundant_reads",
            &[],
            &[("again", 6 << 20), ("all", 8 << 20)],
            Some(("/data", 6 << 20)),
            "reads 1 2 1048576 0".into(),
        ),
        case(
            0,
            0,
            "writes 4 2 1048576".into(),
            "overwrites",
            &[],
            &[("again", 6 << 20), ("all", 8 << 20)],
            Some(("/data", 6 << 20)),
            "truncated 4 2 1048576".into(),
        ),
        case(
            0,
            0,
            format!("syncs 120 {LARGE} 1"),
            "sync_per_write",
            &[],
            &[("syncs", 120), ("writes", 120)],
            Some(("/data", 120)),
            format!("syncs 120 {LARGE} 120"),
        ),
    ];
    for case in &cases {
        let clear = || {
            let _ = std::fs::remove_file(place.data());
            if case.before > 0 {
                place.file(case.before);
            }
        };
        clear();
        let bad = found(&place.traced(case.ranks, &case.bad), "/pattern");
        let rules = rules(&bad);
        let allowed: BTreeSet<_> = case.also.iter().copied().chain([case.rule]).collect();
        assert!(rules.contains(case.rule) && rules.is_subset(&allowed), "{}: {rules:?}\n{bad:#?}", case.bad);
        let finding = bad.iter().find(|finding| finding["rule"] == case.rule).unwrap();
        let (names, values): (Vec<_>, Vec<_>) = case.figures.iter().map(|(n, v)| (*n, *v as f64)).unzip();
        assert_eq!(figures(finding, &names), values, "{finding:#}");
        if let Some((name, count)) = case.file {
            assert_eq!(of_file(&finding["files"], name)["value"], count, "{finding:#}");
        }
        for name in ["what", "because", "advice", "source"] {
            assert!(!finding[name].as_str().unwrap().is_empty(), "{finding:#}");
        }
        clear();
        let good = found(&well_behaved(&place, case), "/pattern");
        assert!(good.is_empty(), "{}: {good:#?}", case.good);
    }
}

fn well_behaved(place: &PatternProgram, case: &Case<'_>) -> Trace {
    if case.good.starts_with("late") { late(place, &case.good) } else { place.traced(case.ranks, &case.good) }
}

/// Runs four ranks, of which some wait for the writer of a FIFO. The delay makes them late.
fn late(place: &PatternProgram, words: &str) -> Trace {
    let fifo = format!("{}.fifo", place.data().display());
    let _ = std::fs::remove_file(&fifo);
    let _ = run(Command::new("mkfifo").arg(&fifo)).success();
    place.scripted(4, words, &format!("sleep 0.5; exec 3> {fifo};"))
}

#[test]
fn slow_rank_is_named() {
    let place = PatternProgram::new("straggler");
    let bad = all_found(&late(&place, "late 3 524288"), "/pattern");
    assert_eq!(rules(&bad), ["straggler"].into(), "{bad:#?}");
    assert_eq!(bad[0]["members"], serde_json::json!([3]));
    assert_eq!(figures(&bad[0], &["of_slowest", "of_median"]), [524_288.0, 524_288.0]);
    let [slowest, median, run] = figures(&bad[0], &["slowest", "median", "run"])[..] else { panic!() };
    assert!(slowest > 2.0 * median && slowest <= run, "{bad:#?}");
    // All ranks wait, so none is late.
    let good = all_found(&late(&place, "late 0 524288"), "/pattern");
    assert!(good.is_empty(), "{good:#?}");
}

#[test]
fn redundant_reads_by_all_ranks_are_found() {
    let place = PatternProgram::new("read-by-all");
    place.file(8 << 20);
    let bad = found(&place.traced(4, "reads 1 2 1048576 0"), "/pattern");
    assert_eq!(rules(&bad), ["read_by_all"].into(), "{bad:#?}");
    assert_eq!(figures(&bad[0], &["again", "all"]), [(6 << 20) as f64, (8 << 20) as f64]);
    let good = found(&place.traced(4, "part 2 1048576"), "/pattern");
    assert!(good.is_empty(), "{good:#?}");
}

#[test]
fn small_shared_mpi_requests_should_be_collective() {
    let place = fresh("patterns-independent");
    let program = mpi::compile(&place, "sharing", "sharing.c", &[]);
    let traced = |mode: &str| {
        let trace = Trace(place.join(format!("trace-{mode}")));
        let data = place.join(mode);
        let words = [program.as_os_str(), mode.as_ref(), data.as_os_str(), "300".as_ref(), "4096".as_ref()];
        let _ = mpi::traced(&trace.0, 4, &[], &words).success();
        found(&trace, "/sharing")
    };
    let bad = traced("independent");
    let rules = rules(&bad);
    assert!(rules.contains("independent_shared_io"), "{bad:#?}");
    assert!(rules.is_subset(&["independent_shared_io", "small_writes", "straggler"].into()), "{bad:#?}");
    let finding = bad.iter().find(|finding| finding["rule"] == "independent_shared_io").unwrap();
    assert_eq!(figures(finding, &["requests", "mpi_requests"]), [1200.0, 1200.0]);
    let good = traced("collective");
    let written = std::fs::metadata(place.join("collective")).unwrap().len();
    assert_eq!(written, 4 * 300 * 4096, "the twin writes the same bytes");
    assert!(good.iter().all(|finding| finding["rule"] == "straggler"), "{good:#?}");
}

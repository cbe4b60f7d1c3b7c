//! Every benchmark runs on this machine and yields plausible figures. No time is asserted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Daemons, tool and hook, built beside the driver by `cargo build`.
const PARTS: [&str; 9] = [
    "log-client",
    "log-server",
    "miot-uploader",
    "miot",
    "miot-query",
    "libmiot_posix.so",
    "libmiot_mpi.so",
    "miot-fuse",
    "lib_miot.so",
];

/// Checks the results of a benchmark.
type Check = fn(&Value);

fn driver() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_miot-bench"))
}

/// Builds the programs that the driver starts, unless the script that runs the tests has done so.
fn build_parts() {
    if std::env::var_os("MIOT_TESTS_BUILT").is_none() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build
            .args(["build", "--quiet", "--features", "miot/broker"])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        assert!(build.status().is_ok_and(|status| status.success()), "cargo build");
        build.args(["-p", "miot-query", "-p", "miot-python", "-p", "miot-uploader"]);
        assert!(
            build.status().is_ok_and(|status| status.success()),
            "miot-query, miot-python, miot-uploader"
        );
    }
    for part in PARTS {
        assert!(driver().with_file_name(part).exists(), "{part} is not built");
    }
}

/// Those with LTTng, of which there is one session daemon per machine.
const BESIDE_LTTNG: &[(&str, Check)] =
    &[("op", op), ("threads", threads), ("drain", drain), ("pipeline", pipeline), ("bytes", bytes)];
const PROGRAMS: &[(&str, Check)] = &[
    ("idle", idle),
    ("startup", startup),
    ("hook", hook),
    ("mpi", mpi),
    ("apps", apps),
    ("gluster", gluster),
    ("fuse", fuse),
];
const SERVER: &[(&str, Check)] = &[
    ("nodes", nodes),
    ("sync", sync),
    ("streams", streams),
    ("cluster", cluster),
    ("broker", broker),
    ("recovery", recovery),
    ("delay", delay),
    ("fsstats", fsstats),
];
/// Several log-servers, the object store, and workers of queries.
const SETS: &[(&str, Check)] = &[("sets", sets), ("store", store), ("distributed", distributed)];
const REPEATED: &[(&str, Check)] = &[("replay", replay), ("simulate", simulate), ("bench", parallel)];
/// Takes as long as two of the others.
const ESTIMATED: &[(&str, Check)] = &[("estimate", estimate)];
const READERS: &[(&str, Check)] = &[("paper", paper), ("analysis", analysis), ("python", python)];

#[test]
fn benchmarks_beside_lttng_yield_figures() {
    yield_figures("lttng", BESIDE_LTTNG);
}

#[test]
fn benchmarks_of_programs_yield_figures() {
    yield_figures("programs", PROGRAMS);
}

#[test]
fn benchmarks_of_the_server_yield_figures() {
    yield_figures("server", SERVER);
}

#[test]
fn benchmarks_of_sets_and_the_store_yield_figures() {
    yield_figures("sets", SETS);
}

#[test]
fn benchmarks_of_repeated_requests_yield_figures() {
    yield_figures("repeated", REPEATED);
}

#[test]
fn benchmark_of_estimates_yields_figures() {
    yield_figures("estimated", ESTIMATED);
}

#[test]
fn benchmarks_of_readers_yield_figures() {
    yield_figures("readers", READERS);
}

#[test]
fn no_benchmark_is_left_out() {
    let help = Command::new(driver()).arg("--help").output().unwrap();
    // The help is wrapped at the width of a terminal.
    let help = String::from_utf8(help.stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, names) = help.split_once("[possible values: ").unwrap_or_else(|| panic!("{help}"));
    let names = names.split_once(']').unwrap().0;
    let mut names: Vec<&str> = names.split(',').map(str::trim).collect();
    let groups = [BESIDE_LTTNG, PROGRAMS, SERVER, SETS, REPEATED, ESTIMATED, READERS].concat();
    let mut checked: Vec<&str> = groups.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    checked.sort_unstable();
    assert_eq!(checked, names);
}

fn yield_figures(group: &str, checks: &[(&str, Check)]) {
    build_parts();
    // Always the same folder, so that each run removes the leftovers of a killed one.
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-smoke").join(group);
    let mut command = Command::new(driver());
    command.args(["--smoke", "--out"]).arg(&out).args(checks.iter().map(|(name, _)| name));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for line in said.lines().filter(|line| line.contains("SKIPPED")) {
        eprintln!("{line}");
    }
    for (name, check) in checks {
        let text = std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["bench"], *name);
        assert!(document["machine"]["tsc_ghz"].as_f64().is_some_and(|ghz| ghz > 0.1), "{document:#}");
        assert!(document["before"]["core_ghz"].as_f64().is_some_and(|ghz| ghz > 0.1), "{document:#}");
        check(&document["results"]);
    }
    let files = std::fs::read_dir(&out).unwrap().count();
    assert_eq!(files, checks.len(), "something is left behind in {}", out.display());
}

/// Returns the rows of a list and checks that each has these figures above zero.
fn rows<'a>(list: &'a Value, positive: &[&str]) -> &'a [Value] {
    let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(!rows.is_empty(), "no rows in {list:#}");
    for row in rows {
        for path in positive {
            let figure = row.pointer(path).and_then(Value::as_f64);
            assert!(figure.is_some_and(|figure| figure > 0.0), "{path} is {figure:?} in {row:#}");
        }
    }
    rows
}

fn row<'a>(rows: &'a [Value], key: &str) -> &'a Value {
    rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no `{key}` among the rows"))
}

fn parallel(results: &Value) {
    let rows = rows(&results["rows"], &["/miot/median", "/other/median", "/ratio/median"]);
    assert_eq!(rows.len(), 8, "{rows:#?}");
    assert!(results["own_ns"]["median"].as_f64().is_some_and(|ns| ns > 0.0), "{results:#}");
    // The injected delays are lower bounds. Additional time depends on the machine.
    for way in ["processes", "mpi"] {
        let part = |part: &str| results["delays"][way][part]["min"].as_f64().unwrap();
        assert!(part("s_ms") >= 100.0, "{way}: {results:#}");
        assert!(part("s_ms") + part("t_ms") + part("b_ms") >= 230.0, "{way}: {results:#}");
    }
}

fn estimate(results: &Value) {
    let applications = rows(results, &[]);
    assert_eq!(applications.len(), 3, "FULL, checkpoints and SIMPLE");
    for application in applications {
        let rows = rows(&application["rows"], &["/estimated_s/median", "/measured_s/median"]);
        // Two storages, each with writes, reads, and all.
        assert_eq!(rows.len(), 6, "{rows:#?}");
        assert!(application["commands"].as_array().is_some_and(|all| all.len() == 3), "{application:#}");
    }
}

fn op(results: &Value) {
    let ways = rows(&results["ways"], &["/gross/median"]);
    for key in ["floor", "miot", "miot-full", "miot-overwrite", "miot-short", "formatted-disk"] {
        rows(
            &Value::Array(vec![row(ways, key).clone()]),
            &["/ns/median", "/times_floor/median", "/instructions"],
        );
    }
    // The number of instructions does not depend on the load of the machine.
    let steps = |key| row(ways, key)["instructions"].as_f64().unwrap();
    assert!(steps("miot") > steps("clock"), "two clock reads are part of a recorded operation");
    assert!(
        steps("miot-off") < steps("miot") && steps("miot-dormant") < steps("miot"),
        "recording was not off"
    );
    rows(&results["first"], &["/us/repetitions"]);
    assert_eq!(results["miot_lost"], 0);
}

fn threads(results: &Value) {
    let counts = results["threads"].as_object().unwrap();
    assert!(counts.contains_key("1") && counts.contains_key("4"));
    for count in counts.values() {
        for way in ["floor", "shared-ring", "miot"] {
            assert!(count[way]["median"].as_f64().is_some_and(|ns| ns > 0.0), "{way} of {count:#}");
        }
    }
    assert_eq!(results["miot_lost"], 0);
}

fn drain(results: &Value) {
    // It is not checked whether this machine drains the lowest rate without a loss.
    let rows = rows(&results["rates"], &["/threads", "/buffers_mib", "/runs"]);
    assert!(
        row(rows, "alone").get("events_per_s").is_some() && row(rows, "both").get("events_per_s").is_some()
    );
}

fn idle(results: &Value) {
    rows(&results["rates"], &["/events", "/client_ns", "/server_ns"]);
    let loads = rows(&results["loads"], &["/client_wakes_per_s", "/client_mib", "/shm_mib"]);
    assert_eq!(loads.last().map(|load| &load["processes"]), Some(&3.into()));
    assert_eq!(results["lost"], 0);
}

fn simulate(results: &Value) {
    rows(&results["speed"], &["/million_requests_per_second", "/million_blocks_per_second"]);
    rows(&results["sweep"], &["/threads", "/seconds", "/speedup"]);
}

fn startup(results: &Value) {
    let ways = rows(&results["ways"], &["/us/median", "/cpu_us"]);
    assert!(["plain", "empty", "dormant", "recording"].iter().all(|key| row(ways, key).is_object()));
    assert_eq!((&results["lost"], &results["segments_left"]), (&0.into(), &0.into()));
}

fn hook(results: &Value) {
    let calls = rows(&results["calls"], &["/ns/median"]);
    let steps = |key| row(calls, key)["added_instructions"].as_f64().unwrap();
    assert!(steps("floor") > steps("empty") && steps("hook") > steps("dormant"));
    assert!(steps("hook") > steps("left-out"));
    assert_eq!(results["miot_lost"], 0);
}

fn mpi(results: &Value) {
    let ways = rows(&results["ways"], &["/ns/median", "/ratio/median"]);
    assert!(["plain", "posix", "mpi", "both", "off", "dormant"].iter().all(|key| row(ways, key).is_object()));
    assert_eq!(results["miot_lost"], 0);
}

fn apps(results: &Value) {
    if results["programs"].as_array().is_some_and(Vec::is_empty) {
        // File systems need root. The driver has reported what it skips.
        eprintln!("apps HAS MEASURED NOTHING: no file system could be made here");
        return;
    }
    let rows = rows(&results["programs"], &["/wall/0/median", "/wall/1/median", "/recorded/records"]);
    let is_fio = |row: &Value| row["what"].as_str().is_some_and(|what| what.starts_with("fio"));
    assert!(rows.iter().all(|row| row["sliced"] == is_fio(row)), "{rows:#?}");
    let with = |server: &str| rows.iter().filter(|row| row["server"] == server).count();
    assert!(with("everything on the node") > 0);
    // Groups of processes need root and the cpu controller.
    assert!([0, with("everything on the node")].contains(&with("log-server apart")), "{rows:#?}");
    assert!(results["trace"]["events"].as_u64().is_some_and(|events| events > 0), "{:#}", results["trace"]);
}

fn gluster(results: &Value) {
    assert_eq!(results["programs"], serde_json::json!([]), "a mount takes longer than all the rest");
}

fn fuse(results: &Value) {
    let rows = rows(&results["rows"], &["/figure/median"]);
    assert_eq!(rows.iter().filter(|row| row["key"] == "recording").count(), 6, "of each measurement");
    assert!(results["events"].as_u64().is_some_and(|events| events > 0));
}

fn pipeline(results: &Value) {
    rows(&results["runs"], &["/events_per_s", "/producer_ns", "/final_bytes"]);
}

fn nodes(results: &Value) {
    let figures =
        ["/durable_per_s", "/sealed_per_s", "/server_ns", "/wire_bytes", "/live_bytes", "/final_bytes"];
    assert_eq!(rows(results, &figures).len(), 10, "two patterns of four loads, two of one");
}

fn bytes(results: &Value) {
    assert_eq!(rows(results, &["/wire", "/live", "/sealed"]).len(), 4, "one of each pattern");
}

fn sync(results: &Value) {
    rows(results, &["/events_per_s", "/server_ns", "/ack_p50_ms"]);
}

fn streams(results: &Value) {
    rows(results, &["/before_mib", "/after_mib", "/peak_mib"]);
}

fn cluster(results: &Value) {
    rows(
        results,
        &["/events_per_s", "/messages_per_s", "/memory_mib", "/lag_p99_ms", "/delay_p99_ms", "/reconnect_s"],
    );
    assert!(results[0]["connects"].as_u64() >= Some(100), "each node connects again after the restart");
}

fn broker(results: &Value) {
    assert!(results["skipped"].is_null(), "tests/setup.sh installs nats-server");
    rows(&results["runs"], &["/events_per_s", "/client_ns", "/server_ns"]);
    let through = results["runs"].as_array().unwrap().iter().find(|run| run["way"] == "broker").unwrap();
    assert!(through["broker_ns"].as_f64().unwrap() > 0.0, "{through}");
}

fn recovery(results: &Value) {
    rows(results, &["/live_mib", "/seconds", "/peak_mib"]);
}

fn delay(results: &Value) {
    rows(results, &["/p50_ms", "/p99_ms", "/events"]);
}

fn sets(results: &Value) {
    // Groups of processes need root and the cpu controller.
    if results["scaling"]["skipped"].is_null() {
        let figures = ["/durable_per_s", "/sealed_per_s", "/server_ns", "/player_ns", "/cost_ratio/median"];
        let sets = rows(&results["scaling"]["sets"], &figures);
        assert_eq!(sets.len(), 3, "{sets:#?}");
    }
    let commands = rows(&results["reading"], &["/rows", "/set_per_s", "/one_per_s", "/ratio/median"]);
    assert_eq!(commands.len(), 2, "{commands:#?}");
    assert_eq!(rows(&results["following"], &["/p50_ms", "/p99_ms", "/events"]).len(), 2);
}

fn distributed(results: &Value) {
    // Groups of processes need root and the cpu controller.
    if results["skipped"].is_null() {
        assert_eq!(rows(&results["queries"], &["/one_s", "/all_s", "/ratio/median"]).len(), 3);
    }
}

fn store(results: &Value) {
    assert!(results["skipped"].is_null(), "tests/setup.sh installs rclone and DuckDB");
    let loads = rows(&results["loads"], &["/rate"]);
    let figures = ["/events", "/mib", "/store_s", "/table_s"];
    let parts = loads.iter().map(|load| rows(&load["parts"], &figures).len());
    assert_eq!(parts.collect::<Vec<_>>(), [2, 1]);
}

fn fsstats(results: &Value) {
    let rows = results.as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["names_per_s"].as_f64().unwrap() > 0.0, "{row}");
        // Files, 113 directories of eight, 13 of nine of those.
        assert_eq!(row["names"], 900 + 113 + 13);
    }
}

fn replay(results: &Value) {
    let rows = rows(results, &["/requests", "/trace_s", "/replay_s", "/late_p50_us"]);
    assert_eq!(rows.len(), 3);
}

fn paper(results: &Value) {
    let response = &results["response"];
    let figures = ["/line/median", "/format/median", "/write/median", "/raw/median", "/ratio/low"];
    rows(&Value::Array(vec![response.clone()]), &figures);
    assert_eq!(rows(&response["parts"], &["/cycles/repetitions"]).len(), 8, "{response:#}");
    let passes = rows(&results["passes"], &["/bytes"]);
    for pass in passes {
        assert_eq!(rows(&pass["ways"], &["/seconds"]).len(), 6, "{pass:#}");
    }
    for service in ["as in the paper", "undelayed"] {
        assert_eq!(passes.iter().filter(|pass| pass["service"] == service).count(), 4, "{service}");
    }
    assert_eq!(rows(&results["cpu"], &["/mean/repetitions", "/transfers/0/records"]).len(), 2);
    assert!(results["events"].as_u64().is_some_and(|events| events > 1000), "nothing was recorded");
}

fn analysis(results: &Value) {
    let positive = ["/seconds/median", "/peak_mib", "/events_per_s"];
    let analyses = rows(&results["analyses"], &positive);
    assert!(
        analyses.iter().any(|row| row["name"] == "stat")
            && analyses.iter().any(|row| row["name"] == "report")
    );
    // Results of both engines were compared.
    let queries = rows(&results["queries"], &positive);
    assert_eq!(queries.iter().filter(|row| row["by"] == "DuckDB").count(), 4, "{queries:#?}");
    for trace in rows(&results["traces"], &["/events", "/mib"]) {
        assert!(trace["parts"].as_u64().is_some_and(|parts| parts > 1), "{trace:#}");
    }
}

fn python(results: &Value) {
    assert!(results["skipped"].is_null(), "tests/setup.sh installs its environment");
    let regions = rows(&results["regions"]["rows"], &["/empty_ns", "/region_ns", "/regions"]);
    assert_eq!(regions.len(), 6, "three ways of two kinds: {regions:#?}");
    for row in regions {
        let expected = if row["way"] == "recorded" { &row["regions"] } else { &Value::from(0) };
        assert_eq!(row["recorded"], *expected, "{row:#}");
    }
    assert!(results["tracers"]["skipped"].is_null(), "tests/setup.sh installs DFTracer");
    let tracers = rows(&results["tracers"]["rows"], &["/call_ns", "/calls"]);
    for (run, miot, dftracer) in
        [("plain", false, false), ("miot", true, false), ("dftracer", false, true), ("both", true, true)]
    {
        let row = tracers.iter().find(|row| row["run"] == run).unwrap();
        let expected = |is_there: bool| if is_there { row["calls"].clone() } else { Value::Null };
        assert_eq!(row["recorded"]["miot"], expected(miot), "{row:#}");
        assert_eq!(row["recorded"]["dftracer"], expected(dftracer), "{row:#}");
    }
    let reading = rows(&results["reading"]["comparisons"], &["/rows", "/miot/seconds", "/ratio"]);
    assert_eq!(reading.len(), 4, "{reading:#?}");
    assert!(results["reading"]["streamed"]["rows"].as_u64() >= Some(20_000), "{results:#}");
}

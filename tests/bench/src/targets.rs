//! Targets of the design, and whether the figures meet them.

use crate::report::{Group, groups};
use serde_json::Value;
use std::fmt::Write as _;

/// A target and its measured value.
struct Target {
    what: &'static str,
    wanted: String,
    /// `None`: not measured.
    found: Option<Found>,
    met: fn(f64) -> bool,
    command: &'static str,
}

/// A measured value.
struct Found {
    value: f64,
    unit: &'static str,
    /// Bounds of its 95 % interval, if it has one.
    interval: Option<[f64; 2]>,
}

impl From<(f64, &'static str)> for Found {
    fn from((value, unit): (f64, &'static str)) -> Found {
        Found { value, unit, interval: None }
    }
}

impl Found {
    /// Returns a median and its interval.
    fn of(median: &Value, unit: &'static str) -> Option<Found> {
        let interval = median["low"].as_f64().zip(median["high"].as_f64());
        Some(Found {
            value: median["median"].as_f64()?,
            unit,
            interval: interval.map(|(low, high)| [low, high]),
        })
    }

    fn format(&self, value: f64) -> String {
        let decimals = match value.abs() {
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        format!("{value:.decimals$}")
    }

    /// Whether the target is met. If its limit lies in the interval, the run cannot tell.
    fn verdict(&self, met: fn(f64) -> bool) -> String {
        match self.interval {
            Some([low, high]) if met(low) != met(high) => {
                format!("not resolved: {} to {}", self.format(low), self.format(high))
            }
            _ if met(self.value) => "met".into(),
            _ => "**not met**".into(),
        }
    }
}

/// Returns the table of all targets. `found` returns the results of a benchmark, if it has run.
pub(crate) fn table<'a>(found: &dyn Fn(&str) -> Option<&'a Value>) -> String {
    let mut targets = Vec::new();
    recording(found("op"), &mut targets);
    targets.push(Target {
        what: "1 to 64 threads: dearest beside cheapest",
        wanted: "≤ 1.1 ×".into(),
        found: found("threads").and_then(|all| spread(&all["results"])).map(|spread| (spread, "×").into()),
        met: |x| x <= 1.1,
        command: "threads",
    });
    drain(found("drain"), &mut targets);
    idle(found("idle"), &mut targets);
    startup(found("startup"), &mut targets);
    hook(found("hook"), &mut targets);
    apps(found("apps"), &mut targets);
    pipeline(found("pipeline"), &mut targets);
    let delay = found("delay").and_then(|all| {
        all["results"].as_array()?.iter().filter_map(|row| row["p99_ms"].as_f64()).reduce(f64::max)
    });
    targets.push(Target {
        what: "completion to `miot tail`, 99th percentile",
        wanted: "≤ 100 ms".into(),
        found: delay.map(|p99| (p99, "ms").into()),
        met: |x| x <= 100.0,
        command: "delay",
    });
    targets.push(Target {
        what: "events/s through a broker, beside TCP",
        wanted: "≥ 0.7 ×".into(),
        found: found("broker").and_then(|all| all["rate_ratio"].as_f64()).map(|ratio| (ratio, "×").into()),
        met: |x| x >= 0.7,
        command: "broker",
    });
    analysis(found("analysis"), &mut targets);

    let mut text = String::from("| what | target | found | | command |\n|---|---|--:|---|---|\n");
    for target in targets {
        let (value, verdict) = match target.found {
            Some(found) => {
                (format!("{} {}", found.format(found.value), found.unit), found.verdict(target.met))
            }
            None => ("–".into(), "not measured".into()),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {value} | {verdict} | `run.sh {}` |",
            target.what, target.wanted, target.command
        );
    }
    text + &bounds(found("op")).unwrap_or_default()
}

fn recording(all: Option<&Value>, targets: &mut Vec<Target>) {
    let way = |key: &str| {
        let ways = all?["results"]["ways"].as_array()?;
        ways.iter().find(|way| way["key"] == key)
    };
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "op" });
    };
    let ns = |key: &str| Found::of(&way(key)?["ns"], "ns");
    let times_miot = |key: &str| Found::of(&way(key)?["times_miot"], "×");
    push(
        "one recorded operation, beside the floor",
        "≤ 1.2 ×",
        way("miot").and_then(|way| Found::of(&way["times_floor"], "×")),
        |x| x <= 1.2,
    );
    push(
        "instructions of begin + end",
        "≤ 120",
        way("miot").and_then(|way| way["instructions"].as_f64()).map(|x| (x, "").into()),
        |x| x <= 120.0,
    );
    push("LTTng-UST begin + end, beside MIOT", "≥ 10 ×", times_miot("lttng"), |x| x >= 10.0);
    push("formatted logging to disk, beside MIOT", "≥ 100 ×", times_miot("formatted-disk"), |x| {
        x >= 100.0
    });
    push("a full lane (drop and count), beside the normal path", "≤ 1 ×", times_miot("miot-full"), |x| {
        x <= 1.0
    });
    push("compiled in, switched off", "≤ 2 ns", ns("miot-off"), |x| x <= 2.0);
    push("compiled in, no log-client on the node", "≤ 2 ns", ns("miot-dormant"), |x| x <= 2.0);
}

fn analysis(all: Option<&Value>, targets: &mut Vec<Target>) {
    let rows = |name: &str| all.and_then(|all| all["results"][name].as_array()).into_iter().flatten();
    let figures = |name: &'static str| rows("analyses").filter_map(move |row| row[name].as_f64());
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "analysis" });
    };
    let slowest = figures("events_per_s").reduce(f64::min).map(|rate| (rate / 1e6, "M/s").into());
    push("slowest analysis of a long trace, events", "≥ 8 M/s", slowest, |x| x >= 8.0);
    let memory = figures("peak_mib").reduce(f64::max).map(|mib| (mib, "MiB").into());
    push("its memory", "≤ 512 MiB", memory, |x| x <= 512.0);
    let seconds = |row: &Value| row["seconds"]["median"].as_f64();
    let beside = rows("queries").filter(|row| row["by"] == "miot query").filter_map(|ours| {
        let is_same = |row: &&Value| {
            row["by"] == "DuckDB" && ["name", "events"].iter().all(|key| row[key] == ours[key])
        };
        Some(seconds(ours)? / seconds(rows("queries").find(is_same)?)?)
    });
    let beside = beside.reduce(f64::max).map(|times| (times, "×").into());
    push("`miot query` beside DuckDB, worst of four", "≤ 1 ×", beside, |x| x <= 1.0);
}

/// Bounds that the floor sets for targets that are ratios to a peer.
fn bounds(all: Option<&Value>) -> Option<String> {
    let ways = all?["results"]["ways"].as_array()?;
    let times_floor = |key: &str| {
        ways.iter().find(|way| way["key"] == key).and_then(|way| way["times_floor"]["median"].as_f64())
    };
    let peer = |what: &str, times: Option<f64>, wanted: f64| {
        let times = times.filter(|times| *times < wanted)?;
        Some(format!(
            "\n{what} costs {times:.1} × the floor on this processor, so nothing that reads the clock twice and stores a record \
             can be {wanted} × cheaper than it here.\n"
        ))
    };
    Some(
        [
            peer("LTTng-UST (begin and end)", times_floor("lttng"), 10.0),
            peer("Formatted logging", times_floor("formatted-disk"), 100.0),
        ]
        .into_iter()
        .flatten()
        .collect(),
    )
}

/// Ratio of the most expensive row to the cheapest.
fn spread(results: &Value) -> Option<f64> {
    let costs: Vec<f64> =
        results["threads"].as_object()?.values().filter_map(|row| row["miot"]["median"].as_f64()).collect();
    Some(costs.iter().copied().reduce(f64::max)? / costs.iter().copied().reduce(f64::min)?)
}

fn hook(all: Option<&Value>, targets: &mut Vec<Target>) {
    let row = |call: &str, key: &str| crate::hook::row(&all?["results"], call, key);
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "hook" });
    };
    let times_floor = |call| Found::of(&row(call, "hook")?["times_floor"], "×");
    push(
        "the `posix` hook, `pread`, beside a wrapper with 2 clock reads and a store",
        "≤ 1.15 ×",
        times_floor("pread"),
        |x| x <= 1.15,
    );
    push(
        "instructions that the `posix` hook adds to a `pread`",
        "≤ 130",
        row("pread", "hook").and_then(|row| row["added_instructions"].as_f64()).map(|x| (x, "").into()),
        |x| x <= 130.0,
    );
    for (what, call) in [
        ("the `posix` hook, `stat`, beside a wrapper that also stores the path", "stat"),
        ("the `posix` hook, `open` and `close`, beside a wrapper that also stores the path", "open"),
    ] {
        push(what, "≤ 1.5 ×", times_floor(call), |x| x <= 1.5);
    }
    for (what, key) in [
        ("the `posix` hook without a log-client, beyond a wrapper that only forwards", "dormant"),
        ("the `posix` hook switched off, beyond a wrapper that only forwards", "off"),
    ] {
        push(
            what,
            "≤ 2 ns",
            row("pread", key).and_then(|row| Found::of(&row["beyond_empty_ns"], "ns")),
            |x| x <= 2.0,
        );
    }
}

fn drain(all: Option<&Value>, targets: &mut Vec<Target>) {
    let rate = |key, threads| crate::drain::rate(&all?["results"], key, threads);
    for (what, threads) in [
        ("drain without loss beside LTTng's consumer, 2 threads", 2),
        ("drain without loss beside LTTng's consumer, 8 threads", 8),
    ] {
        targets.push(Target {
            what,
            wanted: "≥ 1 ×".into(),
            found: rate("alone", threads)
                .zip(rate("lttng", threads))
                .map(|(own, peer)| (own / peer, "×").into()),
            met: |x| x >= 1.0,
            command: "drain",
        });
    }
}

fn idle(all: Option<&Value>, targets: &mut Vec<Target>) {
    let with = |processes: u64, key: &str| {
        let loads = all?["results"]["loads"].as_array()?;
        loads.iter().find(|load| load["processes"] == processes)?[key].as_f64()
    };
    let at_20000 = || {
        let rates = all?["results"]["rates"].as_array()?;
        rates.iter().find(|row| row["rate"] == 20_000)?["client_ns"].as_f64()
    };
    let mut push = |what, wanted: &str, found: Option<f64>, unit, met: fn(f64) -> bool| {
        let found = found.map(|found| (found, unit).into());
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "idle" });
    };
    push("log-client, CPU per event at 20 000 events/s", "≤ 150 ns", at_20000(), "ns", |x| x <= 150.0);
    push(
        "log-client of an idle node, CPU",
        "≤ 0.1 % of a processor",
        with(0, "client_percent"),
        "%",
        |x| x <= 0.1,
    );
    push(
        "log-client, 500 idle processes × 8 threads, CPU",
        "≤ 0.5 % of a processor",
        with(500, "client_percent"),
        "%",
        |x| x <= 0.5,
    );
    push("their shared memory", "≤ 256 MiB", with(500, "shm_mib"), "MiB", |x| x <= 256.0);
}

fn startup(all: Option<&Value>, targets: &mut Vec<Target>) {
    let added = |key: &str| {
        let ways = all?["results"]["ways"].as_array()?;
        Found::of(&ways.iter().find(|way| way["key"] == key)?["added_us"], "µs")
    };
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "startup" });
    };
    push("added to a program that lives for a moment, recording", "≤ 60 µs", added("recording"), |x| {
        x <= 60.0
    });
    push("the same without a log-client", "≤ 35 µs", added("dormant"), |x| x <= 35.0);
}

/// Adds the most expensive program of each group.
fn apps(all: Option<&Value>, targets: &mut Vec<Target>) {
    let worst = |start: &str, place: &str| {
        let rows = all?["results"]["programs"].as_array()?.iter();
        let rows = rows.filter(|row| {
            row["place"] == place && row["what"].as_str().is_some_and(|what| what.contains(start))
        });
        rows.filter_map(|row| Found::of(&row["wall_percent"], "%"))
            .reduce(|worst, row| if row.value > worst.value { row } else { worst })
    };
    for (what, part, place) in [
        ("fio 4 KiB, GlusterFS: time in the call, worst of four", "fio", "GlusterFS"),
        ("fio 4 KiB direct, ext4: time in the call, worst of two", "direct", "ext4"),
        ("fio 4 KiB in the page cache, ext4: worst of two", "page cache", "ext4"),
        ("metadata storm, GlusterFS", "unlink", "GlusterFS"),
        ("metadata storm, ext4", "unlink", "ext4"),
        ("`git status` of 50 000 files, ext4", "git", "ext4"),
        ("sqlite3, ext4", "sqlite3", "ext4"),
    ] {
        targets.push(Target {
            what,
            wanted: "≤ 0.5 %".into(),
            found: worst(part, place),
            met: |x| x <= 0.5,
            command: "apps",
        });
    }
}

fn pipeline(all: Option<&Value>, targets: &mut Vec<Target>) {
    let groups = all.map(|all| groups(&all["results"])).unwrap_or_default();
    let find =
        |who: &str, streams: u64| groups.iter().find(|group| group.who == who && group.streams == streams);
    let daemons = |group: &Group<'_>| {
        Some(group.median("client_ns")? + group.median("server_ns")? + group.median("ordering_ns")?)
    };
    let (own, peer) = (find("MIOT", 16), find("LTTng-UST, relay daemon", 16));
    let rate = |group: Option<&Group<'_>>| group?.median("events_per_s");
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "pipeline" });
    };
    push(
        "CPU of the log-client per event, 16 streams",
        "≤ 40 ns",
        own.and_then(|own| own.median("client_ns")).map(|x| (x, "ns").into()),
        |x| x <= 40.0,
    );
    push(
        "CPU of log-client and log-server per event, sealed",
        "≤ 200 ns",
        own.and_then(daemons).map(|x| (x, "ns").into()),
        |x| x <= 200.0,
    );
    push(
        "the same of LTTng with relay and babeltrace2, beside MIOT",
        "≥ 3 ×",
        peer.and_then(daemons).zip(own.and_then(daemons)).map(|(peer, own)| (peer / own, "×").into()),
        |x| x >= 3.0,
    );
    push(
        "events per second to ordered files, 16 streams",
        "≥ 3 M/s",
        rate(own).map(|x| (x / 1e6, "M/s").into()),
        |x| x >= 3.0,
    );
    push(
        "the same beside LTTng with ordering, 16 streams",
        "≥ 2 ×",
        rate(own).zip(rate(peer)).map(|(own, peer)| (own / peer, "×").into()),
        |x| x >= 2.0,
    );
    push(
        "bytes per event, sealed, sequential reads",
        "≤ 6",
        own.and_then(|own| own.median("final_bytes")).map(|x| (x, "bytes").into()),
        |x| x <= 6.0,
    );
    let mixed = find("MIOT, mixed requests", 2).and_then(|own| own.median("final_bytes"));
    push(
        "bytes per event, sealed, random mixed requests",
        "≤ 6",
        mixed.map(|x| (x, "bytes").into()),
        |x| x <= 6.0,
    );
}

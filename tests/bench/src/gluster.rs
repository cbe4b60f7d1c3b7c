//! `gluster`: overhead of the translator in a GlusterFS mount. One volume is mounted three times:
//! plain, with the translator without a log-client, and with the translator recording.
//!
//! The three run in turn, and the order reverses with each round. The overhead is the median over
//! the rounds of the ratio to the plain mount of the same round, with its 95 % interval.

use crate::apps::mounts::{Gluster, Mount};
use crate::apps::programs::{self, App, Judged, Length, Made, Measure, Took, once};
use crate::apps::{available, quiet};
use crate::daemons::{self, Daemons};
use crate::played::{Recorded, recorded_in};
use crate::report::{interval, number};
use crate::stats::{Repeat, Summary, median_with_interval};
use crate::{Bench, pipeline, worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Mounts, by their names in the table.
const WAYS: [&str; 3] = ["plain", "dormant", "recording"];

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    // As in `apps`: takes longer than all the rest of a smoke run.
    if bench.is_smoke() {
        return Ok(json!({ "programs": [] }));
    }
    let dir = bench.disk.path();
    let translator = translator(dir)?;
    let daemons = Daemons::start(&dir.join("daemons"), &bench.memory.path().join("node"), "drop-newest")?;
    let Some(gluster) = available("GlusterFS", Gluster::mount(dir)) else {
        daemons.stop()?;
        return Ok(json!({ "programs": [] }));
    };
    let nobody = dir.join("no-log-client");
    let mounts = [
        gluster.mount_again(&dir.join("dormant"), &translator, &nobody)?,
        gluster.mount_again(&dir.join("recording"), &translator, daemons.node())?,
    ];
    let dirs = [gluster.dir(), mounts[0].dir(), mounts[1].dir()];
    println!(
        "{:46} {:>12} {:>10} {:>18} {:>10} {:>18}",
        "program", "plain", "dormant %", "95 % interval", "recording %", "95 % interval"
    );
    let mut results = Vec::new();
    for what in ["fio, random read, direct", "fio, random write, direct"] {
        let apps =
            dirs.map(|dir| programs::fio(bench, "GlusterFS", dir).into_iter().find(|app| app.what == what));
        let [Some(plain), Some(dormant), Some(recording)] = apps else { continue };
        let repeat = programs::repeat(bench, 1.0, 35);
        results.push(compare(&[plain, dormant, recording], &repeat, &daemons)?);
    }
    let storm = worker::compile("storm", dir, &[])?;
    let apps = dirs.map(|dir| storms(bench, &storm, dir));
    results.push(compare(&apps, &apps[0].repeat, &daemons)?);
    drop::<[Mount; 2]>(mounts);
    drop(gluster);
    let trace = daemons.trace().to_path_buf();
    daemons.stop()?;
    let rows = pipeline::count(&trace)?;
    ensure!(rows.events > 0, "the translator has recorded nothing");
    ensure!(recorded_in(&nobody) == Recorded::default(), "the dormant translator has recorded");
    Ok(json!({ "programs": results, "events": rows.events, "lost": rows.lost }))
}

/// Builds the translator with the library that was built with this program.
fn translator(dir: &Path) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tracer-client/hooks/gluster/build.sh");
    let made = dir.join("miot.so");
    let built = Command::new(script).arg(daemons::built("libmiot.a")?).arg(&made).output()?;
    ensure!(built.status.success(), "miot.so: {}", String::from_utf8_lossy(&built.stderr));
    Ok(made)
}

/// Creates, stats and removes files from many processes.
fn storms(bench: &Bench, program: &Path, dir: &Path) -> App {
    const PROCESSES: u64 = 16;
    let files = bench.pick(5_000, 500, 100);
    let (program, folder) = (program.to_path_buf(), dir.join("storm"));
    let made = folder.clone();
    App {
        what: format!("create, stat, unlink of {files} files by {PROCESSES} processes"),
        place: "GlusterFS",
        repeat: programs::repeat(bench, 1.0, 60),
        judged: Judged::Percent,
        command: Box::new(move |_| {
            let mut command = Command::new(&program);
            command.arg(&folder).arg(files.to_string()).arg(PROCESSES.to_string());
            command
        }),
        reset: Box::new(move || Ok(std::fs::create_dir_all(&made)?)),
        measure: Measure::Process,
        requests: 3 * files,
    }
}

fn compare(apps: &[App; 3], repeat: &Repeat, daemons: &Daemons) -> Result<Value> {
    let before = daemons.records()?;
    let mut took = [const { Vec::<Took>::new() }; 3];
    let percent = |own: &[Took], plain: &[Took]| {
        let ratios = own.iter().zip(plain).map(|(own, plain)| (own.wall / plain.wall - 1.0) * 100.0);
        median_with_interval(&ratios.collect::<Vec<_>>())
    };
    let started = Instant::now();
    for round in 0.. {
        let recording = percent(&took[2], &took[0]);
        if round > 1 && repeat.is_enough(round - 1, started.elapsed(), &[recording]) {
            break;
        }
        let mut order = [0, 1, 2];
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let app = &apps[at];
            (app.reset)()?;
            quiet(daemons);
            let run = once((app.command)(Length::Timed), app.measure).with_context(|| app.what.clone())?;
            // The first round lays out files and warms caches.
            if round > 0 {
                took[at].push(run);
            }
        }
    }
    let runs = took[2].len() as u64 + 1;
    let made = Made { runs, requests: runs * apps[2].requests, more: None };
    let recorded = apps[2].expect_recorded(daemons.records()? - before, made)?;
    let walls: Vec<_> =
        took.iter().map(|runs| Summary::of(runs.iter().map(|run| run.wall).collect())).collect();
    let row = json!({
        "what": apps[0].what, "unit": apps[0].measure.unit(), "ways": WAYS, "wall": walls,
        "dormant_percent": percent(&took[1], &took[0]), "recording_percent": percent(&took[2], &took[0]),
        "recorded": recorded,
    });
    let [dormant, recording] = [&row["dormant_percent"], &row["recording_percent"]];
    println!(
        "{:46} {:>12} {:>10} {:>18} {:>10} {:>18}",
        apps[0].what,
        number(&row["wall"][0]["median"], 0),
        number(&dormant["median"], 2),
        interval(dormant, 2),
        number(&recording["median"], 2),
        interval(recording, 2)
    );
    Ok(row)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| program | plain | unit | added by the translator, no log-client, % | 95 % interval | recording, % | 95 % interval |\n|---|--:|---|--:|--:|--:|--:|\n",
    );
    for row in results["programs"].as_array().into_iter().flatten() {
        let [dormant, recording] = [&row["dormant_percent"], &row["recording_percent"]];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row["what"].as_str().unwrap_or(""),
            number(&row["wall"][0]["median"], 0),
            row["unit"].as_str().unwrap_or(""),
            number(&dormant["median"], 2),
            interval(dormant, 2),
            number(&recording["median"], 2),
            interval(recording, 2)
        );
    }
    let _ = writeln!(
        text,
        "\n{} events recorded, {} lost (policy `drop-newest`).",
        results["events"], results["lost"]
    );
    text
}

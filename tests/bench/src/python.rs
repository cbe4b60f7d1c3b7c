//! `python`: the Python package. Cost of a region, of a call beside DFTracer, and of reading a
//! trace beside pyarrow and the tool.
//!
//! Scripts of `python/tests` measure. Each compares variants in turns, and fails if a tracer did
//! not record what its row states.

use crate::Bench;
use crate::analysis::synthetic;
use crate::daemons::built;
use crate::report::number;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Interpreter of the tests' environment, with pyarrow.
const PYTHON: &str = "target/test-venv/bin/python";
/// Folder of DFTracer's environment.
const DFTRACER: &str = "target/test-dftracer/lib";

/// An interpreter and a folder with the package that was built with this program.
struct Package {
    python: PathBuf,
    site: PathBuf,
}

impl Package {
    fn new(python: PathBuf, bench: &Bench) -> Result<Package> {
        let site = bench.disk.path().join("python");
        let package = site.join("miot");
        std::fs::create_dir_all(&package)?;
        for entry in std::fs::read_dir(root().join("python/miot"))? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.is_file()) {
                std::fs::copy(&path, package.join(name))?;
            }
        }
        std::fs::copy(built("lib_miot.so")?, package.join("_miot.abi3.so"))?;
        Ok(Package { python, site })
    }

    /// Runs a script of `python/tests`. Returns what it writes as JSON.
    fn measure(&self, script: &str, arguments: &[&str]) -> Result<Value> {
        let json = self.site.join(script).with_extension("json");
        let mut command = Command::new(&self.python);
        command.arg(root().join("python/tests").join(script)).args(arguments).arg("--json").arg(&json);
        command.env("PYTHONPATH", &self.site).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("MIOT_BIN_DIR", built("miot")?.parent().context("a folder")?);
        ensure!(command.status().with_context(|| format!("{command:?}"))?.success(), "{script} failed");
        Ok(serde_json::from_str(&std::fs::read_to_string(json)?)?)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library that DFTracer preloads.
fn dftracer() -> Option<PathBuf> {
    let versions = std::fs::read_dir(root().join(DFTRACER)).ok()?;
    let library = "site-packages/dftracer/lib64/libdftracer_preload.so";
    versions.filter_map(|version| Some(version.ok()?.path().join(library))).find(|path| path.exists())
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let python = root().join(PYTHON);
    if !python.exists() {
        eprintln!("python IS SKIPPED: {PYTHON} is missing; tests/setup.sh installs it");
        return Ok(json!({ "skipped": format!("{PYTHON} is missing") }));
    }
    let package = Package::new(python, bench)?;
    let (rounds, loops) = bench.pick(("5", "200"), ("3", "60"), ("1", "2"));
    let regions = package.measure("region_cost.py", &["--rounds", rounds, "--loops", loops])?;
    let tracers = match dftracer() {
        Some(library) => {
            let library = library.to_str().context("a path in UTF-8")?;
            let bursts = bench.pick("50", "20", "2");
            package
                .measure("tracer_cost.py", &["--dftracer", library, "--rounds", rounds, "--bursts", bursts])?
        }
        None => {
            eprintln!("python beside DFTracer IS SKIPPED: {DFTRACER} has none; tests/setup.sh installs it");
            json!({ "skipped": "DFTracer is not installed" })
        }
    };
    let events = bench.pick(10_000_000, 1_000_000, 20_000);
    let trace = bench.disk.path().join("python-trace");
    synthetic::write(&trace, events)?;
    let repetitions = bench.pick("5", "3", "1");
    // Its limit is for its own use.
    let trace_path = trace.to_str().context("a path in UTF-8")?;
    let reading = package.measure("speed.py", &[trace_path, repetitions, "--least", "0"])?;
    std::fs::remove_dir_all(trace)?;
    Ok(json!({ "regions": regions, "tracers": tracers, "reading": reading }))
}

/// The median time of a region beyond an empty context manager, in nanoseconds.
pub(crate) fn region_ns(results: &Value, way: &str) -> Option<f64> {
    let rows = results["regions"]["rows"].as_array()?;
    rows.iter().find(|row| row["way"] == way && row["kind"] == "created")?["beyond_ns"].as_f64()
}

/// The least ratio to the speed of this program, of all comparisons of reading.
pub(crate) fn least_ratio(results: &Value, other: &str) -> Option<f64> {
    let rows = results["reading"]["comparisons"].as_array()?.iter();
    rows.filter(|row| row["other"] == other).filter_map(|row| row["ratio"].as_f64()).reduce(f64::min)
}

pub(crate) fn table(results: &Value) -> String {
    if let Some(reason) = results["skipped"].as_str() {
        return format!("Not measured: {reason}.\n");
    }
    let mut text = regions_table(&results["regions"]);
    text += "\n";
    text += &tracers_table(&results["tracers"]);
    text += "\n| reading | rows | `miot`, s | other, s | times its speed |\n|---|--:|--:|--:|--:|\n";
    for row in results["reading"]["comparisons"].as_array().into_iter().flatten() {
        let other = row["other"].as_str().unwrap_or_default();
        let _ = writeln!(
            text,
            "| {}, beside {} | {} | {} | {} | {} |",
            row["name"].as_str().unwrap_or_default(),
            if other == "tool" { "`miot stat`" } else { other },
            row["rows"],
            number(&row["miot"]["seconds"], 2),
            number(&row[other]["seconds"], 2),
            number(&row["ratio"], 2),
        );
    }
    let streamed = &results["reading"]["streamed"];
    let _ = writeln!(
        text,
        "\nAll {} rows in batches: {} s, at most {} MiB of memory.",
        streamed["rows"],
        number(&streamed["seconds"], 2),
        streamed["mib"]
    );
    text
}

fn regions_table(regions: &Value) -> String {
    let mut text = format!(
        "Python {}; nanoseconds; `created` is `with miot.region(\"step\", step=n)`, `entered` is `with` an existing \
         region.\n\n\
         | region | empty context manager | region | beyond | regions | recorded |\n|---|--:|--:|--:|--:|--:|\n",
        regions["python"].as_str().unwrap_or("?")
    );
    for row in regions["rows"].as_array().into_iter().flatten() {
        let way = match row["way"].as_str() {
            Some("none") => "no tracer",
            Some("dormant") => "tracer preloaded, nothing recorded",
            _ => "recorded",
        };
        let _ = writeln!(
            text,
            "| {}, {way} | {} | {} | {} | {} | {} |",
            row["kind"].as_str().unwrap_or_default(),
            number(&row["empty_ns"], 0),
            number(&row["region_ns"], 0),
            number(&row["beyond_ns"], 0),
            row["regions"],
            row["recorded"],
        );
    }
    text
}

fn tracers_table(tracers: &Value) -> String {
    if let Some(reason) = tracers["skipped"].as_str() {
        return format!("A call beside DFTracer was not measured: {reason}.\n");
    }
    let mut text = String::from(
        "| a call of `os.pread` | ns | beyond plain | calls | recorded by MIOT | by DFTracer |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    for row in tracers["rows"].as_array().into_iter().flatten() {
        let run = match row["run"].as_str() {
            Some("miot") => "MIOT",
            Some("dftracer") => "DFTracer",
            other => other.unwrap_or_default(),
        };
        let recorded =
            |by: &str| row["recorded"][by].as_u64().map_or("–".into(), |count| count.to_string());
        let _ = writeln!(
            text,
            "| {run} | {} | {} | {} | {} | {} |",
            row["call_ns"],
            row["beyond_ns"],
            row["calls"],
            recorded("miot"),
            recorded("dftracer")
        );
    }
    text
}

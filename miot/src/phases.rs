//! `miot phases`: the I/O phases of a parallel application.

mod plot;

use crate::output::Out;
use crate::source::{Progress, Source};
use crate::summary::bytes;
use anyhow::Context as _;
use clap::Args;
use miot_proto::units::parse_duration;
use miot_trace_analysis::model::{Model, Operation, Phase, RELEVANT, Sharing, Space, Ticks};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{printable, table};
use miot_trace_results::phases::{self, PhaseSelection};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Find the I/O phases of a parallel application: accesses of its processes to a file without
/// communication in between
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot run --communication -o trace -- mpiexec -n 16 ./solver\n  miot phases trace\n  miot phases trace --all --format csv > phases.csv\n  miot phases trace --plot phases.svg\n\n\
Columns: rs: bytes of a request; rep: requests of a process in a phase; weight: bytes of a phase over all processes; offset: first \
request of a process, where p is the position among the processes and ph the number of the phase. Rules: docs/guide/phases.md."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    choice: PhaseFilter,
    /// Also print phases that took less than 1 % of the application's time
    #[arg(long)]
    all: bool,
    /// Write a plot of the phases over logical time and file offset (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Options that select the requests of phases.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PhaseFilter {
    /// Layer of the requests: mpi-io, posix, stdio, fuse, client [default: mpi-io if there is any,
    /// else posix, else stdio]
    #[arg(long, value_name = "NAME")]
    layer: Option<String>,
    /// Only files whose path matches this glob; `*` does not match `/`, `**` does
    #[arg(long, value_name = "GLOB")]
    path: Option<String>,
    /// Time without requests that ends a phase of a process, e.g. 100ms; for traces without
    /// communication
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    gap: Option<Duration>,
}

/// Computes the model of a trace.
pub(crate) fn model(source: &Source, choice: &PhaseFilter) -> anyhow::Result<Model> {
    let (reader, progress) = (source.open()?, Progress::default());
    let selection =
        PhaseSelection { layer: choice.layer.clone(), path: choice.path.clone(), gap: choice.gap };
    Ok(phases::model(&source.input(&reader, &progress), &source.dir, &selection)?)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let model = model(&arguments.source, &arguments.choice)?;
    if let Some(file) = &arguments.plot {
        std::fs::write(file, plot::svg(&model))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut out = Out::new(arguments.format == Format::Json);
    match arguments.format {
        Format::Text => text(&model, arguments.all, &mut out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &model)?;
            writeln!(out)?;
        }
        Format::Csv => records(&mut out, Format::Csv, true, model.phases.iter().flat_map(rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(model: &Model, all: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let count: u64 = model.phases.iter().map(Phase::count).sum();
    writeln!(
        out,
        "{}: {count} phases in {} of {} processes, layer {}",
        printable(&model.application),
        families(model.phases.len()),
        model.processes,
        model.layer
    )?;
    writeln!(
        out,
        "{}",
        match model.ticks {
            Ticks::Communication => "logical time: communication of MPI",
            Ticks::Collective =>
                "logical time: collective calls of MPI-IO, the only communication in the trace (miot run --communication records all of it)",
            Ticks::Requests =>
                "logical time: requests by process and time, since no communication was traced (miot run --communication)",
        }
    )?;
    for reason in &model.uncertain {
        writeln!(out, "uncertain: {reason}")?;
    }
    for unknown in model.unplaced() {
        writeln!(out, "incomplete: {unknown}")?;
    }
    let (shown, hidden): (Vec<&Phase>, Vec<&Phase>) =
        model.phases.iter().partition(|phase| all || phase.is_relevant());
    let header = [
        "phases",
        "file",
        "processes",
        "operation",
        "mode",
        "rs",
        "rep",
        "weight",
        "offset",
        "displacement",
        "time",
        "share",
        "MiB/s",
    ];
    let lines = shown.iter().flat_map(|phase| lines(phase)).collect();
    writeln!(out)?;
    table(out, header.map(str::to_owned), lines)?;
    if !hidden.is_empty() {
        let count: u64 = hidden.iter().map(|phase| phase.count()).sum();
        writeln!(
            out,
            "\n{count} more phases in {} took less than {} % of the time each: --all",
            families(hidden.len()),
            RELEVANT * 100.0
        )?;
    }
    Ok(())
}

fn families(count: usize) -> String {
    if count == 1 { "1 family".into() } else { format!("{count} families") }
}

/// Returns the table rows of a family: one per operation.
fn lines(phase: &Phase) -> Vec<[String; 13]> {
    let mut lines = Vec::new();
    for (nth, operation) in phase.operations.iter().enumerate() {
        let first = |cell: String| if nth == 0 { cell } else { String::new() };
        let measured = phase.measured.unwrap_or_default();
        let mark = if phase.uncertain { "?" } else { "" };
        lines.push([
            first(format!("{}{mark}", phase.numbers)),
            first(file(phase)),
            first(phase.processes.to_string()),
            kind(operation),
            operation.mode.name().to_owned(),
            range(operation.size, operation.sizes),
            range(operation.repetitions, operation.repetitions_between),
            first(bytes(phase.weight)),
            offset(operation),
            displacement(operation),
            first(format!("{:.3}s", measured.seconds)),
            first(format!("{:.1}%", measured.share * 100.0)),
            first(format!("{:.1}", measured.bytes_per_second / f64::from(1 << 20))),
        ]);
    }
    lines
}

/// Returns the file name and how processes share the file.
fn file(phase: &Phase) -> String {
    let path = printable(&phase.file).into_owned();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    match (phase.sharing, phase.file_per_phase) {
        (Sharing::Shared, false) => name,
        (Sharing::Shared, true) => format!("{name} (one a phase)"),
        (Sharing::Unique, false) => format!("{name} (one a process)"),
        (Sharing::Unique, true) => format!("{name} (one a process and phase)"),
    }
}

/// Describes the kind of calls.
pub(crate) fn kind(operation: &Operation) -> String {
    let mut words = vec![name(&operation.direction)];
    if operation.collective {
        words.push("collective".into());
    }
    if operation.nonblocking {
        words.push("non-blocking".into());
    }
    words.push(name(&operation.pointer));
    words.join(" ")
}

/// Returns a value's name in the model file.
pub(crate) fn name(value: &impl Serialize) -> String {
    serde_json::to_string(value).map_or_else(|_| "?".into(), |text| text.trim_matches('"').to_owned())
}

fn range(mean: u64, between: Option<(u64, u64)>) -> String {
    between.map_or_else(|| mean.to_string(), |(least, most)| format!("{least}..{most}"))
}

/// Formats the initial offset, with its unit if not bytes of the file.
fn offset(operation: &Operation) -> String {
    let space = match operation.space {
        Space::File => "",
        Space::Pieces => " (pieces)",
        Space::View => " (view)",
    };
    formula(operation) + space
}

/// Formats the initial offset as a function of process and phase.
pub(crate) fn formula(operation: &Operation) -> String {
    let initial = operation.offset.to_string();
    let each = &operation.offset_per_phase;
    if each.is_zero() {
        return initial;
    }
    let each = each.to_string();
    let each = if each.contains(' ') { format!("({each})") } else { each };
    let step = format!("{each}*(ph - 1)");
    if initial == "0" { step } else { format!("{initial} + {step}") }
}

/// Formats the displacement from request to request, innermost loop first.
pub(crate) fn displacement(operation: &Operation) -> String {
    let mut parts: Vec<String> =
        operation.displacement.iter().map(|it| format!("{} x {}", it.count, it.stride)).collect();
    if !operation.restarts.is_empty() {
        parts.push(format!("{} places", operation.restarts.len()));
    }
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

/// CSV row of an operation of a family.
#[derive(Serialize)]
struct PhaseRow {
    phases: String,
    count: u64,
    file: String,
    sharing: Sharing,
    processes: String,
    np: u64,
    operation: usize,
    direction: String,
    mode: &'static str,
    pointer: String,
    collective: bool,
    nonblocking: bool,
    etype: u64,
    rs: u64,
    rep: u64,
    weight: u64,
    space: Space,
    offset: String,
    displacement: String,
    seconds: Option<f64>,
    share: Option<f64>,
    bytes_per_second: Option<f64>,
    relevant: bool,
    uncertain: bool,
}

fn rows(phase: &Phase) -> Vec<PhaseRow> {
    let measured = phase.measured;
    let row = |(nth, operation): (usize, &Operation)| PhaseRow {
        phases: phase.numbers.to_string(),
        count: phase.count(),
        file: phase.file.clone(),
        sharing: phase.sharing,
        processes: phase.processes.to_string(),
        np: phase.processes.len(),
        operation: nth + 1,
        direction: name(&operation.direction),
        mode: operation.mode.name(),
        pointer: name(&operation.pointer),
        collective: operation.collective,
        nonblocking: operation.nonblocking,
        etype: operation.etype,
        rs: operation.size,
        rep: operation.repetitions,
        weight: phase.weight,
        space: operation.space,
        offset: offset(operation),
        displacement: displacement(operation),
        seconds: measured.map(|measured| measured.seconds),
        share: measured.map(|measured| measured.share),
        bytes_per_second: measured.map(|measured| measured.bytes_per_second),
        relevant: phase.is_relevant(),
        uncertain: phase.uncertain,
    };
    phase.operations.iter().enumerate().map(row).collect()
}

//! Describes a model as text.

use crate::phases::{formula, name};
use crate::summary::bytes;
use miot_trace_analysis::model::{
    Loop, Mode, Model, Operation, Phase, Pieces, Pointer, Sharing, Space, Ticks,
};
use miot_trace_events::text::printable;
use std::io::{self, Write};

/// Maximum number of start offsets of pieces that are listed.
const SHOWN: usize = 4;

pub(crate) fn write(model: &Model, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{} ran as {} processes.", printable(&model.application), model.processes)?;
    match model.ticks {
        Ticks::Communication => {
            writeln!(out, "Its phases are the requests between two communications of a process.")?
        }
        Ticks::Collective => writeln!(
            out,
            "Its phases are the requests between two collective MPI-IO calls of a process; no other communication is in the trace."
        )?,
        Ticks::Requests => writeln!(
            out,
            "No communication was recorded: its phases are requests with the same pattern, and one may combine several real phases."
        )?,
    }
    for reason in &model.uncertain {
        writeln!(out, "Uncertain: {reason}.")?;
    }
    for unknown in model.unplaced() {
        writeln!(out, "Incomplete: {unknown}.")?;
    }
    model.phases.iter().try_for_each(|phase| explain(phase, out))
}

fn explain(phase: &Phase, out: &mut impl Write) -> io::Result<()> {
    let (count, np) = (phase.count(), phase.processes.len());
    let title = if count == 1 { "Phase" } else { "Phases" };
    let mark = if phase.uncertain { " (uncertain)" } else { "" };
    writeln!(out, "\n{title} {}{mark}", phase.numbers)?;
    let whose = match (phase.sharing, np) {
        (Sharing::Unique, 2..) => "each process has its own file",
        (Sharing::Unique, _) => "used by one process",
        (Sharing::Shared, _) => "shared",
    };
    let each = if phase.file_per_phase { ", another in each phase" } else { "" };
    writeln!(out, "  file        {}: {whose}{each}", printable(&phase.file))?;
    writeln!(out, "  processes   {} ({np})", phase.processes)?;
    for operation in &phase.operations {
        let sizes = operation.sizes.map_or_else(String::new, |(least, most)| format!(" ({least} to {most})"));
        let counts = operation
            .repetitions_between
            .map_or_else(String::new, |(least, most)| format!(" ({least} to {most})"));
        writeln!(
            out,
            "  operation   {} {}{counts} times {} bytes{sizes}, {}",
            name(&operation.direction),
            operation.repetitions,
            operation.size,
            words(operation)
        )?;
        writeln!(out, "  within      {}", within(operation))?;
        writeln!(out, "  begins      {}", begins(operation))?;
        for pieces in &operation.pieces {
            writeln!(out, "  pieces      {}", shown(pieces))?;
        }
    }
    let operations: Vec<String> =
        phase.operations.iter().map(|op| format!("{np} x {} x {}", op.repetitions, op.size)).collect();
    writeln!(
        out,
        "  weight      {} a phase, {} in all (np x rep x rs = {})",
        bytes(phase.weight),
        bytes(phase.weight.saturating_mul(count)),
        operations.join(" + ")
    )?;
    let Some(measured) = phase.measured else { return Ok(()) };
    writeln!(
        out,
        "  measured    {:.3} s, {:.1} % of the time, {:.1} MiB/s; {:.3} s without I/O before each; ticks {} to {}",
        measured.seconds,
        measured.share * 100.0,
        measured.bytes_per_second / f64::from(1 << 20),
        measured.pause_seconds,
        measured.ticks.0,
        measured.ticks.1
    )
}

/// Formats the paper's metadata of an operation.
fn words(operation: &Operation) -> String {
    let pointer = match operation.pointer {
        Pointer::Explicit => "explicit offset",
        Pointer::Individual => "individual file pointer",
        Pointer::Shared => "shared file pointer",
    };
    let collective = if operation.collective { "collective" } else { "independent" };
    let blocking = if operation.nonblocking { "non-blocking" } else { "blocking" };
    let etype =
        if operation.etype == 1 { String::new() } else { format!(", etype {} bytes", operation.etype) };
    format!("{collective}, {blocking}, {pointer}{etype}")
}

fn within(operation: &Operation) -> String {
    let mode = match operation.mode {
        Mode::Sequential => "sequential",
        Mode::Strided => "strided",
        Mode::Nested => "strided within strided",
        Mode::Random => return "at random places".into(),
        Mode::Unknown => return "wherever the shared pointer is".into(),
    };
    let level = |(nth, it): (usize, &Loop)| {
        let what = if nth == 0 { "requests" } else { "times that" };
        format!("{} {what} {} bytes apart", it.count, it.stride)
    };
    let mut parts = vec![mode.to_owned()];
    parts.extend(operation.displacement.iter().enumerate().map(level));
    if !operation.restarts.is_empty() {
        parts.push(format!("begun again at {} places", operation.restarts.len()));
    }
    parts.join("; ")
}

/// Formats the pieces of a request through a view.
fn shown(pieces: &Pieces) -> String {
    let level = |it: &Loop| format!("{} x {}", it.count, it.stride);
    let loops: Vec<String> = pieces.loops.iter().map(level).collect();
    let apart = if loops.is_empty() { String::new() } else { format!(", {} bytes apart", loops.join(", ")) };
    let begins: Vec<String> = pieces.begins.iter().take(SHOWN).map(|it| format!("({it})")).collect();
    let more = if pieces.begins.len() > SHOWN { " ..." } else { "" };
    format!(
        "a request is {} of {} bytes{apart}, from {}{more}",
        pieces.count(),
        pieces.bytes,
        begins.join(" ")
    )
}

fn begins(operation: &Operation) -> String {
    let space = match operation.space {
        Space::File => "of the file",
        Space::Pieces => "of the file, with the part of each process in one piece",
        Space::View => "of the view of the process",
    };
    match operation.mode {
        Mode::Random | Mode::Unknown => "-".into(),
        _ => format!("at byte {} {space}", formula(operation)),
    }
}

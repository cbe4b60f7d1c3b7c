//! Measures the phases of a model with `miot bench`.

use crate::bench;
use crate::bench::launched;
use anyhow::Context as _;
use miot_trace_analysis::model::estimate::{Bandwidth, Ior};
use miot_trace_analysis::model::{Direction, Loop, Mode, Model, Operation, Phase, Pieces, Space};
use miot_workload::coordinator::access_bandwidth;
use miot_workload::suite::{Cache, Interface, Operation as Kind, Sync, Verify};
use miot_workload::{LoopLevel, Pattern, RequestPart, Run, Suite};
use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::Path;

/// Options of the measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    pub(super) cache: Cache,
    pub(super) sync: Sync,
    pub(super) repetitions: usize,
    /// Command that starts MPI processes. With it, phases recorded in MPI-IO are measured in
    /// MPI-IO.
    pub(super) launcher: Option<&'a str>,
}

/// Maximum size of a process's buffer, bytes. Reads of 160 MiB into 64 MiB took 9 % longer than
/// into 160 MiB.
const MOST_MEMORY: u64 = 256 << 20;

/// Returns the measurement that reproduces an operation of a phase: with its own offsets where the
/// model has them, else by the same rules as the parameters of IOR. Random requests are spread over
/// the file, but issued in order.
fn run(phase: &Phase, operation: &Operation, layer: &str, options: Options<'_>) -> Run {
    let ior = Ior::of(phase, operation, layer);
    let (block, count) = (operation.size, operation.repetitions);
    let is_the_same_for_all = operation.offset.formula("p").is_some_and(|it| !it.contains('p'));
    let is_mpi_io = options.launcher.is_some() && layer == "mpi-io";
    let is_collective = is_mpi_io && operation.collective && !ior.file_per_process;
    let mut together = 1;
    let pattern = if operation.mode == Mode::Random {
        Pattern::Unstructured { vertices: count, record: block, seed: 0 }
    } else if let (Some(viewed), true) = (viewed(phase, operation, ior.file_per_process), is_mpi_io) {
        together = operation.most_pieces();
        viewed
    } else if let (Some(piece), true) = (dividing(operation), is_mpi_io) {
        together = block / piece;
        Pattern::NestedStrided {
            block: piece,
            inner_count: together,
            inner_stride: None,
            count,
            stride: None,
        }
    } else if let Some(looped) = looped(phase, operation, ior.file_per_process) {
        looped
    } else if ior.segments > 1 {
        Pattern::Strided { block, count, stride: None }
    } else if is_the_same_for_all && ior.reads && !ior.file_per_process {
        Pattern::Sequential { block, count }
    } else {
        Pattern::Segmented { block, count }
    };
    let kind = match operation.direction {
        Direction::Read => Kind::Read,
        Direction::Write => Kind::Write,
    };
    let distance = distance(phase, operation);
    let is_own = matches!(pattern, Pattern::Looped { .. } | Pattern::Viewed { .. });
    Run {
        operation: kind,
        file_per_process: ior.file_per_process,
        cache: options.cache,
        sync: options.sync,
        interface: if is_mpi_io { Interface::MpiIo } else { Interface::Posix },
        collective: is_collective,
        together,
        memory: operation.bytes().min(MOST_MEMORY),
        aligned: options.cache == Cache::Direct,
        // Verification within T would count as access.
        verify: Verify::None,
        phases: distance.map_or(1, |_| phase.count().min(options.repetitions as u64)),
        advance: distance.filter(|_| is_own),
        ..Run::new(&format!("phase {}", phase.numbers), pattern)
    }
}

/// Returns the distance in bytes from phase to phase of a family in one file. Repetitions then
/// access one file as well: the file system must do deferred work during some of them, as with the
/// application. For files that are removed it could avoid that work.
fn distance(phase: &Phase, operation: &Operation) -> Option<u64> {
    let distance = operation.offset_per_phase.at(0);
    let is_one = (1..phase.processes.len()).all(|place| operation.offset_per_phase.at(place) == distance);
    let distance = u64::try_from(distance).ok().filter(|distance| *distance > 0)?;
    (is_one && !phase.file_per_phase).then_some(distance)
}

/// Returns the size of the pieces of a request, if they are interleaved with the pieces of other
/// processes.
fn dividing(operation: &Operation) -> Option<u64> {
    let piece = operation.piece.filter(|_| operation.space == Space::Pieces)?;
    operation.size.is_multiple_of(piece).then_some(piece)
}

/// Returns the exact offsets of the first phase of a family, if all its requests have one size and
/// all processes the same number of requests.
fn looped(phase: &Phase, operation: &Operation, file_per_process: bool) -> Option<Pattern> {
    if operation.space != Space::File || !operation.pieces.is_empty() || operation.sizes.is_some() {
        return None;
    }
    let (loops, starts) = requests(phase, operation, file_per_process)?;
    Some(Pattern::Looped { block: operation.size, loops, starts })
}

/// Returns the exact pieces of the requests of the first phase of a family.
fn viewed(phase: &Phase, operation: &Operation, file_per_process: bool) -> Option<Pattern> {
    // Each process has the same number of pieces, and a request needs at least one byte per piece.
    let has_sizes = operation.sizes.is_none() || operation.size_by_process.is_some();
    let least = operation.sizes.map_or(operation.size, |(least, _)| least);
    if operation.pieces.is_empty() || !has_sizes || least < operation.most_pieces() {
        return None;
    }
    let (requests, starts) = requests(phase, operation, file_per_process)?;
    let part = |pieces: &Pieces| -> Option<RequestPart> {
        let begin = |place| pieces.begins_of(place).map(|it| u64::try_from(it).ok()).collect();
        let starts = (0..starts.len() as u64).map(begin).collect::<Option<_>>()?;
        Some(RequestPart { block: pieces.bytes, loops: levels(&pieces.loops)?, starts })
    };
    let parts = operation.pieces.iter().map(part).collect::<Option<_>>()?;
    Some(Pattern::Viewed { requests, starts, parts })
}

fn levels(loops: &[Loop]) -> Option<Vec<LoopLevel>> {
    let level = |it: &Loop| Some(LoopLevel { count: it.count, stride: u64::try_from(it.stride).ok()? });
    loops.iter().map(level).collect()
}

/// Returns the loops of requests and the offsets at which each process starts them, if they are
/// known.
fn requests(
    phase: &Phase,
    operation: &Operation,
    file_per_process: bool,
) -> Option<(Vec<LoopLevel>, Vec<Vec<u64>>)> {
    let is_known = operation.mode != Mode::Unknown
        && operation.sizes.is_none()
        && operation.repetitions_between.is_none();
    let has_pattern =
        operation.repetitions == 1 || !operation.displacement.is_empty() || !operation.restarts.is_empty();
    if !is_known || !has_pattern {
        return None;
    }
    let processes = if file_per_process { 1 } else { phase.processes.len() };
    let start = |place: u64| -> Option<Vec<u64>> {
        // Offsets of interleaved pieces count from those of the first process.
        let from = if operation.space == Space::Pieces { 0 } else { place };
        let first = operation.offset.at(from);
        let distances = operation.restarts.iter().map(|it| it.at(from));
        let all: Vec<i64> = if operation.restarts.is_empty() { vec![0] } else { distances.collect() };
        all.into_iter().map(|it| u64::try_from(first.checked_add(it)?).ok()).collect()
    };
    let starts = (0..processes).map(start).collect::<Option<_>>()?;
    Some((levels(&operation.displacement)?, starts))
}

/// Measures the bandwidths of the phases of a model in a directory.
pub(super) fn measure(
    model: &Model,
    configuration: &str,
    directory: &Path,
    options: Options<'_>,
) -> anyhow::Result<Vec<Bandwidth>> {
    let mut by_processes: BTreeMap<u64, Vec<(u64, u64, Run)>> = BTreeMap::new();
    for phase in &model.phases {
        let number = phase.numbers.iter().next().unwrap_or(0);
        for (nth, operation) in phase.operations.iter().enumerate() {
            let run = run(phase, operation, &model.layer, options);
            by_processes.entry(phase.processes.len()).or_default().push((number, nth as u64 + 1, run));
        }
    }
    let mut bandwidths = Vec::new();
    for (processes, runs) in by_processes {
        let suite = Suite {
            processes,
            repetitions: options.repetitions,
            ..Suite::with_runs(runs.iter().map(|(.., run)| run.clone()).collect())
        };
        suite.check()?;
        let reached = match options.launcher {
            Some(launcher) => launched::reached(launcher, directory, &suite),
            None => alone(directory, &suite, configuration),
        };
        let reached = reached.with_context(|| configuration.to_owned())?;
        for ((phase, operation, _), mib) in runs.into_iter().zip(reached) {
            bandwidths.push(Bandwidth {
                configuration: configuration.to_owned(),
                phase,
                operation: Some(operation),
                bytes_per_second: mib * f64::from(1 << 20),
            });
        }
    }
    Ok(bandwidths)
}

/// Returns the bandwidth of each run of a suite within T, MiB per second, with processes on this
/// machine.
fn alone(directory: &Path, suite: &Suite, configuration: &str) -> anyhow::Result<Vec<f64>> {
    let directory =
        directory.canonicalize().with_context(|| format!("cannot use {}", directory.display()))?;
    let mut coordinator = bench::coordinator(&directory, suite.processes)?;
    let mut reached = Vec::new();
    for run in &suite.runs {
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K{configuration}: {}", run.name);
        }
        let outcome = coordinator.measure(run, suite, |_| ());
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
        let outcome = outcome.with_context(|| run.name.clone())?;
        reached.push(access_bandwidth(&outcome.repetitions));
    }
    coordinator.finish()?;
    Ok(reached)
}

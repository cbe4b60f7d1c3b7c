//! The phases of a model as measurements of `miot bench`, made on the storage in question.

use crate::bench;
use anyhow::Context as _;
use miot_trace_analysis::model::estimate::{Bandwidth, Ior};
use miot_trace_analysis::model::{Direction, Mode, Model, Operation, Phase};
use miot_workload::suite::{Cache, Operation as Kind, Sync};
use miot_workload::{Pattern, Run, Suite};
use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::Path;

/// How measurements are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) cache: Cache,
    pub(super) sync: Sync,
    pub(super) repetitions: usize,
}

/// The measurement that mimics an operation of a phase, by the same rules as the parameters of IOR. Random requests go anywhere in
/// the file, but in order.
fn run(phase: &Phase, operation: &Operation, layer: &str, options: Options) -> Run {
    let ior = Ior::of(phase, operation, layer);
    let (block, count) = (operation.size, operation.repetitions);
    let is_the_same_for_all = operation.offset.formula("p").is_some_and(|it| !it.contains('p'));
    let pattern = if operation.mode == Mode::Random {
        Pattern::Unstructured { vertices: count, record: block, seed: 0 }
    } else if ior.segments > 1 {
        Pattern::Strided { block, count, stride: None }
    } else if is_the_same_for_all && ior.reads && !ior.file_per_process {
        Pattern::Sequential { block, count }
    } else {
        Pattern::Segmented { block, count }
    };
    let operation = match operation.direction {
        Direction::Read => Kind::Read,
        Direction::Write => Kind::Write,
    };
    Run {
        operation,
        file_per_process: ior.file_per_process,
        cache: options.cache,
        sync: options.sync,
        ..Run::new(&format!("phase {}", phase.numbers), pattern)
    }
}

/// The bandwidths that the phases of a model reach in a directory.
pub(super) fn measure(
    model: &Model,
    configuration: &str,
    directory: &Path,
    options: Options,
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
            ..Suite::of(runs.iter().map(|(.., run)| run.clone()).collect())
        };
        suite.check()?;
        let mut conductor = bench::conductor(directory, processes)?;
        for (phase, operation, run) in runs {
            if stderr().is_terminal() {
                let _ = write!(stderr(), "\r\x1b[K{configuration}: {}", run.name);
            }
            let outcome = conductor.measure(&run, &suite, |_| ());
            if stderr().is_terminal() {
                let _ = write!(stderr(), "\r\x1b[K");
            }
            let outcome = outcome.with_context(|| format!("{configuration}: {}", run.name))?;
            bandwidths.push(Bandwidth {
                configuration: configuration.to_owned(),
                phase,
                operation: Some(operation),
                bytes_per_second: outcome.bandwidth.mean * f64::from(1 << 20),
            });
        }
        conductor.finish()?;
    }
    Ok(bandwidths)
}

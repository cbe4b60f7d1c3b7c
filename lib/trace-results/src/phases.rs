//! Phases and model of a parallel application.

use crate::{Error, Input};
use miot_proto::op::Layer;
use miot_trace_analysis::model::Model;
use miot_trace_analysis::phases::{Options, Phases, columns};
use miot_trace_store::Table;
use std::path::Path;
use std::time::Duration;

/// Selection of the requests of phases.
#[derive(Clone, Debug, Default)]
pub struct PhaseSelection {
    /// Name of the layer; `None`: the highest with requests.
    pub layer: Option<String>,
    /// Glob of the paths of files; `None`: all.
    pub path: Option<String>,
    /// Time without requests that ends a phase of a process.
    pub gap: Option<Duration>,
}

/// Computes the model of a trace. Errors of the analysis begin with `dir`.
///
/// # Errors
/// [`Error::Option`], [`Error::Trace`], [`Error::Failed`], [`Error::Interrupted`].
pub fn model(input: &Input<'_>, dir: &Path, selection: &PhaseSelection) -> Result<Model, Error> {
    let reader = input.reader;
    let files = reader.files()?;
    let layer = selection.layer.as_deref().map(|name| {
        Layer::from_name(name).filter(|layer| *layer != Layer::App).ok_or_else(|| {
            Error::Option(format!(
                "--layer {name}: no such layer; there are mpi-io, stdio, posix, fuse, client and block"
            ))
        })
    });
    let wanted = match &selection.path {
        Some(glob) => Some(crate::stat::matching_files(&files, glob)?.collect()),
        None => None,
    };
    let options = Options {
        layer: layer.transpose()?,
        files: wanted,
        gap: selection.gap.map(|gap| u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX)),
    };
    let mut phases = Phases::new(options, &reader.table(Table::Processes)?, &files);
    for losses in reader.table(Table::Losses)? {
        phases.add_losses(&losses);
    }
    for batch in input.scan(&columns())? {
        phases.add(&batch?).map_err(|error| Error::Failed(error.to_string()))?;
    }
    phases.finish().map_err(|error| Error::Failed(format!("{}: {error}", dir.display())))
}

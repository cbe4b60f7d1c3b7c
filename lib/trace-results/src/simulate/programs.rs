//! Programs to simulate: from traces and models, with copies.

use super::miller;
use crate::Error;
use crate::input::{Input, Watch};
use arrow_array::types::UInt64Type;
use miot_simulator::generate;
use miot_simulator::{FromTrace, Notes, Workload};
use miot_trace_analysis::Missing;
use miot_trace_events::events;
use miot_trace_store::schema::{column, text};
use miot_trace_store::{Reader, Table};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Workload to simulate, and notes for the user.
#[derive(Debug)]
pub struct Programs {
    /// All programs.
    pub workload: Workload,
    /// Notes on the accuracy of the workload.
    pub notes: Vec<String>,
    /// Those of the notes on requests whose bytes are missing in every figure.
    pub warnings: Vec<String>,
}

/// A workload, its notes, and those of them that are warnings.
pub(super) type Part = (Workload, Vec<String>, Vec<String>);

/// Opens traces to simulate.
pub type Open<'a> = &'a dyn Fn(&Path) -> Result<Reader, Error>;

/// Combines all traces and models, `copies` times.
///
/// # Errors
/// [`Error::Option`], [`Error::Failed`], [`Error::Trace`], [`Error::Interrupted`].
pub fn gather(
    traces: &[PathBuf],
    like: &[String],
    copies: u32,
    together: bool,
    open: Open<'_>,
    watch: &dyn Watch,
) -> Result<Programs, Error> {
    let mut programs = Programs { workload: Workload::default(), notes: Vec::new(), warnings: Vec::new() };
    for trace in traces {
        let (workload, notes, warnings) =
            if trace.is_file() { miller::read(trace)? } else { trace_of(trace, together, open, watch)? };
        programs.workload.add(workload);
        programs.notes.extend(notes);
        programs.warnings.extend(warnings);
    }
    for name in like {
        let model = generate::named(name).ok_or_else(|| {
            let names: Vec<_> = generate::MODELS.iter().map(|model| model.name).collect();
            Error::Option(format!("--like {name}: no such model; there are {}", names.join(", ")))
        })?;
        let made = generate::generate(model, None, 1);
        programs.workload.add(made.workload(name));
        programs
            .notes
            .push(format!("{name} is a model with the parameters of Miller's tables, not his trace"));
    }
    programs.workload = programs.workload.copies(copies);
    Ok(programs)
}

fn trace_of(dir: &Path, together: bool, open: Open<'_>, watch: &dyn Watch) -> Result<Part, Error> {
    let reader = open(dir)?;
    let files = reader.files()?;
    let mut from = FromTrace::default();
    let input = Input { watch, ..Input::whole(&reader) };
    input.each(events::COLUMNS, |batch| from.add(batch, &files))?;
    let mut commands = HashMap::new();
    for batch in reader.table(Table::Processes)? {
        let (Some(ids), Some(paths)) = (column::<UInt64Type>(&batch, "process"), text(&batch, "exe")) else {
            continue;
        };
        for (id, path) in ids.values().iter().zip(paths) {
            let path = path.unwrap_or("");
            commands.insert(*id, path.rsplit('/').next().unwrap_or(path).to_owned());
        }
    }
    let (workload, notes) = from.finish(together, |process, pid, tid| {
        let command = commands.get(&process).map_or("?", String::as_str);
        if pid == tid { format!("{command} {pid}") } else { format!("{command} {pid}/{tid}") }
    });
    if workload.programs.is_empty() {
        return Err(Error::Failed(format!("{}: no requests to simulate: {}", dir.display(), reason(&notes))));
    }
    let missing = Missing::of(&reader.table(Table::Losses)?);
    let (notes, warnings) = texts(dir, &notes, missing);
    Ok((workload, notes, warnings))
}

/// Returns why there is nothing to simulate.
fn reason(notes: &Notes) -> String {
    if notes.without_place > 0 {
        format!("{} requests moved data, but none has both a file and an offset", notes.without_place)
    } else if notes.unknown_places.total() > 0 {
        format!("the bytes of all MPI-IO requests are unknown ({})", notes.unknown_places)
    } else if notes.absurd > 0 {
        format!("the sizes or offsets of all {} requests that moved data are impossible", notes.absurd)
    } else {
        "no request moved file data".to_owned()
    }
}

/// Returns the notes on a trace, and those of them that are warnings.
fn texts(dir: &Path, notes: &Notes, missing: Missing) -> (Vec<String>, Vec<String>) {
    let dir = dir.display();
    let (mut texts, mut warnings) = (Vec::new(), Vec::new());
    if missing.lost > 0 {
        texts.push(format!(
            "{dir}: {} events were lost: requests are missing, and their time counts as computing; see docs/reference/losses.md",
            missing.lost
        ));
    }
    if missing.filtered > 0 {
        texts.push(format!("{dir}: {} requests were not recorded on purpose", missing.filtered));
    }
    if notes.without_place > 0 {
        texts.push(format!("{dir}: {} requests without file or offset are left out", notes.without_place));
    }
    if notes.unknown_places.total() > 0 {
        let note = format!(
            "{dir}: {} MPI-IO requests are left out, their bytes are unknown ({})",
            notes.unknown_places.total(),
            notes.unknown_places
        );
        warnings.push(note.clone());
        texts.push(note);
    }
    if notes.in_pieces > 0 {
        texts.push(format!(
            "{dir}: {} requests through file views are simulated as {} requests, one for each piece",
            notes.in_pieces, notes.pieces
        ));
    }
    if notes.absurd > 0 {
        texts
            .push(format!("{dir}: {} requests with an impossible size or offset are left out", notes.absurd));
    }
    if notes.with_cpu_time < notes.taken {
        texts.push(format!(
            "{dir}: processor time was not recorded for {} of {} requests: the time between requests is used instead",
            notes.taken - notes.with_cpu_time,
            notes.taken
        ));
    }
    (texts, warnings)
}

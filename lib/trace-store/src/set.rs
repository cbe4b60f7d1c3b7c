//! Traces of several log-servers, read as one.
//!
//! Each log-server writes one partition: an ordered trace with ids of its own. A reader merges the
//! partitions by time, then by partition, which is part of the ids; within a partition the order
//! stays as it is. If log-servers are running, rows are merged up to the least
//! [final time](crate::final_time): beyond it, one of them may still get earlier events.

mod merge;
mod names;

pub(crate) use merge::MergedBatches;
pub(crate) use names::{MovedFiles, NEEDED};

use crate::error::Error;
use crate::final_time;
use crate::manifest::Manifest;
use crate::reader::Reader;
use crate::schema::column;
use arrow_array::RecordBatch;
use arrow_array::types::{UInt32Type, UInt64Type};
use std::path::{Path, PathBuf};

/// A running log-server is this far behind another one only if something is wrong, nanoseconds: a
/// silent node holds back the merge for seconds (`silent_after`).
const MAX_BEHIND_NS: i64 = 60_000_000_000;

/// A trace of a set, as it was when the set was opened.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SetMember {
    /// Directory.
    pub dir: PathBuf,
    /// Partition of its ids; `None` if it cannot be read.
    pub partition: Option<u16>,
    /// Time up to which it is final, nanoseconds since 1970; `None` if that is not known.
    pub final_time: Option<i64>,
    /// A log-server writes to it.
    pub is_written: bool,
    /// Why it is missing in the result.
    pub missing: Option<String>,
}

/// State of a set when it was opened.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct SetState {
    /// The traces.
    pub members: Vec<SetMember>,
    /// Events that completed from this time on are not read, nanoseconds since 1970; `None`: all
    /// are read.
    pub until: Option<i64>,
}

impl SetState {
    /// Checks that traces can be read as one, and finds up to which time.
    ///
    /// # Errors
    /// [`Error::Set`] if two traces have one partition, or different clusters. A trace that cannot
    /// be read is a missing member, unless it is the only one.
    pub fn examine(dirs: &[PathBuf]) -> Result<SetState, Error> {
        let mut known: Vec<(PathBuf, Manifest)> = Vec::new();
        let mut members = Vec::new();
        for dir in dirs {
            // Before the rows are read: rows that are final then are among these.
            let final_time = final_time::read(dir);
            let (partition, is_written, missing) = match Manifest::read(dir) {
                Ok(manifest) => {
                    if let Some(error) =
                        known.iter().find_map(|(other, theirs)| conflict(dir, &manifest, other, theirs))
                    {
                        return Err(error);
                    }
                    let partition = manifest.partition;
                    known.push((dir.clone(), manifest));
                    (Some(partition), final_time::has_writer(dir)?, None)
                }
                Err(error) if dirs.len() == 1 => return Err(error),
                Err(error) => (None, false, Some(error.to_string())),
            };
            members.push(SetMember { dir: dir.clone(), partition, final_time, is_written, missing });
        }
        let until =
            members.iter().filter(|member| member.is_written).filter_map(|member| member.final_time).min();
        Ok(SetState { members, until: until.filter(|_| dirs.len() > 1) })
    }

    /// Texts for the user: what the result lacks.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let written = || self.members.iter().filter(|member| member.is_written && self.members.len() > 1);
        let finals = || written().filter_map(|member| Some((member.final_time?, member)));
        let (first, last) = (finals().min_by_key(|found| found.0), finals().max_by_key(|found| found.0));
        let far = first.zip(last).filter(|(first, last)| last.0.saturating_sub(first.0) > MAX_BEHIND_NS);
        let some_run = self.members.iter().any(|member| member.is_written);
        let mut notes = Vec::new();
        if let Some(((first, one), (last, other))) = far {
            notes.push(format!(
                "{} is final {} s less far than {}: the clocks of their log-servers differ, or one of them does not \
                 merge; later events are not shown",
                one.dir.display(),
                last.saturating_sub(first) / 1_000_000_000,
                other.dir.display()
            ));
        }
        for member in &self.members {
            let dir = member.dir.display();
            match (&member.missing, member.partition) {
                (Some(reason), _) => notes.push(format!("a trace of the set is missing in the result: {reason}")),
                (None, Some(partition)) if some_run && !member.is_written => notes.push(format!(
                    "partition {partition}: no log-server writes to {dir}: later events of its nodes are missing"
                )),
                (None, Some(partition)) if member.is_written && member.final_time.is_none() => notes.push(format!(
                    "partition {partition}: the log-server of {dir} does not publish up to which time its trace is final \
                     (earlier version): recent events may be missing"
                )),
                _ => {}
            }
        }
        notes
    }

    /// True if a trace is missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.members.iter().any(|member| member.missing.is_some())
    }

    /// Directories that can be read, by partition.
    #[must_use]
    pub fn readable(&self) -> Vec<&Path> {
        let mut members: Vec<&SetMember> =
            self.members.iter().filter(|member| member.missing.is_none()).collect();
        members.sort_by_key(|member| member.partition);
        members.into_iter().map(|member| member.dir.as_path()).collect()
    }
}

/// Returns why two traces cannot be in one set; `None` if they can.
fn conflict(dir: &Path, manifest: &Manifest, other: &Path, theirs: &Manifest) -> Option<Error> {
    let name = |cluster: &str| {
        if cluster.is_empty() { "no cluster".to_owned() } else { format!("cluster `{cluster}`") }
    };
    let reason = if manifest.cluster != theirs.cluster {
        format!("one is of {}, the other of {}", name(&manifest.cluster), name(&theirs.cluster))
    } else if manifest.partition == theirs.partition {
        format!("both are partition {}, so that their ids are the same", manifest.partition)
    } else {
        return None;
    };
    Some(Error::Set { one: other.to_owned(), other: dir.to_owned(), reason })
}

impl Reader {
    /// Opens the traces of a set as one trace. `open` opens each of them.
    ///
    /// # Errors
    /// Those of `open`; [`Error::NotATrace`] if none can be read.
    pub fn of_set(state: &SetState, open: impl Fn(&Path) -> Result<Reader, Error>) -> Result<Reader, Error> {
        let mut readers = Vec::new();
        for dir in state.readable() {
            readers.push(open(dir)?);
        }
        let mut readers = readers.into_iter();
        let Some(first) = readers.next() else {
            let dir = state.members.first().map(|member| member.dir.clone()).unwrap_or_default();
            return Err(Error::NotATrace { dir, found: "no trace of the set can be read".to_owned() });
        };
        let missing = |member: &SetMember| Some((member.dir.clone(), member.missing.clone()?));
        let missing: Vec<(PathBuf, String)> = state.members.iter().filter_map(missing).collect();
        first.with_others(readers.collect(), state.until, &missing)
    }
}

/// A column of numbers that are never negative, of any width.
pub(crate) fn numbers(batch: &RecordBatch, name: &str) -> Option<Vec<u64>> {
    if let Some(wide) = column::<UInt64Type>(batch, name) {
        return Some(wide.values().to_vec());
    }
    let narrow = column::<UInt32Type>(batch, name)?;
    Some(narrow.values().iter().map(|value| u64::from(*value)).collect())
}

/// Merges batches of rows of several partitions, in the order of the partitions.
///
/// # Errors
/// [`Error::Damaged`] if their columns differ.
pub fn merge_rows(partitions: Vec<Vec<RecordBatch>>) -> Result<Vec<RecordBatch>, Error> {
    let sources = partitions.into_iter().map(|batches| batches.into_iter().map(Ok));
    MergedBatches::new(sources, None, PathBuf::from("rows of several log-servers")).collect()
}

//! Joins events with the names of their files and threads.

use crate::ids::{DenseIds, partition_of};
use crate::schema::{self, Table, column, text};
use arrow_array::builder::StringBuilder;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::ArrowError;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Texts by id. Ids are dense, so most texts are in an array for each partition; a stray large id
/// does not enlarge it.
#[derive(Clone, Debug, Default)]
pub struct Names {
    text: String,
    first: DenseNames,
    /// Of further partitions, by partition.
    more: BTreeMap<u16, DenseNames>,
    sparse: HashMap<u64, (usize, u32)>,
}

/// Names of one partition.
#[derive(Clone, Debug, Default)]
struct DenseNames {
    ids: DenseIds,
    /// Start and length in `text`; length `u32::MAX`: no text.
    dense: Vec<(usize, u32)>,
}

impl DenseNames {
    fn get(&self, id: u64) -> Option<(usize, u32)> {
        let index = usize::try_from(self.ids.get(id)).ok();
        index.and_then(|index| self.dense.get(index)).copied().filter(|range| range.1 != u32::MAX)
    }

    /// Returns false for a stray id.
    fn put(&mut self, id: u64, range: (usize, u32)) -> bool {
        match usize::try_from(self.ids.add(id)) {
            Ok(index) if index < self.dense.len() + MAX_GAP => {
                if index >= self.dense.len() {
                    self.dense.resize(index + 1, ABSENT);
                }
                self.dense[index] = range;
                true
            }
            _ => false,
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        let dense = self.dense.iter().zip(0..).filter(|(range, _)| range.1 != u32::MAX);
        dense.map(|(_, number)| self.ids.id(number))
    }
}

/// Paths by file id.
pub type FileNames = Names;

const ABSENT: (usize, u32) = (0, u32::MAX);
/// How far an id may exceed the ids so far to be added to the array.
const MAX_GAP: usize = 1 << 16;

impl Names {
    /// Adds or replaces the text of an id.
    pub fn put(&mut self, id: u64, name: &str) {
        if self.get(id) == Some(name) {
            return;
        }
        let range = (self.text.len(), name.len().min(u32::MAX as usize - 1) as u32);
        self.text.push_str(name);
        let is_put = self.first.put(id, range)
            || partition_of(id)
                .is_some_and(|partition| self.more.entry(partition).or_default().put(id, range));
        if !is_put {
            self.sparse.insert(id, range);
        }
    }

    /// Returns the text of an id.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&str> {
        let (start, length) = self.first.get(id).or_else(|| self.get_other(id))?;
        self.text.get(start..start + length as usize)
    }

    fn get_other(&self, id: u64) -> Option<(usize, u32)> {
        let of_partition = partition_of(id).and_then(|partition| self.more.get(&partition));
        of_partition.and_then(|names| names.get(id)).or_else(|| self.sparse.get(&id).copied())
    }

    /// Returns ids and their texts, in order of id except stray ones.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        let dense = self.first.iter().chain(self.more.values().flat_map(DenseNames::iter));
        dense.chain(self.sparse.keys().copied()).filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Number of ids with a text.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.iter().count()
            + self.more.values().map(|names| names.iter().count()).sum::<usize>()
            + self.sparse.len()
    }

    /// Returns true if no id has a text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.dense.is_empty()
            && self.sparse.is_empty()
            && self.more.values().all(|names| names.dense.is_empty())
    }
}

/// Joins events with names.
#[derive(Clone, Debug, Default)]
pub struct Joiner {
    /// Paths by file id.
    pub files: FileNames,
    /// Thread names by stream id.
    pub threads: Names,
}

impl Joiner {
    /// Adds rows of a side table. Tables other than `files` and `threads` are ignored.
    pub fn add_batch(&mut self, table: Table, batch: &RecordBatch) {
        let (names, id, name) = match table {
            Table::Files => (&mut self.files, "file", "path"),
            Table::Threads => (&mut self.threads, "stream", "comm"),
            _ => return,
        };
        if let (Some(ids), Some(texts)) = (column::<UInt64Type>(batch, id), text(batch, name)) {
            for row in 0..batch.num_rows() {
                names.put(ids.value(row), texts.value(row));
            }
        }
    }

    /// Returns events with `path`, `path2` and `comm`: see [`schema::rows`].
    ///
    /// # Errors
    /// If the batch does not have the columns of events.
    pub fn join(&self, events: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let ids = |name| {
            column::<UInt64Type>(events, name)
                .ok_or_else(|| ArrowError::SchemaError(format!("events without a column `{name}`")))
        };
        let paths = |name| -> Result<StringBuilder, ArrowError> {
            let ids = ids(name)?;
            let mut out = StringBuilder::with_capacity(ids.len(), 0);
            if ids.null_count() == ids.len() {
                out.append_nulls(ids.len());
            } else {
                ids.iter().for_each(|id| out.append_option(id.and_then(|id| self.files.get(id))));
            }
            Ok(out)
        };
        let streams = ids("stream")?;
        let mut comms = StringBuilder::with_capacity(streams.len(), 0);
        streams.values().iter().for_each(|s| comms.append_value(self.threads.get(*s).unwrap_or("")));
        let mut columns = events.columns().to_vec();
        columns.push(Arc::new(paths("file")?.finish()));
        columns.push(Arc::new(paths("file2")?.finish()));
        columns.push(Arc::new(comms.finish()));
        RecordBatch::try_new(schema::rows(), columns)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_GAP, Names};
    use crate::ids;

    #[test]
    fn names_are_found_by_any_id() {
        let mut names = Names::default();
        let far = u64::MAX;
        for (id, name) in [(1, "a"), (3, ""), (far, "z"), (MAX_GAP as u64 + 2, "b"), (1, "c")] {
            names.put(id, name);
        }
        let mut other = Names::default();
        other.put(ids::first(9) + 2, "of partition 9");
        assert_eq!((other.first.dense.len(), other.get(ids::first(9) + 2)), (4, Some("of partition 9")));
        assert_eq!(other.iter().collect::<Vec<_>>(), [(ids::first(9) + 2, "of partition 9")]);
        assert_eq!([0, 1, 2, 3, 4].map(|id| names.get(id)), [None, Some("c"), None, Some(""), None]);
        assert_eq!((names.get(far), names.get(MAX_GAP as u64 + 2)), (Some("z"), Some("b")));
        assert_eq!(names.len(), 4);
        assert_eq!(names.iter().count(), 4);
    }
}

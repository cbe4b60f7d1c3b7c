//! Files that the events of a part use and that earlier parts define. The metadata of the sealed
//! part lists them, so that retention can select the rows to carry over without reading the events.

use crate::error::Error;
use crate::live::LiveReader;
use crate::schema::{Table, column};
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

/// Key of [`ForeignFiles::to_text`] in the metadata of a sealed events file.
pub(crate) const FILES_KEY: &str = "miot.files";

/// Maximum length of a range of ids that is given up for a range of greater ids.
const MAX_MOVED: u64 = 1024;

/// Collects the foreign files while a part is sealed.
#[derive(Debug, Default)]
pub(crate) struct ForeignFiles {
    /// Every id from here to `new_to` is defined in this part. Ids are assigned in order, so these
    /// are nearly all ids of the part, and most rows cost two comparisons.
    new_from: u64,
    new_to: u64,
    /// Other ids that this part defines.
    redefined: HashSet<u64>,
    /// The last id that was looked up.
    last: u64,
    foreign: HashSet<u64>,
}

impl ForeignFiles {
    /// Adds the files that the part defines, from its live stream.
    pub(crate) fn define_all(&mut self, files: &Path) -> Result<(), Error> {
        let Some(mut reader) = LiveReader::open(Table::Files, files)? else { return Ok(()) };
        while let Some(batch) = reader.next_batch()? {
            let ids = column::<UInt64Type>(&batch, "file");
            ids.iter().flat_map(|ids| ids.values()).for_each(|id| self.define(*id));
        }
        Ok(())
    }

    /// Adds a file that the part defines.
    pub(crate) fn define(&mut self, file: u64) {
        if file > self.new_to && self.new_to - self.new_from <= MAX_MOVED {
            // The first ids of the part were defined again.
            self.redefined.extend(self.new_from..self.new_to);
            (self.new_from, self.new_to) = (file, file);
        }
        if file == self.new_to {
            self.new_to += 1;
        } else if !(self.new_from..self.new_to).contains(&file) {
            self.redefined.insert(file);
        }
    }

    /// Adds a batch of events.
    pub(crate) fn add_batch(&mut self, events: &RecordBatch) {
        for name in ["file", "file2"] {
            let Some(files) = column::<UInt64Type>(events, name) else { continue };
            if files.null_count() == files.len() {
                continue;
            }
            let valid = files.nulls();
            for (row, file) in files.values().iter().enumerate() {
                let new = (self.new_from..self.new_to).contains(file);
                if !new && *file != self.last && valid.is_none_or(|valid| valid.is_valid(row)) {
                    self.last = *file;
                    if !self.redefined.contains(file) {
                        self.foreign.insert(*file);
                    }
                }
            }
        }
    }

    /// Returns the ids in order, as differences: `3 1 10` are 3, 4 and 14.
    pub(crate) fn to_text(&self) -> String {
        let mut all: Vec<u64> = self.foreign.iter().copied().collect();
        all.sort_unstable();
        let (mut text, mut last) = (String::new(), 0);
        for file in all {
            let space = if text.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{space}{}", file - last);
            last = file;
        }
        text
    }
}

/// Parses a text of [`ForeignFiles::to_text`]; `None` if it is invalid.
pub(crate) fn from_text(text: &str) -> Option<Vec<u64>> {
    let mut last = 0u64;
    let words = text.split(' ').filter(|word| !word.is_empty());
    words
        .map(|word| {
            last = last.checked_add(word.parse().ok()?)?;
            Some(last)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{ForeignFiles, from_text};

    #[test]
    fn ids_survive_conversion_to_text() {
        for ids in [vec![], vec![1], vec![3, 4, 14, u64::MAX]] {
            let files = ForeignFiles { foreign: ids.iter().copied().collect(), ..ForeignFiles::default() };
            assert_eq!(from_text(&files.to_text()), Some(ids));
        }
        assert_eq!(from_text("1 x"), None);
    }
}

//! Block sizes of files, to which requests should be aligned.

use crate::{column, text};
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, RecordBatch};
use miot_proto::job::block_size_of;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Block size in bytes that is assumed for a file of unknown block size: that of most file systems.
pub const ASSUMED_BLOCK: u32 = 4096;

/// Block sizes of the files of a trace.
#[derive(Clone, Debug, Default)]
pub struct BlockSizes {
    given: Option<u32>,
    seen: HashMap<u64, Arc<str>>,
}

impl BlockSizes {
    /// Returns the block sizes. `given` is the size of all files in bytes; without it, sizes are
    /// taken from the rows of the table `processes`.
    #[must_use]
    pub fn new(given: Option<u32>, processes: &[RecordBatch]) -> BlockSizes {
        let mut sizes = BlockSizes { given: given.map(|size| size.max(1)), seen: HashMap::new() };
        if sizes.given.is_none() {
            let mut texts = HashSet::new();
            processes.iter().for_each(|batch| _ = sizes.add(batch, &mut texts));
        }
        sizes
    }

    fn add(&mut self, batch: &RecordBatch, texts: &mut HashSet<Arc<str>>) -> Option<()> {
        let (ids, seen) = (column::<UInt64Type>(batch, "process")?, text(batch, "block_sizes")?);
        for row in (0..batch.num_rows()).filter(|row| seen.is_valid(*row)) {
            let text = seen.value(row);
            let text = texts.get(text).cloned().unwrap_or_else(|| Arc::from(text));
            texts.insert(Arc::clone(&text));
            self.seen.insert(ids.value(row), text);
        }
        Some(())
    }

    /// Returns the block size, at least 1 byte, of a file that this process uses; `None` if
    /// unknown.
    #[must_use]
    pub fn of(&self, process: u64, path: &str) -> Option<u32> {
        self.given.or_else(|| block_size_of(self.seen.get(&process)?.as_bytes(), path.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, StringArray, UInt64Array};

    #[test]
    fn invalid_block_sizes_are_ignored() {
        let ids: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, 3]));
        let given: ArrayRef =
            Arc::new(StringArray::from(vec![Some("4096 /\n512 /a"), Some("0 /\n-1 /a"), None]));
        let rows = [RecordBatch::try_from_iter([("process", ids), ("block_sizes", given)]).unwrap()];
        let sizes = BlockSizes::new(None, &rows);
        assert_eq!([1, 2, 3, 4].map(|process| sizes.of(process, "/a/b")), [Some(512), None, None, None]);
        assert_eq!(BlockSizes::new(Some(0), &rows).of(1, "/a/b"), Some(1));
    }
}

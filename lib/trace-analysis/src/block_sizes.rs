//! Block sizes of files, to which requests should be aligned.

use crate::{column, text};
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, RecordBatch};
use miot_proto::job::block_size_of;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is assumed of a file of whose block size nothing is known, bytes: that of most file systems.
pub const ASSUMED_BLOCK: u32 = 4096;

/// What is known of the block sizes of a trace's files.
#[derive(Clone, Debug, Default)]
pub struct BlockSizes {
    said: Option<u32>,
    seen: HashMap<u64, Arc<str>>,
}

impl BlockSizes {
    /// `said`: bytes, of all files. Otherwise those that the rows of the table `processes` tell.
    #[must_use]
    pub fn new(said: Option<u32>, processes: &[RecordBatch]) -> BlockSizes {
        let mut sizes = BlockSizes { said: said.map(|size| size.max(1)), seen: HashMap::new() };
        if sizes.said.is_none() {
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

    /// Bytes, at least 1, for a file that this process uses; `None`: not known.
    #[must_use]
    pub fn of(&self, process: u64, path: &str) -> Option<u32> {
        self.said.or_else(|| block_size_of(self.seen.get(&process)?.as_bytes(), path.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, StringArray, UInt64Array};

    #[test]
    fn what_a_node_says_counts_if_it_is_a_size() {
        let ids: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, 3]));
        let said: ArrayRef =
            Arc::new(StringArray::from(vec![Some("4096 /\n512 /a"), Some("0 /\n-1 /a"), None]));
        let rows = [RecordBatch::try_from_iter([("process", ids), ("block_sizes", said)]).unwrap()];
        let told = BlockSizes::new(None, &rows);
        assert_eq!([1, 2, 3, 4].map(|process| told.of(process, "/a/b")), [Some(512), None, None, None]);
        assert_eq!(BlockSizes::new(Some(0), &rows).of(1, "/a/b"), Some(1));
    }
}

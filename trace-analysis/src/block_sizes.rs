//! Block sizes of files: what their requests had better be aligned to.

use crate::{column, text};
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, RecordBatch};
use miot_proto::job::size_of_place;
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

    /// Bytes, for a file that this process uses; `None`: not known.
    #[must_use]
    pub fn of(&self, process: u64, path: &str) -> Option<u32> {
        self.said.or_else(|| size_of_place(self.seen.get(&process)?.as_bytes(), path.as_bytes()))
    }
}

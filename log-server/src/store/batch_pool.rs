//! Small batches whose memory is used again.
//!
//! Each of thousands of nodes sends batches of one or two events. The columns of a batch are a
//! dozen allocations that one thread makes and another frees, about a tenth of the time of the
//! log-server.

use crossbeam::queue::ArrayQueue;
use miot_proto::batch::Columns;
use std::sync::Arc;

/// Maximum number of batches that wait for their next use: those that a merge takes from thousands
/// of nodes.
const BATCHES: usize = 4096;
/// Larger batches are freed, rows and bytes of text: the allocation of their columns takes no
/// noticeable part of the work on them.
const MAX_ROWS: usize = 16;
const MAX_TEXT: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct BatchPool(ArrayQueue<Arc<Columns>>);

impl BatchPool {
    pub(crate) fn new() -> BatchPool {
        BatchPool(ArrayQueue::new(BATCHES))
    }

    /// A batch that nothing else refers to, with any rows.
    pub(crate) fn take(&self) -> Arc<Columns> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps the memory of a batch, if it is small and nothing else refers to it.
    pub(crate) fn put(&self, mut batch: Arc<Columns>) {
        if let Some(Columns { time, ext, text, .. }) = Arc::get_mut(&mut batch)
            && time.capacity() <= MAX_ROWS
            && ext.capacity() <= MAX_ROWS
            && text.capacity() <= MAX_TEXT
        {
            let _ = self.0.push(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_batches_without_other_users_are_kept() {
        let pool = BatchPool::new();
        let of_rows = |rows| Arc::new(Columns { time: vec![7; rows], ..Columns::default() });
        let (kept, used, large) = (of_rows(3), of_rows(4), of_rows(MAX_ROWS + 1));
        let other = Arc::clone(&used);
        for batch in [kept, used, large] {
            pool.put(batch);
        }
        assert_eq!(pool.take().time, [7; 3]);
        assert!(pool.take().time.is_empty() && other.time.len() == 4);
    }
}

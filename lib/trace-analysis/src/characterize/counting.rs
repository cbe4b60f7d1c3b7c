//! The thread that changes the counters and the written ranges, while the next events are read.

use super::changes::{Change, Tallies};
use super::written::{RangeChange, Written};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Number of batches that wait for the thread. With one, each of the two threads would wait for the
/// other in turns where there are fewer processors than threads.
const AHEAD: usize = 2;

/// Changes of a batch of events.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) counters: Vec<Change>,
    /// Changes of written ranges, in the order of the events.
    pub(super) ranges: Vec<RangeChange>,
}

impl Changes {
    fn clear(&mut self) {
        self.counters.clear();
        self.ranges.clear();
    }
}

/// Changes of pairs and files with numbers below these.
#[derive(Debug)]
struct Batch {
    pairs: usize,
    files: usize,
    changes: Changes,
}

/// What the changes lead to.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) tallies: Tallies,
    pub(super) written: Written,
}

impl Counted {
    /// Applies changes, and removes them from the lists.
    fn apply(&mut self, batch: Batch) -> Changes {
        let Batch { pairs, files, mut changes } = batch;
        self.written.apply(files, &changes.ranges, &mut changes.counters);
        self.tallies.apply(pairs, &changes.counters);
        changes.clear();
        changes
    }
}

/// Changes that were applied.
#[derive(Debug)]
struct Applied {
    count: usize,
    /// Their memory, which is used again.
    empty: Changes,
    /// Memory of the counters in bytes, see [`Tallies::memory`].
    memory: usize,
}

#[derive(Debug)]
struct Running {
    batches: SyncSender<Batch>,
    applied: Receiver<Applied>,
    thread: JoinHandle<Counted>,
}

/// Counters that a thread changes, see the module.
#[derive(Debug, Default)]
pub(super) struct Counting {
    running: Option<Running>,
    /// The counters while the thread does not run.
    counted: Counted,
    empty: Vec<Changes>,
    /// Number of changes that were not applied yet, as far as is known.
    waiting: usize,
    /// Memory of the counters after the last changes that were applied, as far as is known.
    memory: usize,
}

impl Counting {
    /// Gives changes of pairs and files with numbers below these to the thread, in order. Returns
    /// empty lists for the next ones.
    pub(super) fn apply(&mut self, pairs: usize, files: usize, changes: Changes) -> Changes {
        if self.running.is_none() {
            self.start();
        }
        self.waiting += changes.counters.len();
        let batch = Batch { pairs, files, changes };
        let left = match &self.running {
            Some(running) => running.batches.send(batch).err().map(|refused| refused.0),
            None => Some(batch),
        };
        if let Some(batch) = left {
            // Without a thread. If it has panicked, this panics too.
            let empty = self.counted().apply(batch);
            self.empty.push(empty);
            (self.waiting, self.memory) = (0, self.counted.tallies.memory);
        }
        self.take_applied();
        self.empty.pop().unwrap_or_default()
    }

    fn start(&mut self) {
        let (batches, to_apply) = sync_channel::<Batch>(AHEAD);
        let (done, applied) = channel();
        let (give, take) = sync_channel(1);
        let apply = move || {
            let mut counted: Counted = take.recv().unwrap_or_default();
            for batch in to_apply {
                let count = batch.changes.counters.len();
                let empty = counted.apply(batch);
                let _ = done.send(Applied { count, empty, memory: counted.tallies.memory });
            }
            counted
        };
        if let Ok(thread) = Builder::new().name("miot-counters".into()).spawn(apply) {
            let _ = give.send(std::mem::take(&mut self.counted));
            self.running = Some(Running { batches, applied, thread });
        }
    }

    fn take_applied(&mut self) {
        let Some(running) = &self.running else { return };
        for Applied { count, empty, memory } in running.applied.try_iter() {
            (self.waiting, self.memory) = (self.waiting - count, memory);
            self.empty.push(empty);
        }
    }

    /// Number of changes that may not be applied yet, and the memory of the counters before them.
    pub(super) fn state(&self) -> (usize, usize) {
        (self.waiting, self.memory)
    }

    /// Waits until all changes are applied. Returns the counters; the thread starts again with the
    /// next changes.
    pub(super) fn counted(&mut self) -> &mut Counted {
        if let Some(Running { batches, thread, .. }) = self.running.take() {
            drop(batches);
            self.counted = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            (self.waiting, self.memory) = (0, self.counted.tallies.memory);
        }
        &mut self.counted
    }
}

//! Changes of counters, applied pair by pair.
//!
//! The counters of a pair take some kilobytes, and those of all pairs far more than the caches of a
//! processor. The changes of a batch of events are therefore collected, and applied in the order of
//! the pairs, so that each pair is loaded once per batch.

use super::counters::{Access, Counters, MetaKind, SyncKind};

/// A request to a pair.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Number of the pair.
    pub(super) pair: u32,
    /// Begin and end of the request, nanoseconds since 1970.
    pub(super) begin: i64,
    pub(super) end: i64,
    pub(super) counter: ChangedCounter,
}

/// Counters that a request changes besides the time span.
#[derive(Clone, Debug)]
pub(super) enum ChangedCounter {
    /// A failed request: only the failure is counted, unless it is counted for another pair.
    Failed(bool),
    Access {
        is_write: bool,
        access: Access,
        overwritten: u64,
    },
    Sync(SyncKind),
    Meta(MetaKind),
    /// The file is the new name of a rename.
    RenameTarget,
}

/// Maximum number of changes that are sorted at once, so that they stay in the cache.
const SORTED: usize = 1 << 12;

/// Counters by number of the pair.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    pub(super) counters: Vec<Counters>,
    /// Memory of the counters in bytes, apart from the structs themselves.
    pub(super) memory: usize,
    /// Number of changes of each pair, later the position in `order` of the next one; 0 between
    /// calls.
    positions: Vec<u32>,
    /// Pairs that are changed.
    changed: Vec<u32>,
    /// Positions of the changes, pair by pair.
    order: Vec<u32>,
}

impl Tallies {
    /// Applies changes of pairs with numbers below `pairs`. Those of a pair stay in order.
    pub(super) fn apply(&mut self, pairs: usize, changes: &[Change]) {
        if pairs > self.counters.len() {
            self.counters.resize_with(pairs, Counters::default);
            self.positions.resize(pairs, 0);
        }
        for changes in changes.chunks(SORTED) {
            self.sort(changes);
            let order = std::mem::take(&mut self.order);
            order.iter().for_each(|position| self.change(&changes[*position as usize]));
            self.order = order;
        }
    }

    /// Sorts changes by counting.
    fn sort(&mut self, changes: &[Change]) {
        for change in changes {
            let count = &mut self.positions[change.pair as usize];
            if *count == 0 {
                self.changed.push(change.pair);
            }
            *count += 1;
        }
        let mut sum = 0;
        for pair in &self.changed {
            sum += std::mem::replace(&mut self.positions[*pair as usize], sum);
        }
        self.order.resize(changes.len(), 0);
        for (position, change) in (0..).zip(changes) {
            let next = &mut self.positions[change.pair as usize];
            self.order[*next as usize] = position;
            *next += 1;
        }
        self.changed.drain(..).for_each(|pair| self.positions[pair as usize] = 0);
    }

    fn change(&mut self, change: &Change) {
        let (begin, end) = (change.begin, change.end);
        let counters = &mut self.counters[change.pair as usize];
        counters.span.add(begin, end);
        self.memory += match &change.counter {
            ChangedCounter::Failed(is_counted) => {
                counters.meta.failed += u64::from(*is_counted);
                0
            }
            ChangedCounter::Access { is_write, access, overwritten } => {
                counters.access(*is_write, access, *overwritten, begin, end)
            }
            ChangedCounter::Sync(kind) => counters.sync(*kind, begin, end),
            ChangedCounter::Meta(kind) => counters.meta(*kind, begin, end),
            ChangedCounter::RenameTarget => {
                counters.meta.rename_targets += 1;
                0
            }
        };
    }
}

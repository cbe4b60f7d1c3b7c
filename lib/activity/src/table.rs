//! Tallies by key in bounded memory: all keys while they fit, then the keys with the most requests.
//!
//! A full table uses the *space-saving* algorithm of A. Metwally, D. Agrawal and A. El Abbadi,
//! *Efficient Computation of Frequent and Top-k Elements in Data Streams* (ICDT 2005): a new key
//! replaces the key with the fewest requests. It may have had as many requests before, which were
//! not counted ([`Entry::missed`]). Of N requests and m places, every key with more than N/m
//! requests is in the table, and no `missed` exceeds N/m. Unlike in the paper, the new key does not
//! inherit the tally of the replaced key: that tally is added to [`Table::rest`], so that the sum
//! of entries and rest is exact.

use super::latencies::{Counts, RANGES};
use super::recent::Ids;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    /// Sum and maximum of the durations.
    pub(crate) time: u64,
    pub(crate) longest: u64,
    /// Events lost.
    pub(crate) lost: u64,
}

impl Tally {
    #[inline]
    pub(crate) fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
        self.time = self.time.saturating_add(other.time);
        self.longest = self.longest.max(other.longest);
        self.lost = self.lost.saturating_add(other.lost);
    }
}

/// Counts of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) tally: Tally,
    /// Maximum number of requests of this key that are counted in the rest.
    pub(crate) missed: u64,
}

impl Entry {
    /// Returns the maximum number of requests of this key.
    fn most(&self) -> u64 {
        self.tally.requests + self.missed
    }
}

/// Size of the cache of recently used places, indexed by the low bits of the key.
const GUESSES: usize = 1024;

/// Tallies by key, for a bounded number of keys.
#[derive(Debug)]
pub(crate) struct Table {
    places: usize,
    entries: Vec<Entry>,
    latencies: Vec<Counts>,
    index: Ids<u32>,
    guesses: Vec<u32>,
    /// Entries by [`Entry::most`], which may have grown since. Built when the table is full.
    fewest: BinaryHeap<Reverse<(u64, u32)>>,
    rest: Tally,
    /// Maximum number of requests of a key that is neither here nor in the [merged](Table::merge)
    /// tables.
    unseen: u64,
}

impl Table {
    pub(crate) fn new(places: usize) -> Table {
        Table {
            places: places.max(1),
            entries: Vec::new(),
            latencies: Vec::new(),
            index: Ids::default(),
            guesses: vec![0; GUESSES],
            fewest: BinaryHeap::new(),
            rest: Tally::default(),
            unseen: 0,
        }
    }

    /// Counts a request (or a loss) for a key.
    #[inline]
    pub(crate) fn add(&mut self, key: u64, tally: &Tally, range: u16) {
        let place = self.place(key);
        self.entries[place].tally.add(tally);
        if tally.requests > 0 {
            let count = &mut self.latencies[place][usize::from(range)];
            *count = count.saturating_add(1);
        }
    }

    #[inline]
    fn place(&mut self, key: u64) -> usize {
        let guess = self.guesses[key as usize % GUESSES];
        if self.entries.get(guess as usize).is_some_and(|entry| entry.key == key) {
            return guess as usize;
        }
        let place = self.index.get(&key).copied().unwrap_or_else(|| self.enter(key));
        self.guesses[key as usize % GUESSES] = place;
        place as usize
    }

    fn enter(&mut self, key: u64) -> u32 {
        let place = if self.entries.len() < self.places {
            self.entries.push(Entry { key, tally: Tally::default(), missed: self.unseen });
            self.latencies.push([0; RANGES]);
            (self.entries.len() - 1) as u32
        } else {
            let (place, most) = self.least();
            let gone = &mut self.entries[place as usize];
            self.rest.add(&gone.tally);
            self.index.remove(&gone.key);
            *gone = Entry { key, tally: Tally::default(), missed: most.max(self.unseen) };
            self.fewest.push(Reverse((gone.most(), place)));
            self.latencies[place as usize] = [0; RANGES];
            place
        };
        self.index.insert(key, place);
        place
    }

    /// Takes the entry with the fewest requests out of the heap. An outdated heap entry has had a
    /// request since it was pushed, so the cost is at most a logarithm per request.
    fn least(&mut self) -> (u32, u64) {
        if self.fewest.is_empty() {
            let all = self.entries.iter().enumerate();
            self.fewest = all.map(|(place, entry)| Reverse((entry.most(), place as u32))).collect();
        }
        while let Some(Reverse((most, place))) = self.fewest.pop() {
            let now = self.entries[place as usize].most();
            if now == most {
                return (place, most);
            }
            self.fewest.push(Reverse((now, place)));
        }
        (0, self.entries[0].most())
    }

    /// Adds a finished period.
    pub(crate) fn merge(&mut self, other: &PackedTable) {
        if other.floor > 0 {
            self.entries.iter_mut().for_each(|entry| entry.missed += other.floor);
            self.fewest.clear();
        }
        for (entry, latencies) in other.iter() {
            let was_here = self.index.contains_key(&entry.key);
            let place = self.place(entry.key);
            let known = &mut self.entries[place];
            known.tally.add(&entry.tally);
            known.missed += entry.missed;
            known.missed -= if was_here { other.floor } else { 0 };
            for (range, count) in latencies {
                let sum = &mut self.latencies[place][usize::from(*range)];
                *sum = sum.saturating_add(*count);
            }
        }
        self.rest.add(&other.rest);
        self.unseen += other.floor;
        // The heap must not contain values above the current ones.
        self.fewest.clear();
    }

    /// Returns the packed counts and empties the table.
    pub(crate) fn finish(&mut self) -> PackedTable {
        let finished = self.packed();
        self.entries.clear();
        self.latencies.clear();
        self.index.clear();
        self.fewest.clear();
        (self.rest, self.unseen) = (Tally::default(), 0);
        finished
    }

    /// Returns the packed counts.
    pub(crate) fn packed(&self) -> PackedTable {
        let full = self.entries.len() == self.places && self.rest != Tally::default();
        let floor = if full { self.entries.iter().map(Entry::most).min().unwrap_or(0) } else { 0 };
        let mut finished = PackedTable {
            entries: Vec::with_capacity(self.entries.len()),
            latencies: Vec::new(),
            rest: self.rest,
            floor: floor.max(self.unseen),
        };
        for (entry, counts) in self.entries.iter().zip(&self.latencies) {
            let counted = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            finished.latencies.extend(counted.map(|(range, count)| (range as u16, *count)));
            finished.entries.push((*entry, finished.latencies.len() as u32));
        }
        finished.latencies.shrink_to_fit();
        finished
    }
}

/// Immutable table in compact form.
#[derive(Debug, Default)]
pub(crate) struct PackedTable {
    /// Entries, each with the end of its latencies.
    entries: Vec<(Entry, u32)>,
    /// Pairs of range and count.
    latencies: Vec<(u16, u32)>,
    pub(crate) rest: Tally,
    /// Maximum number of requests of a key that is not here.
    pub(crate) floor: u64,
}

impl PackedTable {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Entry, &[(u16, u32)])> {
        let mut begin = 0;
        self.entries.iter().map(move |(entry, end)| {
            let latencies = &self.latencies[begin..*end as usize];
            begin = *end as usize;
            (entry, latencies)
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<(Entry, u32)>() * self.entries.capacity()
            + size_of::<(u16, u32)>() * self.latencies.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Table, Tally};
    use std::collections::HashMap;

    const ONE: Tally =
        Tally { requests: 1, failed: 0, bytes_read: 2, bytes_written: 0, time: 3, longest: 3, lost: 0 };

    /// Returns requests of a skewed distribution: key k has a share of about 1/(k+1).
    fn skewed(requests: usize, seed: u64) -> impl Iterator<Item = u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..requests).map(move |_| (5_000f64.powf(random.f64()) - 1.0) as u64)
    }

    fn check(finished: &super::PackedTable, truth: &HashMap<u64, u64>, places: u64) {
        let total: u64 = truth.values().sum();
        let here: HashMap<u64, Entry> = finished.iter().map(|(entry, _)| (entry.key, *entry)).collect();
        for (key, count) in truth {
            match here.get(key) {
                Some(entry) => {
                    let counted = entry.tally.requests;
                    assert!(
                        counted <= *count && *count <= counted + entry.missed,
                        "{key}: {count}, {entry:?}"
                    );
                    assert!(entry.missed <= total / places, "{entry:?} of {total}");
                }
                None => {
                    assert!(*count <= finished.floor && finished.floor <= total / places, "{key}: {count}")
                }
            }
        }
        let counted: u64 = here.values().map(|entry| entry.tally.requests).sum();
        assert_eq!(counted + finished.rest.requests, total);
        for (entry, latencies) in finished.iter() {
            assert_eq!(latencies, [(9, entry.tally.requests as u32)]);
        }
    }

    #[test]
    fn counts_are_exact_or_within_the_bound() {
        for (places, requests) in [(6_000, 20_000), (100, 20_000), (1, 50)] {
            let mut table = Table::new(places);
            let mut truth = HashMap::<u64, u64>::new();
            for key in skewed(requests, 7) {
                table.add(key, &ONE, 9);
                *truth.entry(key).or_default() += 1;
            }
            let finished = table.finish();
            check(&finished, &truth, places as u64);
            assert_eq!(finished.rest.requests == 0, places == 6_000);
            assert!(table.packed().iter().next().is_none());
        }
    }

    #[test]
    fn merged_periods_keep_the_bound() {
        let (places, mut sum, mut part) = (150, Table::new(150), Table::new(150));
        let mut truth = HashMap::<u64, u64>::new();
        for seed in 1..20 {
            for key in skewed(3_000, seed) {
                let key = key.wrapping_mul(if key > 200 { seed } else { 1 });
                part.add(key, &ONE, 9);
                *truth.entry(key).or_default() += 1;
            }
            sum.merge(&part.finish());
        }
        let finished = sum.packed();
        let total: u64 = truth.values().sum();
        let here: HashMap<u64, Entry> = finished.iter().map(|(entry, _)| (entry.key, *entry)).collect();
        assert_eq!(here.values().map(|e| e.tally.requests).sum::<u64>() + finished.rest.requests, total);
        for (key, count) in truth {
            let (counted, missed) =
                here.get(&key).map_or((0, finished.floor), |e| (e.tally.requests, e.missed));
            assert!(counted <= count && count <= counted + missed, "{key}: {count}, {counted} + {missed}");
        }
        assert!(finished.floor <= 2 * total / places, "{} of {total}", finished.floor);
    }
}

//! Requests that producers committed, as they counted them.

use crate::victim::{DONE, LIVES, WORDS, tag};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A producer: one run of the program `victim`.
#[derive(Clone, Debug)]
pub struct Producer {
    /// Name of its node.
    pub node: String,
    /// Process id on that node.
    pub pid: u32,
    /// Number of requests after which it reports its count.
    pub stride: u64,
    /// Number of different paths. 0: each request has another path.
    pub paths: u64,
}

/// Requests of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    /// Requests that were certainly committed.
    pub made: u64,
    /// Requests that may have been committed.
    pub most: u64,
    /// Requests that could not begin: no log-client was there, or no lane was free.
    pub refused: u64,
}

/// Requests of all producers of a trace.
#[derive(Debug, Default)]
pub struct Asked {
    producers: BTreeMap<u64, Producer>,
    threads: BTreeMap<u64, Thread>,
}

impl Asked {
    /// Reads the counts of a producer that has ended from its progress file, and removes the file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn harvest(&mut self, number: u64, producer: Producer, progress: &Path) -> std::io::Result<()> {
        let bytes = fs::read(progress)?;
        for (life, words) in (0..LIVES).zip(bytes.as_chunks::<{ WORDS * 8 }>().0) {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| words[at * 8 + i]));
            let (made, done, refused) = (word(0) & !DONE, word(0) & DONE != 0, word(1));
            // The second request of a pair may lie beyond the stride.
            let most = if done { made } else { made + producer.stride + 1 };
            self.threads.insert(tag(number, life), Thread { made, most, refused });
        }
        self.producers.insert(number, producer);
        fs::remove_file(progress)
    }

    /// Producer with this number.
    #[must_use]
    pub fn producer(&self, number: u64) -> Option<&Producer> {
        self.producers.get(&number)
    }

    /// Thread with this tag.
    #[must_use]
    pub fn thread(&self, tag: u64) -> Option<&Thread> {
        self.threads.get(&tag)
    }

    /// All threads by tag.
    pub fn threads(&self) -> impl Iterator<Item = (u64, &Thread)> {
        self.threads.iter().map(|(tag, thread)| (*tag, thread))
    }

    /// Number of requests that a producer could not begin.
    #[must_use]
    pub fn refused(&self, number: u64) -> u64 {
        self.threads.range(tag(number, 0)..tag(number + 1, 0)).map(|(_, thread)| thread.refused).sum()
    }

    /// Number of requests that were certainly committed.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.threads.values().map(|thread| thread.made).sum()
    }
}

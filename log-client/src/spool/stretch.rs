//! Marks in a file, at which reading goes on after damage.

use super::format::{self, Begins};

/// Bytes between marks: what damage can cost. Marks take less than a thousandth of them.
const EVERY: usize = if cfg!(test) { 400 } else { 64 << 10 };

/// What was written since the last mark.
#[derive(Debug)]
pub(super) struct Stretch {
    salt: u128,
    bytes: usize,
    /// All messages but batches.
    copies: Vec<u8>,
}

impl Stretch {
    pub(super) fn new(salt: u128) -> Stretch {
        Stretch { salt, bytes: 0, copies: Vec::new() }
    }

    /// These whole frames are in the file now.
    pub(super) fn note(&mut self, mut frames: &[u8]) {
        self.bytes += frames.len();
        while let Begins::Frame(frame, rest) = Begins::of(frames) {
            if frame.number().is_some() && !frame.is_batch() && !frame.is_sample() {
                self.copies.extend_from_slice(frame.bytes);
            }
            frames = rest;
        }
    }

    /// The mark that is to be written now, if it is time for one.
    pub(super) fn due(&self) -> Option<Vec<u8>> {
        (self.bytes >= EVERY).then(|| self.mark())
    }

    /// The mark that ends the file, if it needs one.
    pub(super) fn last(&self) -> Option<Vec<u8>> {
        (self.bytes > 0).then(|| self.mark())
    }

    /// The mark is in the file.
    pub(super) fn marked(&mut self) {
        self.bytes = 0;
        self.copies.clear();
    }

    fn mark(&self) -> Vec<u8> {
        [&format::mark(self.salt)[..], &self.copies].concat()
    }
}

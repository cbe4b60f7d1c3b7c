//! Marks in a file, at which reading continues after damage.

use super::format::{self, FramePrefix};

/// Bytes between marks: the maximum loss by one damage. Marks take less than a thousandth of the
/// file.
const EVERY: usize = if cfg!(test) { 400 } else { 64 << 10 };

/// The messages written since the last mark.
#[derive(Debug)]
pub(super) struct MarkInterval {
    salt: u128,
    bytes: usize,
    /// All messages except batches.
    copies: Vec<u8>,
}

impl MarkInterval {
    pub(super) fn new(salt: u128) -> MarkInterval {
        MarkInterval { salt, bytes: 0, copies: Vec::new() }
    }

    /// Records whole frames that were written.
    pub(super) fn note(&mut self, mut frames: &[u8]) {
        self.bytes += frames.len();
        while let FramePrefix::Frame(frame, rest) = FramePrefix::of(frames) {
            if frame.number().is_some() && !frame.is_batch() && !frame.is_sample() {
                self.copies.extend_from_slice(frame.bytes);
            }
            frames = rest;
        }
    }

    /// The mark that must be written now, if the interval is full.
    pub(super) fn due(&self) -> Option<Vec<u8>> {
        (self.bytes >= EVERY).then(|| self.mark())
    }

    /// The mark that ends the file, if anything was written since the last one.
    pub(super) fn last(&self) -> Option<Vec<u8>> {
        (self.bytes > 0).then(|| self.mark())
    }

    /// Records that the mark was written.
    pub(super) fn marked(&mut self) {
        self.bytes = 0;
        self.copies.clear();
    }

    fn mark(&self) -> Vec<u8> {
        [&format::mark(self.salt)[..], &self.copies].concat()
    }
}

//! Reading a file frame by frame, through a small window.

use super::format::{Begins, Frame};
use miot_proto::wire::FRAME_HEADER;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes read at a time; a larger frame is read whole.
const WINDOW: usize = 256 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Scan {
    file: File,
    /// Place in the file of the next frame.
    at: u64,
    /// The frame at `at` and some of what follows.
    window: Vec<u8>,
    /// Place of `at` in the window.
    used: usize,
}

/// What was found.
#[derive(Debug)]
pub(super) enum Found<'a> {
    Frame(Frame<'a>),
    /// The end.
    End,
    /// The beginning of a frame, and the end.
    Torn,
    /// Not a frame.
    Damage,
}

/// [`Found`], with the length of a frame.
enum Look {
    Frame(usize),
    End,
    Torn,
    Damage,
}

impl Scan {
    pub(super) fn new(file: File, at: u64) -> Scan {
        Scan { file, at, window: Vec::new(), used: 0 }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next frame before `end`.
    pub(super) fn next(&mut self, end: u64) -> io::Result<Found<'_>> {
        let length = match self.look(end)? {
            Look::Frame(length) => length,
            Look::End => return Ok(Found::End),
            Look::Torn => return Ok(Found::Torn),
            Look::Damage => return Ok(Found::Damage),
        };
        let bytes = &self.window[self.used..self.used + length];
        self.used += length;
        self.at += length as u64;
        let payload = &bytes[FRAME_HEADER..];
        Ok(Found::Frame(Frame {
            bytes,
            payload,
            crc: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }))
    }

    /// True if the next frame before `end` is damaged or not whole.
    pub(super) fn is_damaged(&mut self, end: u64) -> io::Result<bool> {
        Ok(matches!(self.look(end)?, Look::Torn | Look::Damage))
    }

    /// What comes next before `end`.
    fn look(&mut self, end: u64) -> io::Result<Look> {
        loop {
            match Begins::of(&self.window[self.used..]) {
                Begins::Frame(frame, _) => return Ok(Look::Frame(frame.bytes.len())),
                Begins::Nonsense => return Ok(Look::Damage),
                Begins::Part(_) if self.at >= end => return Ok(Look::End),
                Begins::Part(length) => {
                    if !self.fill(length, end)? {
                        return Ok(Look::Torn);
                    }
                }
            }
        }
    }

    /// After damage: goes to the next mark before `end`. False if there is none; then it is at `end`.
    pub(super) fn find(&mut self, mark: &[u8], end: u64) -> io::Result<bool> {
        loop {
            let have = &self.window[self.used..];
            let found = have.windows(mark.len()).position(|bytes| bytes == mark);
            // One may begin where the window ends.
            let passed = found.unwrap_or(have.len().saturating_sub(mark.len() - 1));
            self.used += passed;
            self.at += passed as u64;
            if found.is_some() {
                return Ok(true);
            }
            if !self.fill(mark.len(), end)? {
                (self.at, self.used) = (end, 0);
                self.window.clear();
                return Ok(false);
            }
        }
    }

    /// Moves the window so that it holds `length` bytes of the next frame. False if the file has fewer before `end`.
    fn fill(&mut self, length: usize, end: u64) -> io::Result<bool> {
        let left = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        if length > left {
            return Ok(false);
        }
        self.window.drain(..self.used);
        self.used = 0;
        let mut have = self.window.len();
        self.window.resize(length.max(WINDOW).min(left), 0);
        while have < self.window.len() {
            match self.file.read_at(&mut self.window[have..], self.at + have as u64) {
                Ok(0) => break,
                Ok(more) => have += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.window.truncate(have);
                    return Err(error);
                }
            }
        }
        self.window.truncate(have);
        Ok(have >= length)
    }
}

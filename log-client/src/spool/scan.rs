//! Reads a file frame by frame, through a small window.

use super::format::{Frame, FramePrefix};
use miot_proto::wire::FRAME_HEADER;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes read at a time; a larger frame is read whole.
const WINDOW: usize = 256 << 10;

/// Scanner of the frames of a file.
#[derive(Debug)]
pub(super) struct FrameScanner {
    file: File,
    /// Offset in the file of the next frame.
    at: u64,
    /// The frame at `at` and some bytes after it.
    window: Vec<u8>,
    /// Index of `at` in the window.
    used: usize,
}

/// Result of reading a frame.
#[derive(Debug)]
pub(super) enum ScanResult<'a> {
    Frame(Frame<'a>),
    /// The end of the file.
    End,
    /// The beginning of a frame, cut off by the end of the file.
    Torn,
    /// Not a frame.
    Damage,
}

/// [`ScanResult`] with the length in place of the frame.
enum PeekResult {
    Frame(usize),
    End,
    Torn,
    Damage,
}

impl FrameScanner {
    pub(super) fn new(file: File, at: u64) -> FrameScanner {
        FrameScanner { file, at, window: Vec::new(), used: 0 }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Reads the next frame before `end`.
    pub(super) fn next(&mut self, end: u64) -> io::Result<ScanResult<'_>> {
        let length = match self.peek(end)? {
            PeekResult::Frame(length) => length,
            PeekResult::End => return Ok(ScanResult::End),
            PeekResult::Torn => return Ok(ScanResult::Torn),
            PeekResult::Damage => return Ok(ScanResult::Damage),
        };
        let bytes = &self.window[self.used..self.used + length];
        self.used += length;
        self.at += length as u64;
        let payload = &bytes[FRAME_HEADER..];
        Ok(ScanResult::Frame(Frame {
            bytes,
            payload,
            crc: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }))
    }

    /// True if the next frame before `end` is damaged or incomplete.
    pub(super) fn is_damaged(&mut self, end: u64) -> io::Result<bool> {
        Ok(matches!(self.peek(end)?, PeekResult::Torn | PeekResult::Damage))
    }

    /// Examines the next frame before `end` without consuming it.
    fn peek(&mut self, end: u64) -> io::Result<PeekResult> {
        loop {
            match FramePrefix::of(&self.window[self.used..]) {
                FramePrefix::Frame(frame, _) => return Ok(PeekResult::Frame(frame.bytes.len())),
                FramePrefix::Invalid => return Ok(PeekResult::Damage),
                FramePrefix::Incomplete(_) if self.at >= end => return Ok(PeekResult::End),
                FramePrefix::Incomplete(length) => {
                    if !self.fill(length, end)? {
                        return Ok(PeekResult::Torn);
                    }
                }
            }
        }
    }

    /// After damage: skips to the next mark before `end`. Returns false if there is none; then the
    /// position is `end`.
    pub(super) fn skip_to_mark(&mut self, mark: &[u8], end: u64) -> io::Result<bool> {
        loop {
            let have = &self.window[self.used..];
            let found = have.windows(mark.len()).position(|bytes| bytes == mark);
            // A mark may begin at the end of the window.
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

    /// Moves the window so that it holds `length` bytes from the position on. Returns false if the
    /// file has fewer before `end`.
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

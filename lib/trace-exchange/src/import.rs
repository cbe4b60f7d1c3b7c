//! Code that imports share: lines of files, and the handling and reporting of invalid ones.

use crate::build;
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::PathBuf;

/// Longest line, bytes: strings are cut by strace, paths are at most 4096 bytes.
pub const MAX_LINE: usize = 1 << 20;

/// Lines that are told one by one.
const TOLD: usize = 20;

/// What to do with a line that is not understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Leave it out, and tell.
    #[default]
    Skip,
    /// Refuse the whole import.
    Stop,
}

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line is not understood, and that was to stop the import.
    #[error("{}", .0)]
    Line(BadLine),
    /// The trace cannot be built.
    #[error(transparent)]
    Build(#[from] build::Error),
}

/// A line that was not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Which file.
    pub file: String,
    /// From 1.
    pub line: u64,
    /// What was expected.
    pub why: &'static str,
    /// Its begin.
    pub text: String,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, line {}: {}: {}", self.file, self.line, self.why, self.text)
    }
}

/// What an import found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Lines read.
    pub lines: u64,
    /// Lines that were left out because they were not understood.
    pub skipped: u64,
    /// The first of them.
    pub bad: Vec<BadLine>,
    /// Calls and the like that are no I/O on files, or not known, by name.
    pub others: BTreeMap<String, u64>,
    /// Other things to know.
    pub notes: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Counts a line that was not understood.
    ///
    /// # Errors
    /// [`Error::Line`], if that is to stop the import.
    pub fn bad(&mut self, on_error: OnError, bad: impl FnOnce() -> BadLine) -> Result<(), Error> {
        if on_error == OnError::Stop {
            return Err(Error::Line(bad()));
        }
        self.skipped += 1;
        if self.bad.len() < TOLD {
            self.bad.push(bad());
        }
        Ok(())
    }

    /// Counts something to know.
    pub fn note(&mut self, what: &'static str) {
        *self.notes.entry(what).or_default() += 1;
    }
}

/// The begin of a line, without control characters.
#[must_use]
pub fn shown(line: &[u8]) -> String {
    const SHOWN: usize = 80;
    let text = line[..line.len().min(SHOWN)].escape_ascii().to_string();
    if line.len() > SHOWN { format!("{text}…") } else { text }
}

/// Reads a line without its end into `line`; how many bytes it took, 0 at the end. Of a line longer than [`MAX_LINE`] the
/// rest is dropped.
///
/// # Errors
/// Those of the reader.
pub fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    let mut taken = 0;
    loop {
        let buffer = from.fill_buf()?;
        let (end, used) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (buffer.is_empty(), buffer.len()),
        };
        let text = &buffer[..used];
        let room = MAX_LINE.saturating_sub(line.len());
        line.extend_from_slice(&text[..text.len().min(room)]);
        from.consume(used);
        taken += used;
        if end {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            return Ok(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINE, read_line, shown};

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_are_cut() {
        let text = [&b"a\n\n"[..], &vec![b'x'; MAX_LINE + 5], b"\nend"].concat();
        let mut from = std::io::BufReader::with_capacity(1000, &text[..]);
        let mut line = Vec::new();
        let mut lengths = Vec::new();
        while read_line(&mut from, &mut line).unwrap() > 0 {
            lengths.push(line.len());
        }
        assert_eq!(lengths, [1, 0, MAX_LINE, 3]);
        assert_eq!(shown(b"a\x1b[2J"), "a\\x1b[2J");
    }
}

//! Code that imports share: reading lines, and handling and reporting invalid ones.

use crate::build;
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::PathBuf;

/// Maximum length of a line in bytes: strace truncates strings, and paths have at most 4096 bytes.
pub const MAX_LINE: usize = 1 << 20;

/// Maximum number of invalid lines that are reported individually.
const MAX_REPORTED: usize = 20;

/// Handling of an invalid line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Skip the line and report it.
    #[default]
    Skip,
    /// Abort the whole import.
    Stop,
}

/// Reason why an import failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A line is invalid, and invalid lines abort the import.
    #[error("{}", .0)]
    Line(BadLine),
    /// The trace cannot be built.
    #[error(transparent)]
    Build(#[from] build::Error),
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Name of the file.
    pub file: String,
    /// Line number from 1.
    pub line: u64,
    /// What was expected.
    pub why: &'static str,
    /// Beginning of the line.
    pub text: String,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, line {}: {}: {}", self.file, self.line, self.why, self.text)
    }
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Lines read.
    pub lines: u64,
    /// Invalid lines that were skipped.
    pub skipped: u64,
    /// The first skipped lines.
    pub bad: Vec<BadLine>,
    /// Calls and similar entries that are unknown or not I/O on files, by name.
    pub others: BTreeMap<String, u64>,
    /// Other notes, with their counts.
    pub notes: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Counts an invalid line.
    ///
    /// # Errors
    /// [`Error::Line`], if invalid lines abort the import.
    pub fn bad(&mut self, on_error: OnError, bad: impl FnOnce() -> BadLine) -> Result<(), Error> {
        if on_error == OnError::Stop {
            return Err(Error::Line(bad()));
        }
        self.skipped += 1;
        if self.bad.len() < MAX_REPORTED {
            self.bad.push(bad());
        }
        Ok(())
    }

    /// Counts a note.
    pub fn note(&mut self, text: &'static str) {
        *self.notes.entry(text).or_default() += 1;
    }
}

/// Returns the beginning of a line, without control characters.
#[must_use]
pub fn shown(line: &[u8]) -> String {
    const SHOWN: usize = 80;
    let text = line[..line.len().min(SHOWN)].escape_ascii().to_string();
    if line.len() > SHOWN { format!("{text}…") } else { text }
}

/// Reads a line without its end into `line`. Returns the number of bytes read, 0 at the end. Only
/// [`MAX_LINE`] bytes of a longer line are kept.
///
/// # Errors
/// Errors of the reader.
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
        let space = MAX_LINE.saturating_sub(line.len());
        line.extend_from_slice(&text[..text.len().min(space)]);
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
    fn long_lines_are_truncated() {
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

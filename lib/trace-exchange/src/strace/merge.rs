//! Merges the lines of several files by time.
//!
//! A file of `-ff` contains one thread, with each call at its begin. A descriptor exists once the
//! call that created it has returned, so lines are merged by the return time of their calls. A new
//! thread, however, runs before the call that created it returns, so those calls are merged by
//! their begin.

use super::syntax::{self, StraceLine};
use crate::import::{Error, read_line};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::path::PathBuf;

/// Maximum number of files that are kept open. With more files, each is reopened for every read.
const OPEN: usize = 256;
/// Number of bytes that are searched for the working directory.
const LOOK: u64 = 4 << 20;
/// Number of bytes read at once.
const CHUNK: usize = 64 << 10;

/// A line and its origin.
pub(super) struct Line<'a> {
    pub(super) file: &'a str,
    /// Thread id from the name of the file.
    pub(super) tid: Option<u32>,
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) text: &'a [u8],
}

/// Reader of a file that is open only during a read, or all the time.
#[derive(Debug)]
struct Chunks {
    path: PathBuf,
    file: Option<File>,
    keep_open: bool,
    /// Number of bytes read from the file.
    at: u64,
    chunk: Vec<u8>,
    /// Number of bytes consumed of the chunk.
    taken: usize,
}

impl Read for Chunks {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let taken = self.fill_buf()?.read(to)?;
        self.consume(taken);
        Ok(taken)
    }
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.chunk.len() {
            let mut file = match self.file.take() {
                Some(file) => file,
                None => {
                    let mut file = File::open(&self.path)?;
                    if self.at > 0 {
                        file.seek(SeekFrom::Start(self.at))?;
                    }
                    file
                }
            };
            self.chunk.resize(CHUNK, 0);
            let read = file.read(&mut self.chunk);
            self.taken = 0;
            self.chunk.truncate(*read.as_ref().unwrap_or(&0));
            self.at += read? as u64;
            self.file = self.keep_open.then_some(file);
        }
        Ok(&self.chunk[self.taken..])
    }

    fn consume(&mut self, bytes: usize) {
        self.taken += bytes;
    }
}

#[derive(Debug)]
struct Source {
    name: String,
    tid: Option<u32>,
    from: Chunks,
    text: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// Lines of all files.
#[derive(Debug)]
pub(super) struct Lines {
    sources: Vec<Source>,
    next: BinaryHeap<Reverse<(i64, usize)>>,
    /// Source of the last returned line; its next line has not been read yet.
    given: Option<usize>,
}

impl Lines {
    pub(super) fn open(files: &[PathBuf]) -> Result<Lines, Error> {
        let mut lines = Lines { sources: Vec::new(), next: BinaryHeap::new(), given: None };
        let keep_open = files.len() <= OPEN;
        for (at, path) in files.iter().enumerate() {
            let name = path.display().to_string();
            let tid = path.extension().and_then(|end| end.to_str()?.parse().ok());
            let from =
                Chunks { path: path.clone(), file: None, keep_open, at: 0, chunk: Vec::new(), taken: 0 };
            let source = Source { name, tid, from, text: Vec::new(), number: 0, bytes: 0 };
            lines.sources.push(source);
            lines.advance(at, i64::MIN)?;
        }
        Ok(lines)
    }

    /// Returns the working directory of the first thread from the first call that shows it, unless
    /// the directory was changed before.
    pub(super) fn directory(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some(Reverse((_, first))) = self.next.peek() else { return Ok(None) };
        let path = &self.sources[*first].from.path;
        let look = || -> std::io::Result<Option<Vec<u8>>> {
            let file = File::open(path)?;
            // A pipe cannot be read twice.
            if !file.metadata()?.is_file() {
                return Ok(None);
            }
            let (mut from, mut line) = (BufReader::new(file.take(LOOK)), Vec::new());
            while read_line(&mut from, &mut line)? > 0 {
                let Some(rest) = syntax::head(&line).ok().map(|head| head.rest) else { continue };
                if rest.starts_with(b"chdir(") || rest.starts_with(b"fchdir(") {
                    break;
                }
                if let Some(directory) = syntax::working_directory(rest) {
                    return Ok(Some(directory));
                }
            }
            Ok(None)
        };
        look().map_err(|source| Error::Read { path: path.clone(), source })
    }

    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, Error> {
        if let Some((at, time)) = self.given.take().map(|at| (at, self.time_of(at))) {
            self.advance(at, time)?;
        }
        let Some(Reverse((_, at))) = self.next.pop() else { return Ok(None) };
        self.given = Some(at);
        let Source { name, tid, number, bytes, text, .. } = &self.sources[at];
        Ok(Some(Line { file: name, tid: *tid, number: *number, bytes: *bytes, text }))
    }

    fn time_of(&self, at: usize) -> i64 {
        if self.sources.len() == 1 { 0 } else { key(&self.sources[at].text).unwrap_or(i64::MIN) }
    }

    /// Reads the next line of a file. A line without a time is sorted directly after the previous
    /// one.
    fn advance(&mut self, at: usize, before: i64) -> Result<(), Error> {
        let source = &mut self.sources[at];
        let taken = read_line(&mut source.from, &mut source.text)
            .map_err(|error| Error::Read { path: source.from.path.clone(), source: error })?;
        if taken == 0 {
            return Ok(());
        }
        source.number += 1;
        source.bytes = taken as u64;
        let time = if self.sources.len() == 1 { 0 } else { key(&self.sources[at].text).unwrap_or(before) };
        self.next.push(Reverse((time.max(before), at)));
        Ok(())
    }
}

/// Returns the time by which a line is sorted.
fn key(line: &[u8]) -> Option<i64> {
    let head = syntax::head(line).ok()?;
    let took = match syntax::body(head.rest) {
        Ok(StraceLine::Call { name, result, .. }) if !super::is_clone(name) => result.duration.unwrap_or(0),
        _ => 0,
    };
    Some(head.time.saturating_add(took))
}

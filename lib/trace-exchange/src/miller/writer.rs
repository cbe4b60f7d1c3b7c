//! Writes records as text.

use super::state::{CodecState, Process};
use super::{BLOCK, Record, RecordType, compression};
use std::io::{self, Write};

/// Files of a process from whose last record others may follow, as the appendix has it.
const FILES: usize = 32;

/// Processes whose files are remembered; the least recently used half is forgotten when there are more. A program of one
/// process never meets it.
const PROCESSES: usize = 4096;

/// Writes a trace. Memory does not grow with its length.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    allowed: u8,
    state: CodecState,
    /// A record had an operation. Until then there is none that a reader could remember and this writer have forgotten.
    operations: bool,
    now: u64,
    line: Vec<u8>,
    records: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Uses every kind of compression, wherever it makes a record shorter.
    pub fn new(to: W) -> Writer<W> {
        Writer::with(to, compression::ALL)
    }

    /// Uses only these kinds of compression, see [`compression`].
    pub fn with(to: W, allowed: u8) -> Writer<W> {
        Writer {
            to,
            allowed,
            state: CodecState::default(),
            operations: false,
            now: 0,
            line: Vec::new(),
            records: 0,
            bytes: 0,
        }
    }

    /// Records that were written.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes that were written, with comments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it was made with.
    pub fn into_inner(self) -> W {
        self.to
    }

    /// Writes what is buffered below.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Writes a comment. Each line of the text becomes one.
    ///
    /// # Errors
    /// Those of writing.
    pub fn comment(&mut self, text: &[u8]) -> io::Result<()> {
        for line in text.split(|byte| *byte == b'\n') {
            self.line.clear();
            self.line.extend_from_slice(b"FF ");
            self.line.extend_from_slice(line);
            self.end_line()?;
        }
        Ok(())
    }

    /// Writes a record, without the bit of its type that has no meaning. Records must come in the order of their start: the format has no way to go back.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`]: it starts before the record before it, and nothing was written. Those of writing.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        let Some(since) = record.start.checked_sub(self.state.start) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a record that starts at tick {} after one at {}", record.start, self.state.start),
            ));
        };
        let flags = self.flags(record) & self.allowed;
        let has = |bit: u8| flags & bit != 0;
        let in_blocks = |value: u64, bit: u8| if has(bit) { value / BLOCK } else { value };
        self.line.clear();
        hexadecimal(&mut self.line, (record.kind.bits() & !RecordType::RESERVED).into());
        let rest = [
            (0, flags.into()),
            (compression::NO_BLOCK, in_blocks(record.offset, compression::OFFSET_IN_BLOCKS)),
            (compression::NO_LENGTH, in_blocks(record.length, compression::LENGTH_IN_BLOCKS)),
            (0, since),
            (0, record.took),
            (compression::NO_OPERATIONID, record.operation),
            (compression::NO_FILEID, record.file),
            (compression::NO_PROCESSID, record.process),
            (0, record.process_time),
        ];
        for (left_out, value) in rest {
            if !has(left_out) {
                self.line.push(b' ');
                hexadecimal(&mut self.line, value);
            }
        }
        self.end_line()?;
        self.records += 1;
        self.remember(record);
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.line.push(b'\n');
        self.to.write_all(&self.line)?;
        self.bytes += self.line.len() as u64;
        Ok(())
    }

    /// Everything that can be left out or shortened.
    fn flags(&self, record: &Record) -> u8 {
        let logical = record.kind.is_logical();
        let process = self.state.processes.get(&record.process);
        let before = self.state.file(record.process, (logical, record.file));
        let mut flags = 0;
        let mut set = |bit: u8, applies: bool| flags |= if applies { bit } else { 0 };
        let whole = |value: u64| logical && value > 0 && value.is_multiple_of(BLOCK);
        let is_next = before.is_some_and(|file| file.next() == Some(record.offset));
        let is_as_long = before.is_some_and(|file| file.length == record.length);
        // Of flags of which one is switched off the other may still apply.
        let may = |bit: u8| self.allowed & bit != 0;
        set(compression::NO_PROCESSID, self.state.last_process == Some(record.process));
        set(compression::NO_FILEID, process.is_some_and(|of| of.last_file == Some(record.file)));
        let operation = before.map(|file| file.operation).or((!self.operations).then_some(0));
        set(compression::NO_OPERATIONID, operation == Some(record.operation));
        set(compression::NO_BLOCK, is_next);
        set(compression::OFFSET_IN_BLOCKS, !(is_next && may(compression::NO_BLOCK)) && whole(record.offset));
        set(compression::NO_LENGTH, is_as_long);
        set(
            compression::LENGTH_IN_BLOCKS,
            !(is_as_long && may(compression::NO_LENGTH)) && whole(record.length),
        );
        flags
    }

    fn remember(&mut self, record: &Record) {
        self.now += 1;
        self.operations |= record.operation != 0;
        let process = self.state.see(record, self.now);
        if process.files.len() > FILES {
            let oldest = process.files.iter().min_by_key(|(_, file)| file.used).map(|(key, _)| *key);
            oldest.and_then(|key| process.files.remove(&key));
        }
        if self.state.processes.len() > PROCESSES {
            let mut used: Vec<u64> = self.state.processes.values().map(|process| process.used).collect();
            let (_, middle, _) = used.select_nth_unstable(PROCESSES / 2);
            let middle = *middle;
            self.state.processes.retain(|_, process: &mut Process| process.used > middle);
        }
    }
}

/// Upper case, no zeros before it.
fn hexadecimal(to: &mut Vec<u8>, value: u64) {
    let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
    to.extend((0..digits).rev().map(|digit| b"0123456789ABCDEF"[(value >> (4 * digit)) as usize & 15]));
}

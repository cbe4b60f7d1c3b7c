//! Writes records as text.

use super::state::{CodecState, Process};
use super::{BLOCK, Record, RecordType, compression};
use std::io::{self, Write};

/// Number of files of a process from whose last record further records may be derived, as the
/// appendix specifies.
const FILES: usize = 32;

/// Number of processes whose files are kept. When there are more, the least recently used half is
/// dropped. A program of one process never reaches the limit.
const PROCESSES: usize = 4096;

/// Writes a trace. Memory does not grow with the length of the trace.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    allowed: u8,
    state: CodecState,
    /// True after a record had an operation. Until then no reader can have an operation that this
    /// writer has dropped.
    operations: bool,
    now: u64,
    line: Vec<u8>,
    records: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Returns a writer that uses every kind of compression where it makes a record shorter.
    pub fn new(to: W) -> Writer<W> {
        Writer::with(to, compression::ALL)
    }

    /// Returns a writer that uses only these kinds of compression, see [`compression`].
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

    /// Returns the number of records written.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of bytes written, including comments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the underlying output.
    pub fn into_inner(self) -> W {
        self.to
    }

    /// Flushes the underlying output.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Writes a comment for each line of the text.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn comment(&mut self, text: &[u8]) -> io::Result<()> {
        for line in text.split(|byte| *byte == b'\n') {
            self.line.clear();
            self.line.extend_from_slice(b"FF ");
            self.line.extend_from_slice(line);
            self.end_line()?;
        }
        Ok(())
    }

    /// Writes a record, without the undefined bit of its type. Records must be in order of their
    /// start, because the format cannot represent a decrease.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the record starts before the previous one; nothing was
    /// written then. Errors of writing.
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

    /// Returns the flags of all possible compressions.
    fn flags(&self, record: &Record) -> u8 {
        let logical = record.kind.is_logical();
        let process = self.state.processes.get(&record.process);
        let before = self.state.file(record.process, (logical, record.file));
        let mut flags = 0;
        let mut set = |bit: u8, applies: bool| flags |= if applies { bit } else { 0 };
        let whole = |value: u64| logical && value > 0 && value.is_multiple_of(BLOCK);
        let is_next = before.is_some_and(|file| file.next() == Some(record.offset));
        let is_as_long = before.is_some_and(|file| file.length == record.length);
        // If one of two related flags is disabled, the other may still apply.
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

/// Appends a number in upper case, without leading zeros.
fn hexadecimal(to: &mut Vec<u8>, value: u64) {
    let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
    to.extend((0..digits).rev().map(|digit| b"0123456789ABCDEF"[(value >> (4 * digit)) as usize & 15]));
}

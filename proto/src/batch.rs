//! Consecutive records of one stream, stored by column, and their encoding.
//!
//! Miller (1990, §3) observed that most fields of an I/O trace can be omitted because they follow
//! from the previous record: I/O is sequential, sizes repeat, files repeat. Here every column holds
//! the differences to the values that the previous row predicts, in zigzag LEB128. A column with
//! the same number in every row takes a few bytes. LZ4 over the whole batch removes further
//! repetition, if there is any.
//!
//! ```text
//! varint rows · varint extensions · 10 columns · extensions · path bytes  (then LZ4: `encode`)
//! column:     varint v of row 0      followed, if there are more rows, by
//!             0u8, varint v          every other row has v
//!             1u8, varint v          one v per other row
//! extension:  varint distance in rows to the previous one · varint length of path 1, of path 2 ·
//!             u8 present words · varint per present word
//! ```
//!
//! Input is untrusted: [`Columns::decode`] checks every count against the received bytes before it
//! reserves memory.

mod decode;
mod encode;

pub use decode::BatchDecoder;
pub use encode::BatchEncoder;

use crate::event::{EXT_WORDS, Event, Ext, NONE};
use crate::op::Op;

/// Maximum number of rows in a batch. It limits the memory of a receiver (about 6 MiB of columns).
pub const MAX_ROWS: usize = 65_536;
/// Maximum size of all paths in a batch, bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// Maximum size of an encoded batch before compression, bytes.
pub const MAX_PLAIN: usize = 12 << 20;

/// [`Columns::kind`] of a row without a record: the log-client has read records from the lane and
/// refused them. Their attempt numbers are the `length` numbers that end with the row's own. No
/// record of a lane has this kind.
pub const REFUSED: u8 = u8::MAX;

/// Number of columns in the encoding.
const COLUMNS: usize = 10;

/// Extension of one row. Its paths are ranges of [`Columns::text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtRow {
    /// Index of the row.
    pub row: u32,
    /// See [`Ext::words`].
    pub words: [Option<u64>; EXT_WORDS],
    /// Start of path 1 in the text, bytes. Path 2 follows it.
    pub text: u32,
    /// Length of path 1, bytes.
    pub len1: u16,
    /// Length of path 2, bytes.
    pub len2: u16,
}

/// Records of one stream by column. All columns have the same length; rows are in stream order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// [`crate::event::RecordKind`] as a number, or [`REFUSED`].
    pub kind: Vec<u8>,
    /// Layer and operation.
    pub op: Vec<Op>,
    /// See [`crate::event::flag`].
    pub flags: Vec<u16>,
    /// Request number.
    pub request: Vec<u32>,
    /// Request number of the parent, 0 if none.
    pub enclosing: Vec<u32>,
    /// Attempt number in the stream, counted from 0 and widened to 64 bits. A difference of more
    /// than one is a loss.
    pub attempt: Vec<u64>,
    /// Completion time, nanoseconds since 1970 by the node's clock.
    pub time: Vec<i64>,
    /// Duration, nanoseconds.
    pub duration: Vec<u64>,
    /// File handle, 0 if none.
    pub handle: Vec<u64>,
    /// See [`crate::op::ArgMeaning`].
    pub offset: Vec<u64>,
    /// See [`crate::op::ArgMeaning`].
    pub length: Vec<u64>,
    /// See [`crate::op::ResultMeaning`].
    pub result: Vec<i64>,
    /// Extensions, in row order.
    pub ext: Vec<ExtRow>,
    /// All paths, one after the other.
    pub text: Vec<u8>,
}

/// Error of [`Columns::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// The batch ends before its last column, or text is missing or left over.
    Short,
    /// The batch has more rows, text or bytes than the limits of this module allow.
    TooLarge,
    /// A number is outside its range.
    Range,
    /// LZ4 cannot decompress the batch, or not to the size in its header.
    Compression,
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BatchError::Short => "the batch is incomplete, or its text has a wrong length",
            BatchError::TooLarge => "the batch is larger than the protocol allows",
            BatchError::Range => "a number in the batch is outside its range",
            BatchError::Compression => "the batch cannot be decompressed",
        })
    }
}

impl std::error::Error for BatchError {}

impl Columns {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Returns true if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.kind.clear();
        self.op.clear();
        self.flags.clear();
        self.request.clear();
        self.enclosing.clear();
        self.attempt.clear();
        self.time.clear();
        self.duration.clear();
        self.handle.clear();
        self.offset.clear();
        self.length.clear();
        self.result.clear();
        self.ext.clear();
        self.text.clear();
    }

    /// Appends one record. `time` and `duration`, in nanoseconds, replace the ticks of `event`.
    #[inline]
    pub fn push(
        &mut self,
        kind: u8,
        attempt: u64,
        time: i64,
        duration: u64,
        event: &Event,
        ext: Option<&Ext<'_>>,
    ) {
        if let Some(ext) = ext {
            self.ext.push(ExtRow {
                row: self.kind.len() as u32,
                words: ext.words(),
                text: self.text.len() as u32,
                len1: ext.path1.len() as u16,
                len2: ext.path2.len() as u16,
            });
            self.text.extend_from_slice(ext.path1);
            self.text.extend_from_slice(ext.path2);
        }
        self.kind.push(kind);
        self.op.push(event.op);
        self.flags.push(event.flags);
        self.request.push(event.request);
        self.enclosing.push(event.enclosing);
        self.attempt.push(attempt);
        self.time.push(time);
        self.duration.push(duration);
        self.handle.push(event.handle);
        self.offset.push(event.offset);
        self.length.push(event.length);
        self.result.push(event.result);
    }

    /// Appends that the records with attempt numbers `first..=last` were refused. `time`: that of
    /// the last one, nanoseconds.
    pub fn push_refused(&mut self, first: u64, last: u64, time: i64) {
        let length = (last - first.min(last)).saturating_add(1);
        let follows = self.kind.last() == Some(&REFUSED)
            && self.attempt.last().is_some_and(|before| before.checked_add(1) == Some(first));
        if follows && let (Some(before), Some(attempt)) = (self.length.last_mut(), self.attempt.last_mut()) {
            *before = before.saturating_add(length);
            *attempt = last;
            self.time.pop();
            self.time.push(time);
            return;
        }
        let event = Event {
            op: Op { layer: 0, number: 0 },
            request: 0,
            enclosing: 0,
            end: 0,
            duration: 0,
            flags: 0,
            handle: 0,
            offset: NONE,
            length,
            result: 0,
        };
        self.push(REFUSED, last, time, 0, &event, None);
    }

    /// Returns the attempt numbers of row `row`, first and last: more than one if the row is
    /// [`REFUSED`].
    #[must_use]
    pub fn attempts_of(&self, row: usize) -> (u64, u64) {
        let last = self.attempt[row];
        let before = if self.kind[row] == REFUSED { self.length[row].saturating_sub(1) } else { 0 };
        (last.saturating_sub(before), last)
    }

    /// Number of rows that are records.
    #[must_use]
    pub fn records(&self) -> usize {
        self.kind.iter().filter(|kind| **kind != REFUSED).count()
    }

    /// Returns both paths of an extension; empty if the range is outside the text.
    #[must_use]
    pub fn paths(&self, ext: &ExtRow) -> (&[u8], &[u8]) {
        let (start, middle) = (ext.text as usize, ext.text as usize + usize::from(ext.len1));
        let end = middle + usize::from(ext.len2);
        (self.text.get(start..middle).unwrap_or(&[]), self.text.get(middle..end).unwrap_or(&[]))
    }

    /// Decodes the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are not a batch within the limits of this module.
    pub fn decode(bytes: &[u8]) -> Result<Columns, BatchError> {
        let mut columns = Columns::default();
        BatchDecoder::default().decode(bytes, &mut columns)?;
        Ok(columns)
    }
}

/// Returns the offset of a sequential request that follows one of `length` bytes at `offset`.
#[inline]
fn next_offset(offset: u64, length: u64) -> u64 {
    if offset == crate::event::NONE || length == crate::event::NONE {
        offset
    } else {
        offset.wrapping_add(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        (any::<(u8, u8, u32, u32)>(), any::<(u16, u64, u64, u64, i64)>()).prop_map(
            |((layer, number, request, enclosing), (flags, handle, offset, length, result))| Event {
                op: Op { layer, number },
                request,
                enclosing,
                end: 0,
                duration: 0,
                flags,
                handle,
                offset,
                length,
                result,
            },
        )
    }

    proptest! {
        #[test]
        fn batch_round_trips(
            rows in prop::collection::vec((event(), any::<(u8, u64, i64, u64)>(), any::<Option<(Option<u64>, Option<u64>)>>(), "[a-z/]{0,20}"), 0..200),
        ) {
            let mut columns = Columns::default();
            for (event, (kind, attempt, time, duration), ext, path) in &rows {
                let ext = ext.map(|(handle2, cpu_time)| Ext { handle2, cpu_time, path1: path.as_bytes(), path2: b"x", ..Ext::default() });
                columns.push(*kind, *attempt, *time, *duration, event, ext.as_ref());
            }
            let (mut scratch, mut bytes) = (Vec::new(), Vec::new());
            columns.encode(&mut scratch, &mut bytes);
            prop_assert_eq!(&Columns::decode(&bytes), &Ok(columns.clone()));
            // The memory of other batches, whole and damaged ones.
            let (mut decoder, mut used) = (BatchDecoder::default(), Columns::default());
            for other in [&bytes[..], &bytes[..bytes.len() / 2], &bytes] {
                let _ = decoder.decode(other, &mut used);
            }
            prop_assert_eq!(used, columns);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Columns::decode(&bytes);
            let _ = decode::decode_plain(&bytes, &mut Columns::default(), &mut Vec::new());
        }
    }

    #[test]
    fn distance_of_extensions_does_not_overflow() {
        // Two rows of zeros and two extensions without words; the second one's distance is
        // u64::MAX.
        let column = [0, 0, 0];
        let mut plain = [&[2, 2][..], &column.repeat(COLUMNS), &[1, 0, 0, 0]].concat();
        plain.extend([0xff; 9]);
        plain.extend([1, 0, 0, 0]);
        let decoded = decode::decode_plain(&plain, &mut Columns::default(), &mut Vec::new());
        assert_eq!(decoded, Err(BatchError::Range));
    }

    #[test]
    fn sequential_reads_take_few_bytes() {
        let mut columns = Columns::default();
        for i in 0..1000u64 {
            let event = Event {
                op: crate::op::posix::READ,
                request: i as u32 + 1,
                enclosing: 0,
                end: 0,
                duration: 0,
                flags: 0,
                handle: 3,
                offset: i * 4096,
                length: 4096,
                result: 4096,
            };
            columns.push(1, i, 1_700_000_000_000_000_000 + i as i64 * 1000, 800, &event, None);
        }
        let (mut scratch, mut bytes) = (Vec::new(), Vec::new());
        columns.encode(&mut scratch, &mut bytes);
        assert!(bytes.len() < 100, "{} bytes", bytes.len());
        assert_eq!(Columns::decode(&bytes), Ok(columns));
    }
}

//! Consecutive records of one stream, by column, and their encoding.
//!
//! Miller (1990, §3) observed that most fields of an I/O trace can be left out because they follow from
//! the record before: I/O is sequential, sizes repeat, files repeat. Here every column is written as the
//! difference to what the row before predicts, zigzag LEB128; a column that is the same number in every
//! row takes a few bytes; LZ4 over all of it takes out what repeats.
//!
//! ```text
//! varint rows · varint extensions · 10 columns · extensions · path bytes      (then LZ4, see `encode`)
//! column:     0u8, varint v          every row has v
//!             1u8, varint v per row
//! extension:  varint rows since the last one · varint length of path 1, of path 2 · u8 present words
//!             varint per present word
//! ```
//!
//! Nothing here trusts its input: [`Columns::decode`] checks every count against what was received
//! before it reserves memory.

use crate::event::{EXT_WORDS, Event, Ext};
use crate::op::Op;
use crate::varint;

/// Most rows in a batch: bounds what a receiver reserves (about 6 MiB of columns).
pub const MAX_ROWS: usize = 65_536;
/// Most bytes of paths in a batch.
pub const MAX_TEXT: usize = 1 << 20;
/// Most bytes of an encoded batch before compression.
pub const MAX_PLAIN: usize = 12 << 20;

/// Columns of numbers in the encoding.
const COLUMNS: usize = 10;

/// The extension of one row; paths are ranges of [`Columns::text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtRow {
    /// The row it belongs to.
    pub row: u32,
    /// See [`Ext::words`].
    pub words: [Option<u64>; EXT_WORDS],
    /// Start of path 1 in the text; path 2 follows it.
    pub text: u32,
    /// Bytes of path 1.
    pub len1: u16,
    /// Bytes of path 2.
    pub len2: u16,
}

/// Records of one stream, by column. All columns have the same length; rows are in stream order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// [`crate::event::RecordKind`] as a number.
    pub kind: Vec<u8>,
    /// Layer and operation.
    pub op: Vec<Op>,
    /// See [`crate::event::flag`].
    pub flags: Vec<u16>,
    /// Request number.
    pub request: Vec<u32>,
    /// Request number of the enclosing request, 0 if none.
    pub enclosing: Vec<u32>,
    /// Attempt number in the stream, from 0, widened: a step of more than one is a loss.
    pub attempt: Vec<u64>,
    /// Completion, nanoseconds since 1970 by the node's clock.
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
    /// Bytes of all paths.
    pub text: Vec<u8>,
}

/// Why a batch could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// It ends before its last column.
    Short,
    /// It has more rows, text or bytes than a batch may have.
    TooLarge,
    /// A number is outside its range.
    Range,
    /// The compression is broken.
    Compression,
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BatchError::Short => "the batch ends before its last column",
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

    /// True if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Removes all rows, keeps the memory.
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

    /// Appends one record; `event`'s times are replaced by `time` and `duration`, nanoseconds.
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

    /// Both paths of an extension.
    #[must_use]
    pub fn paths(&self, ext: &ExtRow) -> (&[u8], &[u8]) {
        let (start, middle) = (ext.text as usize, ext.text as usize + usize::from(ext.len1));
        let end = middle + usize::from(ext.len2);
        (self.text.get(start..middle).unwrap_or(&[]), self.text.get(middle..end).unwrap_or(&[]))
    }

    /// Encodes and compresses: `u32` length of the plain bytes, then LZ4. The plain bytes are left at the
    /// start of `scratch`.
    pub fn encode(&self, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        let plain = self.encode_plain(scratch);
        let start = out.len();
        out.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        out.resize(start + 4 + lz4_flex::block::get_maximum_output_size(plain.len()), 0);
        // The output has the maximum size, so compression cannot fail.
        let written = lz4_flex::block::compress_into(plain, &mut out[start + 4..]).unwrap_or(0);
        out.truncate(start + 4 + written);
    }

    /// `scratch` is only ever made longer: its zeros are paid for once.
    fn encode_plain<'a>(&self, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let n = self.len();
        let most = 2 * varint::MAX_BYTES
            + COLUMNS * (2 + varint::MAX_BYTES * (n + 1))
            + self.ext.len() * (1 + varint::MAX_BYTES * 11)
            + self.text.len();
        if scratch.len() < most {
            scratch.resize(most, 0);
        }
        let out = &mut varint::Writer::new(scratch);
        out.put(n as u64);
        out.put(self.ext.len() as u64);
        let shape = |i: usize| {
            u64::from(self.kind[i])
                | u64::from(self.op[i].layer) << 8
                | u64::from(self.op[i].number) << 16
                | u64::from(self.flags[i]) << 24
        };
        put_column(out, n, shape);
        put_column(out, n, |i| delta(i, |i| u64::from(self.request[i])));
        put_column(out, n, |i| match self.enclosing[i] {
            0 => 0,
            // 1 + distance, in 33 bits
            enclosing => 1 + u64::from(self.request[i].wrapping_sub(enclosing)),
        });
        put_column(out, n, |i| delta(i, |i| self.attempt[i]));
        put_column(out, n, |i| delta(i, |i| self.time[i] as u64));
        put_column(out, n, |i| self.duration[i]);
        put_column(out, n, |i| delta(i, |i| self.handle[i]));
        put_column(out, n, |i| {
            let predicted = if i == 0 { 0 } else { next_offset(self.offset[i - 1], self.length[i - 1]) };
            varint::zigzag(self.offset[i].wrapping_sub(predicted))
        });
        put_column(out, n, |i| delta(i, |i| self.length[i]));
        put_column(out, n, |i| varint::zigzag((self.result[i] as u64).wrapping_sub(self.length[i])));
        let mut last = 0;
        for ext in &self.ext {
            out.put(u64::from(ext.row - last));
            last = ext.row;
            out.put(u64::from(ext.len1));
            out.put(u64::from(ext.len2));
            let present =
                ext.words.iter().enumerate().fold(0u8, |p, (bit, w)| p | u8::from(w.is_some()) << bit);
            out.byte(present);
            ext.words.iter().flatten().for_each(|w| out.put(*w));
        }
        out.bytes(&self.text);
        let written = out.written();
        &scratch[..written]
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are not a batch within the limits of this module.
    pub fn decode(bytes: &[u8]) -> Result<Columns, BatchError> {
        let (size, packed) = bytes.split_first_chunk::<4>().ok_or(BatchError::Short)?;
        let size = u32::from_le_bytes(*size) as usize;
        // LZ4 expands at most 255 times: a larger claim is a lie about memory.
        if size > MAX_PLAIN || size > packed.len().saturating_mul(255) {
            return Err(BatchError::TooLarge);
        }
        let mut plain = vec![0; size];
        match lz4_flex::block::decompress_into(packed, &mut plain) {
            Ok(written) if written == size => Columns::decode_plain(&plain),
            _ => Err(BatchError::Compression),
        }
    }

    fn decode_plain(mut bytes: &[u8]) -> Result<Columns, BatchError> {
        let input = &mut bytes;
        let rows = take(input)?;
        let exts = take(input)?;
        if rows > MAX_ROWS as u64 || exts > rows {
            return Err(BatchError::TooLarge);
        }
        let n = rows as usize;
        let mut out = Columns::default();
        let mut column = Vec::with_capacity(n);

        take_column(input, n, &mut column)?;
        out.kind = column.iter().map(|v| *v as u8).collect();
        out.op = column.iter().map(|v| Op { layer: (v >> 8) as u8, number: (v >> 16) as u8 }).collect();
        out.flags = column.iter().map(|v| (v >> 24) as u16).collect();
        take_column(input, n, &mut column)?;
        out.request = undelta(&column).map(|v| v as u32).collect();
        take_column(input, n, &mut column)?;
        out.enclosing = column
            .iter()
            .zip(&out.request)
            .map(|(v, request)| if *v == 0 { 0 } else { request.wrapping_sub((v - 1) as u32) })
            .collect();
        take_column(input, n, &mut column)?;
        out.attempt = undelta(&column).collect();
        take_column(input, n, &mut column)?;
        out.time = undelta(&column).map(|v| v as i64).collect();
        take_column(input, n, &mut column)?;
        out.duration = column.clone();
        take_column(input, n, &mut column)?;
        out.handle = undelta(&column).collect();
        let mut offset_steps = Vec::with_capacity(n);
        take_column(input, n, &mut offset_steps)?;
        take_column(input, n, &mut column)?;
        out.length = undelta(&column).collect();
        out.offset = Vec::with_capacity(n);
        let mut predicted = 0u64;
        for (step, length) in offset_steps.iter().zip(&out.length) {
            let offset = predicted.wrapping_add(varint::unzigzag(*step));
            out.offset.push(offset);
            predicted = next_offset(offset, *length);
        }
        take_column(input, n, &mut column)?;
        out.result = column
            .iter()
            .zip(&out.length)
            .map(|(v, length)| length.wrapping_add(varint::unzigzag(*v)) as i64)
            .collect();

        let (mut row, mut text) = (0u64, 0u64);
        for _ in 0..exts {
            row += take(input)?;
            let (len1, len2) = (take(input)?, take(input)?);
            let len = |v: u64| u16::try_from(v).map_err(|_| BatchError::Range);
            let (&present, rest) = input.split_first().ok_or(BatchError::Short)?;
            *input = rest;
            let mut words = [None; EXT_WORDS];
            for (bit, word) in words.iter_mut().enumerate() {
                if present & (1 << bit) != 0 {
                    *word = Some(take(input)?);
                }
            }
            if row >= rows || out.ext.last().is_some_and(|last| u64::from(last.row) >= row) {
                return Err(BatchError::Range);
            }
            out.ext.push(ExtRow {
                row: row as u32,
                words,
                text: text as u32,
                len1: len(len1)?,
                len2: len(len2)?,
            });
            text += len1 + len2;
            if text > MAX_TEXT as u64 {
                return Err(BatchError::TooLarge);
            }
        }
        if input.len() as u64 != text {
            return Err(BatchError::Short);
        }
        out.text = input.to_vec();
        Ok(out)
    }
}

#[inline]
fn next_offset(offset: u64, length: u64) -> u64 {
    if offset == crate::event::NONE || length == crate::event::NONE {
        offset
    } else {
        offset.wrapping_add(length)
    }
}

#[inline]
fn delta(i: usize, value: impl Fn(usize) -> u64) -> u64 {
    let before = if i == 0 { 0 } else { value(i - 1) };
    varint::zigzag(value(i).wrapping_sub(before))
}

fn undelta(column: &[u64]) -> impl Iterator<Item = u64> {
    column.iter().scan(0u64, |last, step| {
        *last = last.wrapping_add(varint::unzigzag(*step));
        Some(*last)
    })
}

fn put_column(out: &mut varint::Writer<'_>, n: usize, value: impl Fn(usize) -> u64) {
    if n == 0 {
        return;
    }
    // The first row's difference is to nothing, so constant steps show from the second on: the first
    // value always stands alone.
    let first = value(0);
    out.put(first);
    if n == 1 {
        return;
    }
    let second = value(1);
    if (2..n).all(|i| value(i) == second) {
        out.byte(0);
        out.put(second);
    } else {
        out.byte(1);
        (1..n).for_each(|i| out.put(value(i)));
    }
}

fn take(input: &mut &[u8]) -> Result<u64, BatchError> {
    varint::take(input).ok_or(BatchError::Short)
}

fn take_column(input: &mut &[u8], n: usize, out: &mut Vec<u64>) -> Result<(), BatchError> {
    out.clear();
    if n == 0 {
        return Ok(());
    }
    out.push(take(input)?);
    if n == 1 {
        return Ok(());
    }
    let (&tag, rest) = input.split_first().ok_or(BatchError::Short)?;
    *input = rest;
    match tag {
        0 => out.resize(n, take(input)?),
        1 => {
            for _ in 1..n {
                out.push(take(input)?);
            }
        }
        _ => return Err(BatchError::Range),
    }
    Ok(())
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
        fn a_batch_survives_encoding(
            rows in prop::collection::vec((event(), any::<(u8, u64, i64, u64)>(), any::<Option<(Option<u64>, Option<u64>)>>(), "[a-z/]{0,20}"), 0..200),
        ) {
            let mut columns = Columns::default();
            for (event, (kind, attempt, time, duration), ext, path) in &rows {
                let ext = ext.map(|(handle2, cpu_time)| Ext { handle2, cpu_time, path1: path.as_bytes(), path2: b"x", ..Ext::default() });
                columns.push(*kind, *attempt, *time, *duration, event, ext.as_ref());
            }
            let (mut scratch, mut bytes) = (Vec::new(), Vec::new());
            columns.encode(&mut scratch, &mut bytes);
            prop_assert_eq!(Columns::decode(&bytes), Ok(columns));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Columns::decode(&bytes);
            let _ = Columns::decode_plain(&bytes);
        }
    }

    #[test]
    fn sequential_reads_take_almost_nothing() {
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

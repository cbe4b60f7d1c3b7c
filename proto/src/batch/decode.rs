//! Decoding of batches.

use super::{BatchError, Columns, ExtRow, MAX_PLAIN, MAX_ROWS, MAX_TEXT, next_offset};
use crate::event::EXT_WORDS;
use crate::op::Op;
use crate::varint;

/// Decodes the batches of any senders. It allocates no memory for a batch that is not larger than
/// earlier ones.
#[derive(Debug, Default)]
pub struct BatchDecoder {
    /// The bytes after decompression.
    plain: Vec<u8>,
    /// The column of kinds, operations and flags.
    shapes: Vec<u64>,
}

impl BatchDecoder {
    /// Decodes the bytes of [`Columns::encode`] to `columns`, whose memory is used again. After an
    /// error `columns` has any rows, and columns of different lengths.
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are not a batch within the limits of [`crate::batch`].
    pub fn decode(&mut self, bytes: &[u8], columns: &mut Columns) -> Result<(), BatchError> {
        let (size, packed) = bytes.split_first_chunk::<4>().ok_or(BatchError::Short)?;
        let size = u32::from_le_bytes(*size) as usize;
        // LZ4 expands at most 255 times. A larger size is false and must not reserve memory.
        if size > MAX_PLAIN || size > packed.len().saturating_mul(255) {
            return Err(BatchError::TooLarge);
        }
        self.plain.resize(size.max(self.plain.len()), 0);
        let BatchDecoder { plain, shapes } = self;
        let plain = &mut plain[..size];
        match lz4_flex::block::decompress_into(packed, plain) {
            Ok(written) if written == size => decode_plain(plain, columns, shapes),
            _ => Err(BatchError::Compression),
        }
    }
}

/// Decodes the uncompressed bytes of a batch.
pub(super) fn decode_plain(
    mut bytes: &[u8],
    columns: &mut Columns,
    shapes: &mut Vec<u64>,
) -> Result<(), BatchError> {
    let input = &mut bytes;
    columns.clear();
    let (rows, extensions) = (read(input)?, read(input)?);
    if rows > MAX_ROWS as u64 || extensions > rows {
        return Err(BatchError::TooLarge);
    }
    columns.decode_numbers(input, rows as usize, shapes)?;
    let text_bytes = columns.decode_extensions(input, extensions)?;
    if input.len() != text_bytes {
        return Err(BatchError::Short);
    }
    columns.text.extend_from_slice(input);
    Ok(())
}

impl Columns {
    /// Decodes the columns of numbers, in the order in which `encode_plain` writes them.
    fn decode_numbers(
        &mut self,
        input: &mut &[u8],
        rows: usize,
        shapes: &mut Vec<u64>,
    ) -> Result<(), BatchError> {
        read_column(input, rows, shapes, |v| v)?;
        self.kind.extend(shapes.iter().map(|v| *v as u8));
        self.op.extend(shapes.iter().map(|v| Op { layer: (v >> 8) as u8, number: (v >> 16) as u8 }));
        self.flags.extend(shapes.iter().map(|v| (v >> 24) as u16));
        read_column(input, rows, &mut self.request, undelta(|v| v as u32))?;
        let mut requests = self.request.iter();
        read_column(input, rows, &mut self.enclosing, |v| {
            let request = requests.next().copied().unwrap_or(0);
            if v == 0 { 0 } else { request.wrapping_sub((v - 1) as u32) }
        })?;
        read_column(input, rows, &mut self.attempt, undelta(|v| v))?;
        read_column(input, rows, &mut self.time, undelta(|v| v as i64))?;
        read_column(input, rows, &mut self.duration, |v| v)?;
        read_column(input, rows, &mut self.handle, undelta(|v| v))?;
        read_column(input, rows, &mut self.offset, |v| v)?;
        read_column(input, rows, &mut self.length, undelta(|v| v))?;
        offsets(&mut self.offset, &self.length);
        let mut lengths = self.length.iter();
        read_column(input, rows, &mut self.result, |v| {
            lengths.next().copied().unwrap_or(0).wrapping_add(varint::unzigzag(v)) as i64
        })
    }

    /// Decodes the extensions. Returns the bytes of text that they refer to, at most [`MAX_TEXT`].
    fn decode_extensions(&mut self, input: &mut &[u8], count: u64) -> Result<usize, BatchError> {
        let rows = self.len() as u64;
        let (mut row, mut text) = (0u64, 0u64);
        for index in 0..count {
            let distance = read(input)?;
            // A sum that overflows is past the last row as well.
            row = row.saturating_add(distance);
            let (len1, len2) = (read(input)?, read(input)?);
            let length = |v: u64| u16::try_from(v).map_err(|_| BatchError::Range);
            let words = read_words(input)?;
            if row >= rows || (index > 0 && distance == 0) {
                return Err(BatchError::Range);
            }
            self.ext.push(ExtRow {
                row: row as u32,
                words,
                text: text as u32,
                len1: length(len1)?,
                len2: length(len2)?,
            });
            text += len1 + len2;
            if text > MAX_TEXT as u64 {
                return Err(BatchError::TooLarge);
            }
        }
        Ok(text as usize)
    }
}

/// Reads the words of one extension: a byte with a bit per word, then the words that are present.
fn read_words(input: &mut &[u8]) -> Result<[Option<u64>; EXT_WORDS], BatchError> {
    let present = read_byte(input)?;
    let mut words = [None; EXT_WORDS];
    for (bit, word) in words.iter_mut().enumerate() {
        if present & (1 << bit) != 0 {
            *word = Some(read(input)?);
        }
    }
    Ok(words)
}

/// Replaces differences by offsets: each is the end of the previous request plus its difference.
fn offsets(differences: &mut [u64], lengths: &[u64]) {
    let mut predicted = 0u64;
    for (offset, length) in differences.iter_mut().zip(lengths) {
        *offset = predicted.wrapping_add(varint::unzigzag(*offset));
        predicted = next_offset(*offset, *length);
    }
}

/// Adds the differences of a column, one row after the other.
fn undelta<T>(to: impl Fn(u64) -> T) -> impl FnMut(u64) -> T {
    let mut last = 0u64;
    move |difference| {
        last = last.wrapping_add(varint::unzigzag(difference));
        to(last)
    }
}

fn read(input: &mut &[u8]) -> Result<u64, BatchError> {
    varint::read(input).ok_or(BatchError::Short)
}

fn read_byte(input: &mut &[u8]) -> Result<u8, BatchError> {
    let (&byte, rest) = input.split_first().ok_or(BatchError::Short)?;
    *input = rest;
    Ok(byte)
}

/// Reads a column of `n` rows; `to` converts each.
fn read_column<T>(
    input: &mut &[u8],
    n: usize,
    column: &mut Vec<T>,
    mut to: impl FnMut(u64) -> T,
) -> Result<(), BatchError> {
    column.clear();
    if n == 0 {
        return Ok(());
    }
    let first = read(input)?;
    if n == 1 {
        column.push(to(first));
        return Ok(());
    }
    match read_byte(input)? {
        0 => {
            let other = read(input)?;
            column.extend((0..n).map(|row| to(if row == 0 { first } else { other })));
            Ok(())
        }
        1 => {
            let mut is_short = false;
            // An iterator of known length, so that the vector is not checked for each row.
            let next = |row| {
                let number = if row == 0 { Some(first) } else { varint::read(input) };
                is_short |= number.is_none();
                to(number.unwrap_or(0))
            };
            column.extend((0..n).map(next));
            if is_short { Err(BatchError::Short) } else { Ok(()) }
        }
        _ => Err(BatchError::Range),
    }
}

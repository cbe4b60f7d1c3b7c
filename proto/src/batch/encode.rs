//! Encoding of batches.

use super::{COLUMNS, Columns, next_offset};
use crate::varint;

/// A batch is compressed if that saves at least one byte in this many.
const WORTH_IT: usize = 8;
/// Maximum number of consecutive batches that are not compressed without a try.
const MAX_PAUSE: u32 = 64;

/// Encodes the batches of a sender. It tries compression again and again, but not for each batch:
/// the differences of random requests are not compressible, and compressing them takes longer than
/// all other work on them.
#[derive(Debug, Default)]
pub struct BatchEncoder {
    scratch: Scratch,
    /// Batches until compression is tried again.
    pause: u32,
    /// Length of the next pause, if compression is not worth it again.
    next_pause: u32,
}

/// Buffers that are used again.
#[derive(Debug, Default)]
struct Scratch {
    /// The bytes before compression. It only grows, so that each byte is zeroed once.
    plain: Vec<u8>,
    /// A column of numbers.
    numbers: Vec<u64>,
}

impl BatchEncoder {
    /// Encodes a batch and appends it to `out`, like [`Columns::encode`]. A batch that is not
    /// compressed is one LZ4 block too.
    pub fn encode(&mut self, columns: &Columns, out: &mut Vec<u8>) {
        let start = out.len();
        let plain = self.scratch.encode(columns);
        put_length(plain, out);
        if self.pause > 0 {
            self.pause -= 1;
            return put_literals(plain, out);
        }
        compress(plain, out);
        if out.len() - start - 4 <= plain.len() - plain.len() / WORTH_IT {
            self.next_pause = 1;
            return;
        }
        (self.pause, self.next_pause) = (self.next_pause, (2 * self.next_pause).clamp(1, MAX_PAUSE));
    }
}

impl Columns {
    /// Encodes, compresses and appends to `out`: `u32` length of the uncompressed bytes, then one
    /// LZ4 block. The uncompressed bytes remain at the start of `scratch`.
    pub fn encode(&self, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        let mut buffers = Scratch { plain: std::mem::take(scratch), numbers: Vec::new() };
        let plain = buffers.encode(self);
        put_length(plain, out);
        compress(plain, out);
        *scratch = buffers.plain;
    }
}

fn put_length(plain: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(plain.len() as u32).to_le_bytes());
}

/// Appends an LZ4 block.
fn compress(plain: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + lz4_flex::block::get_maximum_output_size(plain.len()), 0);
    // The output has the maximum size, so compression cannot fail.
    let written = lz4_flex::block::compress_into(plain, &mut out[start..]).unwrap_or(0);
    out.truncate(start + written);
}

/// Appends an LZ4 block of literals only: a token with their number, and they themselves.
fn put_literals(plain: &[u8], out: &mut Vec<u8>) {
    /// A number from here on continues in further bytes.
    const LONG: usize = 15;
    if plain.len() < LONG {
        out.push((plain.len() as u8) << 4);
    } else {
        let rest = plain.len() - LONG;
        out.push((LONG as u8) << 4);
        out.resize(out.len() + rest / 255, 255);
        out.push((rest % 255) as u8);
    }
    out.extend_from_slice(plain);
}

impl Scratch {
    /// Encodes without compression.
    fn encode(&mut self, columns: &Columns) -> &[u8] {
        let Scratch { plain, numbers } = self;
        let n = columns.len();
        let max_size = 2 * varint::MAX_BYTES
            + COLUMNS * (2 + varint::MAX_BYTES * (n + 1))
            + columns.ext.len() * (1 + varint::MAX_BYTES * 11)
            + columns.text.len();
        if plain.len() < max_size {
            plain.resize(max_size, 0);
        }
        let out = &mut varint::Writer::new(plain);
        out.write(n as u64);
        out.write(columns.ext.len() as u64);
        put_numbers(columns, numbers, out);
        let mut last = 0;
        for ext in &columns.ext {
            out.write(u64::from(ext.row - last));
            last = ext.row;
            out.write(u64::from(ext.len1));
            out.write(u64::from(ext.len2));
            let present =
                ext.words.iter().enumerate().fold(0u8, |p, (bit, w)| p | u8::from(w.is_some()) << bit);
            out.write_byte(present);
            ext.words.iter().flatten().for_each(|w| out.write(*w));
        }
        out.write_bytes(&columns.text);
        let written = out.written();
        &plain[..written]
    }
}

/// Writes the columns of numbers. Each is computed as a whole, without a branch per row.
fn put_numbers(columns: &Columns, numbers: &mut Vec<u64>, out: &mut varint::Writer<'_>) {
    let Columns { kind, op, flags, request, enclosing, .. } = columns;
    let shapes = kind.iter().zip(op).zip(flags).map(|((kind, op), flags)| {
        u64::from(*kind) | u64::from(op.layer) << 8 | u64::from(op.number) << 16 | u64::from(*flags) << 24
    });
    put(numbers, out, shapes);
    put_differences(numbers, out, request, |request| u64::from(*request));
    let distances = enclosing.iter().zip(request).map(|(enclosing, request)| match enclosing {
        0 => 0,
        // 1 + distance takes 33 bits.
        enclosing => 1 + u64::from(request.wrapping_sub(*enclosing)),
    });
    put(numbers, out, distances);
    put_differences(numbers, out, &columns.attempt, |attempt| *attempt);
    put_differences(numbers, out, &columns.time, |time| *time as u64);
    put(numbers, out, columns.duration.iter().copied());
    put_differences(numbers, out, &columns.handle, |handle| *handle);
    let ends =
        columns.offset.iter().zip(&columns.length).map(|(offset, length)| next_offset(*offset, *length));
    let offsets = columns.offset.iter().zip(std::iter::once(0).chain(ends));
    put(numbers, out, offsets.map(|(offset, predicted)| varint::zigzag(offset.wrapping_sub(predicted))));
    put_differences(numbers, out, &columns.length, |length| *length);
    let results = columns.result.iter().zip(&columns.length);
    put(numbers, out, results.map(|(result, length)| varint::zigzag((*result as u64).wrapping_sub(*length))));
}

/// Writes the differences of each row to the row before it, or to 0.
fn put_differences<T>(
    numbers: &mut Vec<u64>,
    out: &mut varint::Writer<'_>,
    rows: &[T],
    number: impl Fn(&T) -> u64,
) {
    numbers.clear();
    numbers.extend(rows.first().map(|first| varint::zigzag(number(first))));
    let pairs = rows.iter().zip(rows.get(1..).unwrap_or(&[]));
    numbers.extend(pairs.map(|(before, row)| varint::zigzag(number(row).wrapping_sub(number(before)))));
    write_column(out, numbers);
}

fn put(numbers: &mut Vec<u64>, out: &mut varint::Writer<'_>, rows: impl Iterator<Item = u64>) {
    numbers.clear();
    numbers.extend(rows);
    write_column(out, numbers);
}

/// Writes a column, see the header of [`super`].
fn write_column(out: &mut varint::Writer<'_>, column: &[u64]) {
    // The first row has no predecessor, so constant differences start at the second row: the first
    // value is always written separately.
    let Some((first, others)) = column.split_first() else { return };
    out.write(*first);
    let Some((other, rest)) = others.split_first() else { return };
    if *rest == others[..rest.len()] {
        out.write_byte(0);
        out.write(*other);
    } else {
        out.write_byte(1);
        others.iter().for_each(|number| out.write(*number));
    }
}

#[cfg(test)]
mod tests {
    use super::{BatchEncoder, MAX_PAUSE};
    use crate::batch::Columns;
    use crate::event::Event;
    use crate::op::posix;

    fn columns(rows: u64, result: impl Fn(u64) -> i64) -> Columns {
        let mut columns = Columns::default();
        for row in 0..rows {
            let event = Event {
                op: posix::READ,
                request: row as u32,
                enclosing: 0,
                end: 0,
                duration: 0,
                flags: 0,
                handle: 3,
                offset: 0,
                length: 0,
                result: result(row),
            };
            columns.push(1, row, 0, 0, &event, None);
        }
        columns
    }

    #[test]
    fn batches_that_are_not_compressed_are_decoded_as_others() {
        // The Weyl sequence of the golden ratio has no repetitions.
        let random = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
        let mut encoder = BatchEncoder::default();
        let mut lengths = std::collections::BTreeSet::new();
        for rows in [0, 1, 2, 3, 20, 30, 31, 300, 3000].into_iter().cycle().take(200) {
            let columns = columns(rows, random);
            let (mut packed, mut compressed) = (Vec::new(), Vec::new());
            encoder.encode(&columns, &mut packed);
            columns.encode(&mut Vec::new(), &mut compressed);
            lengths.insert((rows, packed.len() == compressed.len()));
            assert_eq!(Columns::decode(&packed), Ok(columns));
        }
        assert!(lengths.contains(&(3000, false)) && encoder.next_pause == MAX_PAUSE, "{lengths:?}");
    }

    #[test]
    fn compressible_batches_are_compressed_within_the_longest_pause() {
        let mut encoder = BatchEncoder { pause: MAX_PAUSE, ..BatchEncoder::default() };
        let columns = columns(1000, |row| [1 << 40, 1 << 50, 7][row as usize % 3]);
        let lengths: Vec<usize> = (0..=MAX_PAUSE + 1)
            .map(|_| {
                let mut packed = Vec::new();
                encoder.encode(&columns, &mut packed);
                packed.len()
            })
            .collect();
        let (first, last) = (lengths[0], lengths[lengths.len() - 1]);
        assert!(lengths[MAX_PAUSE as usize - 1] == first && last < first / 10, "{lengths:?}");
    }
}

//! Parquet's `DELTA_BINARY_PACKED` encoding: differences of values, relative to the least one of
//! their block.
//!
//! ```text
//! varint 256 · varint 4 · varint count · zigzag first value
//! block:  zigzag least difference · u8 width × 4 ·
//!         4 × 64 differences minus the least, `width` bits each
//! ```
//!
//! After Lemire and Boytsov, "Decoding billions of integers per second through vectorization"
//! (2015).

use super::hybrid::put_varint;

/// Differences in a block.
const BLOCK: usize = 256;
/// Differences of a miniblock, which share a width.
const MINIBLOCK: usize = 64;

/// Appends `values`. `NARROW`: they have 32 bits, at which differences wrap around.
pub(super) fn put<const NARROW: bool>(out: &mut Vec<u8>, values: &[u64]) {
    put_varint(out, BLOCK as u64);
    put_varint(out, (BLOCK / MINIBLOCK) as u64);
    put_varint(out, values.len() as u64);
    let signed = |value: u64| if NARROW { i64::from(value as i32) } else { value as i64 };
    put_varint(out, zigzag(values.first().map_or(0, |first| signed(*first))));
    let mut deltas = [0i64; BLOCK];
    for start in (1..values.len()).step_by(BLOCK) {
        let (before, after) = (&values[start - 1..], &values[start..]);
        let count = after.len().min(BLOCK);
        for ((delta, before), after) in deltas.iter_mut().zip(before).zip(&after[..count]) {
            *delta = signed(after.wrapping_sub(*before));
        }
        put_block::<NARROW>(out, &mut deltas, count);
    }
}

fn put_block<const NARROW: bool>(out: &mut Vec<u8>, deltas: &mut [i64; BLOCK], count: usize) {
    let least = deltas[..count].iter().copied().min().unwrap_or(0);
    // The padding of the last block is not read.
    deltas[count..].fill(least);
    put_varint(out, zigzag(least));
    let mask = if NARROW { u64::from(u32::MAX) } else { u64::MAX };
    // Not `map`, which compiles to a call per element.
    let mut beyond = [0; BLOCK];
    for (beyond, delta) in beyond.iter_mut().zip(deltas.iter()) {
        *beyond = delta.wrapping_sub(least) as u64 & mask;
    }
    let (minis, _) = beyond.as_chunks::<MINIBLOCK>();
    let widths = out.len();
    out.extend_from_slice(&[0; BLOCK / MINIBLOCK]);
    for (i, mini) in minis.iter().enumerate() {
        // Miniblocks without values are omitted.
        if i * MINIBLOCK >= count {
            break;
        }
        let width = u64::BITS - mini.iter().fold(0, |all, value| all | value).leading_zeros();
        out[widths + i] = width as u8;
        pack(out, mini, width);
    }
}

/// Appends 64 numbers of `width` bits, lowest bit first: `width` × 8 bytes.
fn pack(out: &mut Vec<u8>, values: &[u64; MINIBLOCK], width: u32) {
    if width == 0 {
        return;
    }
    let mut packed = [0u64; MINIBLOCK];
    let (mut word, mut filled, mut at) = (0u64, 0, 0);
    for value in values {
        word |= value << filled;
        filled += width;
        if filled >= u64::BITS {
            packed[at] = word;
            at += 1;
            filled -= u64::BITS;
            // The bits of the value that did not fit.
            word = if filled == 0 { 0 } else { value >> (width - filled) };
        }
    }
    // 64 values end at the end of a word.
    out.extend(packed[..width as usize].iter().flat_map(|word| word.to_le_bytes()));
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

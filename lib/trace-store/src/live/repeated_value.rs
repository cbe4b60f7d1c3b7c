//! Compression of a buffer with one repeated value, without a search for repetitions: it writes the
//! zstd frame of such a buffer directly (RFC 8878, Collet and Kucherawy 2021).
//!
//! ```text
//! magic · a0 · u32 length · blocks of up to 128 KiB: u24 last | type << 1 | size << 3 · content
//! type 0: the bytes themselves      for a short remainder
//! type 1: one byte                  if all bytes are the same
//! type 2: 8 literals, one sequence  the literals, and then a match at distance 8 up to the end of
//!                                   the block
//! ```

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Descriptor of the frame header: a single segment, a length of four bytes.
const ONE_SEGMENT: u8 = 0xa0;
/// Maximum bytes of a block.
const BLOCK: usize = 128 << 10;
/// Bytes of the value; shorter ones are repeated to eight.
const PERIOD: usize = 8;
/// Minimum match length with the codes used here; shorter matches have other codes.
const MIN_MATCH: usize = 131;

/// Returns the frame of `length` bytes that repeat the eight bytes of `value`. The length must be
/// below 4 GiB.
pub(super) fn frame(value: [u8; PERIOD], length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&MAGIC);
    out.push(ONE_SEGMENT);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    let mut left = length;
    loop {
        let size = left.min(BLOCK);
        left -= size;
        let head =
            |kind: u32, size: usize| (u32::from(left == 0) | kind << 1 | (size as u32) << 3).to_le_bytes();
        if value.iter().all(|byte| *byte == value[0]) {
            out.extend_from_slice(&head(1, size)[..3]);
            out.push(value[0]);
        } else if size < PERIOD + MIN_MATCH {
            out.extend_from_slice(&head(0, size)[..3]);
            out.extend(value.iter().cycle().take(size));
        } else {
            let sequence = sequence(size - PERIOD);
            out.extend_from_slice(&head(2, 1 + PERIOD + sequence.len())[..3]);
            // Eight raw literals.
            out.push((PERIOD as u8) << 3);
            out.extend_from_slice(&value);
            out.extend_from_slice(&sequence);
        }
        if left == 0 {
            return out;
        }
    }
}

/// Returns the section with one sequence: eight literals, and a match of `length` bytes at distance
/// eight.
fn sequence(length: usize) -> Vec<u8> {
    // Match length codes 43 to 52 stand for 2^n + 3 and n extra bits.
    let bits = (length - 3).ilog2();
    let code = 43 + (bits - 7) as u8;
    let rest = (length - 3) as u64 - (1 << bits);
    // Offset value 8 + 3 = 11 = 2^3 + 3: code 3, and 3 in three extra bits. Bits are read from the
    // end, after the highest set bit.
    let stream = rest | 3 << bits | 1 << (bits + 3);
    let bytes = (bits as usize + 4).div_ceil(8);
    // One sequence; all three codes in RLE mode.
    let mut out = vec![1, 0b0101_0100, PERIOD as u8, 3, code];
    out.extend_from_slice(&stream.to_le_bytes()[..bytes]);
    out
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, MIN_MATCH, PERIOD, frame};

    #[test]
    fn zstd_decompresses_the_frames() {
        let values =
            [[0; 8], [7; 8], [1, 2, 1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 0, 1]];
        let around = |n: usize| n - 3..n + 4;
        let lengths = (1..300)
            .chain(around(PERIOD + MIN_MATCH))
            .chain((8..18).flat_map(|bits| around((1 << bits) + 11)))
            .chain([1, 2].into_iter().flat_map(|blocks| around(blocks * BLOCK)));
        for length in lengths {
            for value in values {
                let expected = &value.repeat(length.div_ceil(PERIOD))[..length];
                let found = zstd::bulk::decompress(&frame(value, length), length);
                assert!(found.is_ok_and(|found| found == expected), "{length} bytes of {value:?}");
            }
        }
    }
}

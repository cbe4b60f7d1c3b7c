//! Parquet's `RLE` encoding of small numbers: runs of one number, and packed groups of eight.
//!
//! ```text
//! run:    varint count << 1 · the number in whole bytes, little-endian
//! packed: varint groups << 1 | 1 ·
//!         eight numbers per group, `width` bits each from the lowest bit on
//! ```

/// Numbers in a packed group.
const GROUP: usize = 8;

/// Appends a LEB128 number.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the number of bits of the numbers up to `greatest`.
pub(super) fn width_of(greatest: usize) -> u32 {
    usize::BITS - greatest.leading_zeros()
}

/// Appends a run of `count` times `value`.
pub(super) fn put_run(out: &mut Vec<u8>, value: u16, count: usize, width: u32) {
    put_varint(out, (count as u64) << 1);
    out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
}

/// Appends numbers of one bit, given as bits from the lowest one of the first byte on.
pub(super) fn put_bits(out: &mut Vec<u8>, bits: &[u8], count: usize) {
    let groups = count.div_ceil(GROUP);
    put_varint(out, (groups as u64) << 1 | 1);
    out.extend_from_slice(&bits[..groups]);
}

/// Appends `values`, all below 2^`width`; `width` is at most 16.
pub(super) fn put(out: &mut Vec<u8>, values: &[u16], width: u32) {
    let is_run = |group: &[u16]| group.iter().all(|value| *value == group[0]);
    let mut rest = values;
    while let Some(first) = rest.first() {
        let run = run_length(rest);
        // Shorter runs are cheaper as part of a packed group.
        if run >= 2 * GROUP || run == rest.len() {
            put_run(out, *first, run, width);
            rest = &rest[run..];
            continue;
        }
        // Packs groups until two consecutive ones have one number.
        let groups = rest.chunks(GROUP);
        let mut packed = 0;
        let mut before = false;
        for group in groups {
            let same = group.len() == GROUP && is_run(group);
            if same && before {
                packed -= 1;
                break;
            }
            before = same;
            packed += 1;
        }
        let packed = packed.max(1);
        put_varint(out, (packed as u64) << 1 | 1);
        let count = (packed * GROUP).min(rest.len());
        put_packed(out, &rest[..count], width);
        rest = &rest[count..];
    }
}

/// Returns the length of the run of the first number.
fn run_length(values: &[u16]) -> usize {
    values.iter().position(|value| *value != values[0]).unwrap_or(values.len())
}

fn put_packed(out: &mut Vec<u8>, values: &[u16], width: u32) {
    for group in values.chunks(GROUP) {
        let placed = group.iter().zip(0..).map(|(value, place)| (u64::from(*value), place * width));
        // Most columns have few distinct numbers: shifts of 128 bits take several times as long.
        if width * GROUP as u32 <= u64::BITS {
            let word = placed.fold(0, |word, (value, place)| word | value << place);
            out.extend_from_slice(&word.to_le_bytes()[..width as usize]);
        } else {
            let word = placed.fold(0, |word, (value, place)| word | u128::from(value) << place);
            out.extend_from_slice(&word.to_le_bytes()[..width as usize]);
        }
    }
}

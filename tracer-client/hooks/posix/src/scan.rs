//! Length and form of a path in one pass over its bytes.

use std::ffi::c_char;

/// A path as it was found in the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Bytes before the NUL.
    pub(crate) length: usize,
    /// No slash is followed by a slash or a dot, and the path does not end in a slash.
    pub(crate) is_plain: bool,
}

/// Scans a C string. `None`: the string is longer than `MAX` bytes, or must be scanned in another
/// way.
///
/// # Safety
/// - `string` must be a C string, or have at least `MAX` + 32 readable bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn scan<const MAX: usize>(string: *const c_char) -> Option<Scanned> {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_load_si128, _mm_movemask_epi8, _mm_or_si128};
    use std::arch::x86_64::{_mm_set1_epi8, _mm_setzero_si128};
    const CHUNK: usize = size_of::<__m128i>();
    let skipped = string.addr() % CHUNK;
    let (mut at, mut inside) = (0, u32::MAX << skipped);
    // Whether the last byte of the previous chunk is a slash, and whether a pair was found.
    let (mut before, mut found) = (0, 0);
    while at < MAX {
        let chunk = string.wrapping_sub(skipped).wrapping_add(at);
        // SAFETY: the intrinsics require
        // - instructions that exist: SSE2 is part of x86-64;
        // - readable memory: no earlier chunk has the NUL, so the string reaches this one, and an
        //   aligned chunk lies in one page.
        let [ends, slashes, dots] = unsafe {
            let chunk = _mm_load_si128(chunk.cast());
            let slash = _mm_set1_epi8(b'/'.cast_signed());
            // A dot differs from a slash in the lowest bit only.
            let dot = _mm_cmpeq_epi8(_mm_or_si128(chunk, _mm_set1_epi8(1)), slash);
            [_mm_cmpeq_epi8(chunk, _mm_setzero_si128()), _mm_cmpeq_epi8(chunk, slash), dot]
                .map(|bytes| _mm_movemask_epi8(bytes).cast_unsigned() & inside)
        };
        let after = slashes << 1 | before;
        if ends != 0 {
            let end = ends.trailing_zeros();
            let ends_in_slash = after >> end & 1;
            found |= after & dots & ((1 << end) - 1) | ends_in_slash;
            return Some(Scanned { length: at + end as usize - skipped, is_plain: found == 0 });
        }
        found |= after & dots;
        before = slashes >> (CHUNK - 1);
        inside = u32::MAX;
        at += CHUNK;
    }
    None
}

/// Other architectures scan in the other way.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) unsafe fn scan<const MAX: usize>(_: *const c_char) -> Option<Scanned> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Each length and each position of each pair, at each distance from the end of a page.
    #[test]
    fn forms_are_those_of_the_simple_definition() {
        let mut memory = vec![b'x'; 2 * 4096];
        let page = memory.as_ptr().align_offset(4096);
        for length in 0..70 {
            for at in 0..length {
                for pair in [&b"//"[..], b"/.", b"/a", b".", b"/"] {
                    let mut path = vec![b'a'; length];
                    let end = (at + pair.len()).min(length);
                    path[at..end].copy_from_slice(&pair[..end - at]);
                    let is_plain =
                        !path.ends_with(b"/") && !path.windows(2).any(|two| two == b"//" || two == b"/.");
                    for distance in [0, 1, 15, 16, 17, 33, 64, 100] {
                        let start = page + 4096 - distance - length - 1;
                        memory[start..start + length].copy_from_slice(&path);
                        memory[start + length] = 0;
                        // SAFETY: `scan` requires
                        // - a C string: written above.
                        let scanned = unsafe { scan::<4096>(memory[start..].as_ptr().cast()) };
                        let expected = Some(Scanned { length, is_plain });
                        assert_eq!(scanned, expected, "{length} {at} {pair:?} {distance}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_strings_are_left_to_the_caller() {
        let text = [b"a".repeat(100), b"\0".repeat(16)].concat();
        // SAFETY: `scan` requires
        // - a C string: the text ends in NUL.
        assert_eq!(unsafe { scan::<64>(text.as_ptr().cast()) }, None);
    }
}

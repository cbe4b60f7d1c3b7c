//! LEB128 encoding of `u64`, and zigzag, which maps small differences of either sign to small
//! numbers (as in Protocol Buffers).

/// Longest encoding of a number, bytes. [`Writer`] needs that much space for each number.
pub(crate) const MAX_BYTES: usize = 10;

/// Writes numbers into a buffer with at least [`MAX_BYTES`] bytes per number. A value that does not
/// fit is omitted.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    position: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Writer<'a> {
        Writer { buffer, position: 0 }
    }

    /// Number of bytes written.
    pub(crate) fn written(&self) -> usize {
        self.position
    }

    #[inline]
    pub(crate) fn write_byte(&mut self, byte: u8) {
        if let Some(slot) = self.buffer.get_mut(self.position) {
            *slot = byte;
            self.position += 1;
        }
    }

    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.buffer.get_mut(self.position..self.position + bytes.len()) {
            slot.copy_from_slice(bytes);
            self.position += bytes.len();
        }
    }

    /// Writes one number. A number of up to eight bytes takes one store and no branch per byte: the
    /// lengths in a column vary, and a mispredicted branch costs more than everything else.
    #[inline]
    pub(crate) fn write(&mut self, value: u64) {
        if value < 0x80 {
            return self.write_byte(value as u8);
        }
        if value >> 56 != 0 {
            return self.write_long(value);
        }
        let length = (70 - value.leading_zeros() as usize) / 7;
        // Spreads the bits: seven to each byte.
        let x = (value & 0x0fff_ffff) | ((value & 0x00ff_ffff_f000_0000) << 4);
        let x = (x & 0x0000_3fff_0000_3fff) | ((x & 0x0fff_c000_0fff_c000) << 2);
        let x = (x & 0x007f_007f_007f_007f) | ((x & 0x3f80_3f80_3f80_3f80) << 1);
        let more = 0x8080_8080_8080_8080 & ((1 << (8 * (length - 1))) - 1);
        if let Some(slot) = self.buffer.get_mut(self.position..).and_then(<[u8]>::first_chunk_mut) {
            *slot = (x | more).to_le_bytes();
            self.position += length;
        }
    }

    #[cold]
    fn write_long(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.write_byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.write_byte(value as u8);
    }
}

/// Removes one number from the front of `bytes`. Returns `None` if it is incomplete or longer than
/// [`MAX_BYTES`]. Like [`Writer::write`], it has no branch per byte.
#[inline]
pub(crate) fn read(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    let Some(word) = bytes.first_chunk().map(|word| u64::from_le_bytes(*word)) else {
        return read_by_byte(bytes);
    };
    let last = (!word & 0x8080_8080_8080_8080).trailing_zeros();
    if last == u64::BITS {
        return read_by_byte(bytes);
    }
    *bytes = &bytes[last as usize / 8 + 1..];
    // The bytes after the last one are removed, and the seven bits of each are joined.
    let x = word & (u64::MAX >> (63 - last)) & 0x7f7f_7f7f_7f7f_7f7f;
    let x = (x & 0x007f_007f_007f_007f) | ((x & 0x7f00_7f00_7f00_7f00) >> 1);
    let x = (x & 0x0000_3fff_0000_3fff) | ((x & 0x3fff_0000_3fff_0000) >> 2);
    Some((x & 0x0fff_ffff) | ((x & 0x0fff_ffff_0000_0000) >> 4))
}

#[cold]
fn read_by_byte(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift.min(63);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Maps a wrapping difference to an unsigned number that is small if the difference is near 0.
#[inline]
pub(crate) fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

/// Inverse of [`zigzag`].
#[inline]
pub(crate) fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn number_of_any_length_round_trips(bits in 0u32..=64, value: u64, before in 0usize..3) {
            let value = if bits == 0 { 0 } else { value >> (64 - bits) };
            let mut buffer = [0xaa; 40];
            let mut writer = Writer::new(&mut buffer);
            (0..before).for_each(|_| writer.write_byte(1));
            writer.write(value);
            let length = (64 - value.leading_zeros() as usize).div_ceil(7).max(1);
            prop_assert_eq!(writer.written(), before + length, "the encoding is the shortest");
            let mut rest = &buffer[before..];
            prop_assert_eq!(read(&mut rest), Some(value));
            prop_assert_eq!(rest.len(), 40 - before - length);
        }
    }

    proptest! {
        #[test]
        fn numbers_of_any_bytes_are_read_as_byte_by_byte(bytes in prop::collection::vec(0x60u8..0xa0, 0..40)) {
            let (mut fast, mut slow) = (&bytes[..], &bytes[..]);
            while !slow.is_empty() {
                let expected = read_by_byte(&mut slow);
                prop_assert_eq!(read(&mut fast), expected);
                prop_assert_eq!(fast, slow);
                if expected.is_none() {
                    break;
                }
            }
        }
    }

    #[test]
    fn value_that_does_not_fit_is_omitted() {
        let mut buffer = [0; 4];
        let mut writer = Writer::new(&mut buffer);
        writer.write(1 << 20);
        writer.write(5);
        writer.write_bytes(b"path of a file");
        assert_eq!(writer.written(), 1);
    }
}

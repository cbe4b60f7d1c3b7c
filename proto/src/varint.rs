//! LEB128 of `u64`, and zigzag: small differences, positive or negative, become few bytes.

/// Longest encoding of a number, and what [`Writer`] needs to have left for the next one.
pub(crate) const MAX_BYTES: usize = 10;

/// Writes numbers into a buffer that is large enough, [`MAX_BYTES`] for each; what does not fit is left out.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Writer<'a> {
        Writer { buffer, at: 0 }
    }

    /// Bytes written.
    pub(crate) fn written(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        if let Some(place) = self.buffer.get_mut(self.at) {
            *place = byte;
            self.at += 1;
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }

    /// One store for all numbers of up to eight bytes, without a branch per byte: lengths in a column vary,
    /// and a branch that is predicted wrong costs more than the rest.
    #[inline]
    pub(crate) fn put(&mut self, value: u64) {
        if value < 0x80 {
            return self.byte(value as u8);
        }
        if value >> 56 != 0 {
            return self.put_long(value);
        }
        let length = (70 - value.leading_zeros() as usize) / 7;
        // Seven bits to each byte.
        let x = (value & 0x0fff_ffff) | ((value & 0x00ff_ffff_f000_0000) << 4);
        let x = (x & 0x0000_3fff_0000_3fff) | ((x & 0x0fff_c000_0fff_c000) << 2);
        let x = (x & 0x007f_007f_007f_007f) | ((x & 0x3f80_3f80_3f80_3f80) << 1);
        let more = 0x8080_8080_8080_8080 & ((1 << (8 * (length - 1))) - 1);
        if let Some(place) = self.buffer.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            *place = (x | more).to_le_bytes();
            self.at += length;
        }
    }

    #[cold]
    fn put_long(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }
}

/// Takes one number off the front of `bytes`; `None` if it is cut off or longer than ten bytes.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
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

#[inline]
pub(crate) fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

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
        fn a_number_of_any_length_survives(bits in 0u32..=64, value: u64, before in 0usize..3) {
            let value = if bits == 0 { 0 } else { value >> (64 - bits) };
            let mut buffer = [0xaa; 40];
            let mut writer = Writer::new(&mut buffer);
            (0..before).for_each(|_| writer.byte(1));
            writer.put(value);
            let length = (64 - value.leading_zeros() as usize).div_ceil(7).max(1);
            prop_assert_eq!(writer.written(), before + length, "the shortest form");
            let mut rest = &buffer[before..];
            prop_assert_eq!(take(&mut rest), Some(value));
            prop_assert_eq!(rest.len(), 40 - before - length);
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut buffer = [0; 4];
        let mut writer = Writer::new(&mut buffer);
        writer.put(1 << 20);
        writer.put(5);
        writer.bytes(b"path of a file");
        assert_eq!(writer.written(), 1);
    }
}

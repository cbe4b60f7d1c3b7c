//! Decoder of numbers from the bytes of a target. After the end it returns zeros.

/// The remaining bytes.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns at most `n` bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Removes and returns a little-endian number of `n` bytes, at most 8.
    pub(crate) fn number(&mut self, n: usize) -> u64 {
        let mut number = [0; 8];
        let taken = self.bytes(n.min(8));
        number[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(number)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.number(8)
    }
}

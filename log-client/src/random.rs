//! Pseudo-random numbers for waits and tests. Not for cryptography.

/// Xorshift generator. Source: G. Marsaglia, "Xorshift RNGs" (2003).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Equal seeds give equal sequences.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// A number below `limit`, which must not be 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

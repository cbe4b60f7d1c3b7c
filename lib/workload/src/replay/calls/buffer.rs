//! Memory that replayed reads fill.

use crate::content::ALIGNMENT;

/// Read buffer of one thread. It grows to the longest request of the thread.
#[derive(Debug, Default)]
pub(in crate::replay) struct Buffer(Vec<u8>);

impl Buffer {
    /// Returns `length` bytes that begin at a multiple of [`ALIGNMENT`], as `O_DIRECT` requires.
    pub(in crate::replay) fn slice(&mut self, length: usize) -> &mut [u8] {
        if self.0.len() < length + ALIGNMENT {
            self.0 = vec![0; length + ALIGNMENT];
        }
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        &mut self.0[start..start + length]
    }
}

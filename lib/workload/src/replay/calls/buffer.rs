//! Where reads go to.

use crate::content::ALIGNMENT;
use std::ffi::c_void;

/// Memory of a thread that reads go to.
#[derive(Debug, Default)]
pub(in crate::replay) struct Buffer(Vec<u8>);

impl Buffer {
    /// So many bytes at least, which begin where direct I/O can be made.
    pub(in crate::replay) fn of(&mut self, length: usize) -> *mut c_void {
        if self.0.len() < length + ALIGNMENT {
            self.0 = vec![0; length + ALIGNMENT];
        }
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        self.0[start..].as_mut_ptr().cast()
    }
}

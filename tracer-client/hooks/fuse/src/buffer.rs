//! A buffer of each thread for the data of one request, aligned as `O_DIRECT` wants it.

use std::cell::RefCell;

/// Alignment that satisfies any block device and file system.
const ALIGNMENT: usize = 4096;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls with this thread's buffer of so many bytes, with anything in them.
pub(crate) fn with<T>(bytes: usize, call: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < bytes + ALIGNMENT {
            *buffer = vec![0; bytes + ALIGNMENT];
        }
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        call(&mut buffer[start..start + bytes])
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_buffer_is_aligned_and_as_long_as_asked() {
        for bytes in [0, 1, 4096, 1 << 20, 17] {
            super::with(bytes, |buffer| {
                assert_eq!((buffer.as_ptr() as usize % 4096, buffer.len()), (0, bytes));
            });
        }
    }
}

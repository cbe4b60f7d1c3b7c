//! Per-thread buffer for the data of one request, aligned for `O_DIRECT`.

use std::cell::RefCell;

/// Alignment in bytes that satisfies every block device and file system.
const ALIGNMENT: usize = 4096;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `call` with `bytes` bytes of this thread's buffer. Their content is undefined.
pub(crate) fn with_buffer<T>(bytes: usize, call: impl FnOnce(&mut [u8]) -> T) -> T {
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
    fn buffer_is_aligned_and_has_the_requested_length() {
        for bytes in [0, 1, 4096, 1 << 20, 17] {
            super::with_buffer(bytes, |buffer| {
                assert_eq!((buffer.as_ptr() as usize % 4096, buffer.len()), (0, bytes));
            });
        }
    }
}

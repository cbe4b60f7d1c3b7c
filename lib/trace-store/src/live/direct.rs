//! Large writes past the page cache.
//!
//! The rows of a live part are read again only after a crash, by a command that looks at a running
//! trace, or if sealing is behind. A copy in the page cache costs more than the write itself: on
//! virtual machines that return free memory to their host about 110 ns per event.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Alignment of offsets, lengths and addresses, bytes. It suits all common disks.
pub(super) const BLOCK: usize = 4096;
/// Length from which on a write is direct, bytes.
const DIRECT_FROM: usize = 256 << 10;
/// Bytes per system call.
const BUFFER: usize = 4 << 20;

/// Writes whole blocks directly, if the file system supports it.
#[derive(Debug, Default)]
pub(super) struct DirectWriter {
    /// Empty before the first write; then [`BUFFER`] bytes from an aligned address on, which is
    /// somewhere in its first [`BLOCK`] bytes.
    buffer: Vec<u8>,
    is_unsupported: bool,
}

impl DirectWriter {
    /// Writes `bytes` up to the last whole block, if they are long enough. `block` are the bytes of
    /// the file from `offset`, a multiple of [`BLOCK`], to the place of `bytes`; they are written
    /// again. Returns how many of `bytes` were written.
    ///
    /// # Errors
    /// Those of the write; an unknown part of `bytes` is in the file.
    pub(super) fn write(
        &mut self,
        file: &File,
        offset: u64,
        block: &[u8],
        bytes: &[u8],
    ) -> io::Result<usize> {
        if bytes.len() < DIRECT_FROM || self.is_unsupported {
            return Ok(0);
        }
        let flags = fcntl_getfl(file)?;
        let written = match fcntl_setfl(file, flags | OFlags::DIRECT) {
            Ok(()) => self.write_blocks(file, offset, block, bytes),
            Err(e) => Err(e.into()),
        };
        fcntl_setfl(file, flags)?;
        match written {
            // The caller writes everything through the page cache.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                *self = DirectWriter { buffer: Vec::new(), is_unsupported: true };
                Ok(0)
            }
            written => written,
        }
    }

    fn write_blocks(
        &mut self,
        file: &File,
        offset: u64,
        mut block: &[u8],
        bytes: &[u8],
    ) -> io::Result<usize> {
        self.buffer.resize(BUFFER + BLOCK, 0);
        let aligned = self.buffer.as_ptr().align_offset(BLOCK);
        let buffer = self
            .buffer
            .get_mut(aligned..)
            .and_then(|buffer| buffer.get_mut(..BUFFER))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let direct = (block.len() + bytes.len()) / BLOCK * BLOCK - block.len();
        let (mut rest, mut at) = (&bytes[..direct], offset);
        while !rest.is_empty() {
            let (head, tail) = buffer.split_at_mut(block.len());
            head.copy_from_slice(block);
            let (now, later) = rest.split_at(tail.len().min(rest.len()));
            tail[..now.len()].copy_from_slice(now);
            let filled = block.len() + now.len();
            file.write_all_at(&buffer[..filled], at)?;
            (block, rest, at) = (&[], later, at + filled as u64);
        }
        Ok(direct)
    }
}

/// Updates `block`, the bytes after the last whole block of a file, after `more` was appended.
pub(super) fn last_block(block: &mut Vec<u8>, more: &[u8]) {
    let keep = (block.len() + more.len()) % BLOCK;
    if keep <= more.len() {
        block.clear();
        block.extend_from_slice(&more[more.len() - keep..]);
    } else {
        block.extend_from_slice(more);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{BLOCK, BUFFER, DIRECT_FROM, DirectWriter, last_block};
    use std::os::unix::fs::FileExt;

    /// Pieces of many lengths, written as a live stream is: whole blocks directly, if possible, the
    /// rest through the page cache.
    #[test]
    fn file_has_the_bytes_that_were_written() {
        let lengths = [1, 100, DIRECT_FROM, BLOCK, DIRECT_FROM + 1, 2 * BUFFER + 17, DIRECT_FROM - 1, BUFFER];
        for dir in ["/var/tmp", "/dev/shm"] {
            let mut file = tempfile::tempfile_in(dir).unwrap();
            let mut writer = DirectWriter::default();
            let (mut expected, mut block, mut direct) = (Vec::new(), Vec::new(), 0);
            for (piece, length) in lengths.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + piece) as u8).collect();
                let end = expected.len();
                let whole = writer.write(&file, (end - block.len()) as u64, &block, &bytes).unwrap();
                file.write_all_at(&bytes[whole..], (end + whole) as u64).unwrap();
                direct += whole;
                last_block(&mut block, &bytes);
                expected.extend(bytes);
                assert_eq!(block, expected[expected.len() / BLOCK * BLOCK..], "after {length} bytes");
            }
            let mut found = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut found).unwrap();
            assert!(found == expected, "in {dir}: {direct} bytes were written directly");
            assert!(direct > 3 * BUFFER || writer.is_unsupported, "in {dir}: {direct} bytes");
        }
    }
}

//! Calls that move data, and calls on ranges of bytes.

use super::super::syntax;
use super::{CallReader, Draft, Read, Skip, required};
use miot_proto::event::flag;
use miot_proto::op::{Op, posix};

impl CallReader<'_, '_> {
    /// Requests that read, write, map or copy data.
    pub(super) fn data_request(&mut self) -> Read<Option<Draft>> {
        Ok(Some(match self.call.name {
            "read" | "readv" | "write" | "writev" => self.transfer()?,
            "pread64" | "pread" | "preadv" | "preadv2" | "pwrite64" | "pwrite" | "pwritev" | "pwritev2" => {
                self.positioned_transfer()?
            }
            "lseek" => self.seek()?,
            "mmap" | "mmap2" => self.map()?,
            "munmap" | "msync" => self.unmap_or_sync()?,
            "sendfile" | "sendfile64" | "copy_file_range" | "splice" => self.copy()?,
            "getdents64" | "getdents" => {
                Draft { length: self.call.number(2), ..self.on_file(posix::GETDENTS, 0)? }
            }
            _ => return Ok(None),
        }))
    }

    /// Reads or writes at the position.
    fn transfer(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let open = self.file(0)?;
        let (writes, vector) = (name.starts_with('w'), name.ends_with('v'));
        let start = open.start(writes);
        open.moved(start, self.call.result, writes);
        let length = if vector { syntax::vector_length(self.call.arg(1)) } else { self.call.number(2) };
        let op = match (writes, vector) {
            (false, false) => posix::READ,
            (false, true) => posix::READV,
            (true, false) => posix::WRITE,
            (true, true) => posix::WRITEV,
        };
        Ok(Draft { offset: start, length, flags: open.flags(writes), ..self.on(op, open) })
    }

    /// Reads or writes at a given offset.
    fn positioned_transfer(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let open = self.file(0)?;
        let (writes, vector) = (name.starts_with("pw"), name.contains('v'));
        let length = if vector { syntax::vector_length(self.call.arg(1)) } else { self.call.number(2) };
        let offset = required(self.call.number(3))?;
        let start = if offset == -1 && name.ends_with('2') {
            let start = open.start(writes);
            open.moved(start, self.call.result, writes);
            start
        } else {
            // Linux: pwrite to a file opened for appending appends.
            let start = if writes && open.append.get() { open.size.get() } else { Some(offset) };
            if writes {
                open.grown(start, self.call.result);
            }
            start
        };
        let op = match name {
            "pread64" | "pread" => posix::PREAD,
            "preadv" => posix::PREADV,
            "preadv2" => posix::PREADV2,
            "pwritev" => posix::PWRITEV,
            "pwritev2" => posix::PWRITEV2,
            _ => posix::PWRITE,
        };
        Ok(Draft { offset: start, length, flags: open.flags(writes), ..self.on(op, open) })
    }

    /// Moves the position.
    fn seek(&mut self) -> Read<Draft> {
        let open = self.file(0)?;
        let (offset, whence) = (required(self.call.number(1))?, self.call.number(2));
        if !self.call.failed() {
            open.position.set(Some(self.call.result));
            if whence == Some(i64::from(libc::SEEK_END)) {
                open.size.set(self.call.result.checked_sub(offset));
            }
        }
        Ok(Draft { offset: Some(offset), arg: whence, ..self.on(posix::LSEEK, open) })
    }

    /// Maps a file into memory.
    fn map(&mut self) -> Read<Draft> {
        if syntax::descriptor(self.call.arg(4)).is_none_or(|(descriptor, _)| descriptor < 0) {
            return Err(Skip::Other);
        }
        let (open, length) = (self.file(4)?, required(self.call.number(1))?);
        let failed = (-4095..0).contains(&self.call.result);
        if !failed {
            self.task.maps.borrow_mut().push((self.call.result, self.call.result.saturating_add(length)));
        }
        let protection = self.call.number(2).unwrap_or(0) as u16 & 7;
        let shared = self.call.number(3).unwrap_or(0) as u16 & 1;
        Ok(Draft {
            offset: self.call.number(5),
            length: Some(length),
            result: if failed { self.call.result } else { 0 },
            flags: (protection | shared << 3) << flag::OP_SHIFT,
            ..self.on(posix::MMAP, open)
        })
    }

    /// Unmaps or synchronizes mapped memory. Memory without a file is skipped.
    fn unmap_or_sync(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let (start, length) = (required(self.call.number(0))?, required(self.call.number(1))?);
        let end = start.saturating_add(length);
        let mut maps = self.task.maps.borrow_mut();
        if !maps.iter().any(|(from, to)| start < *to && *from < end) {
            return Err(Skip::Other);
        }
        if name == "munmap" {
            maps.retain(|(from, to)| *from < start || end < *to);
        }
        let op = if name == "munmap" { posix::MUNMAP } else { posix::MSYNC };
        Ok(Draft { length: Some(length), ..self.draft(op) })
    }

    /// Copies data between two descriptors.
    fn copy(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let sendfile = name.starts_with("sendfile");
        let (op, from_at, to_at, length) = match name {
            "copy_file_range" => (posix::COPY_FILE_RANGE, 0, 2, 4),
            "splice" => (posix::SPLICE, 0, 2, 4),
            _ => (posix::SENDFILE, 1, 0, 3),
        };
        let from = required(self.import.file(self.task, self.call.arg(from_at)))?;
        let to = required(self.import.file(self.task, self.call.arg(to_at)))?;
        let from_given = syntax::pointed(self.call.arg(if sendfile { 2 } else { 1 }));
        let to_given = if sendfile { None } else { syntax::pointed(self.call.arg(3)) };
        let (offset2, offset) = (from_given.or(from.start(false)), to_given.or(to.start(true)));
        match from_given {
            Some(_) => {}
            None => from.moved(offset2, self.call.result, false),
        }
        match to_given {
            Some(_) => to.grown(offset, self.call.result),
            None => to.moved(offset, self.call.result, true),
        }
        if from.no_file && to.no_file {
            return Err(Skip::NoFile);
        }
        let path2 = from.path.clone().filter(|_| !from.no_file);
        let (open, offset) = if to.no_file { (None, None) } else { (Some(to), offset) };
        let offset2 = offset2.filter(|_| !from.no_file);
        Ok(Draft { open, path2, offset, offset2, length: self.call.number(length), ..self.draft(op) })
    }

    /// Requests that synchronize data or change the size of a file.
    pub(super) fn size_request(&mut self) -> Read<Option<Draft>> {
        Ok(Some(match self.call.name {
            "fsync" => self.on_file(posix::FSYNC, 0)?,
            "fdatasync" => self.on_file(posix::FDATASYNC, 0)?,
            "syncfs" => self.on_file(posix::SYNCFS, 0)?,
            "sync" => self.draft(posix::SYNC),
            "sync_file_range" => self.on_range(posix::SYNC_FILE_RANGE)?,
            "fadvise64" => self.on_range(posix::POSIX_FADVISE)?,
            "truncate" => self.truncate()?,
            "ftruncate" => self.truncate_open()?,
            "fallocate" => self.allocate()?,
            _ => return Ok(None),
        }))
    }

    /// Synchronizes a range of a file, or gives advice about it.
    fn on_range(&mut self, op: Op) -> Read<Draft> {
        Ok(Draft { offset: self.call.number(1), length: self.call.number(2), ..self.on_file(op, 0)? })
    }

    /// Sets the size of a file by its path.
    fn truncate(&mut self) -> Read<Draft> {
        let (path, length) = (self.path(0)?, self.call.number(1));
        if !self.call.failed() {
            self.import.sizes.of(&path).set(length);
        }
        Ok(Draft { length, ..self.on_path(posix::TRUNCATE, path) })
    }

    /// Sets the size of an open file.
    fn truncate_open(&mut self) -> Read<Draft> {
        let (open, length) = (self.file(0)?, self.call.number(1));
        if !self.call.failed() {
            open.size.set(length);
        }
        Ok(Draft { length, ..self.on(posix::FTRUNCATE, open) })
    }

    /// Allocates or frees space of a file.
    fn allocate(&mut self) -> Read<Draft> {
        let (open, offset, length) = (self.file(0)?, self.call.number(2), self.call.number(3));
        if self.call.number(1) == Some(0) && !self.call.failed() {
            open.grown(offset, length.unwrap_or(0));
        }
        Ok(Draft { offset, length, ..self.on(posix::FALLOCATE, open) })
    }
}

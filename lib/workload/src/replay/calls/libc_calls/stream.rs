//! Calls of stdio.

use super::super::returned::{Result, last_error, returned};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// An open `FILE`. The table of open files holds its address and forgets it before
/// [`close`](Stream::close).
#[derive(Clone, Copy, Debug)]
pub(in crate::replay::calls) struct Stream(*mut libc::FILE);

/// Flushes all streams of the process.
pub(in crate::replay::calls) fn flush_all() -> Result<i64> {
    // SAFETY: a null pointer stands for all streams.
    returned(unsafe { libc::fflush(null_mut()) })
}

impl Stream {
    pub(in crate::replay::calls) fn open(path: &CStr, mode: &CStr) -> Result<Stream> {
        // SAFETY: both are C strings that outlive the call.
        Stream::checked(unsafe { libc::fopen64(path.as_ptr(), mode.as_ptr()) })
    }

    pub(in crate::replay::calls) fn from_descriptor(fd: c_int, mode: &CStr) -> Result<Stream> {
        // SAFETY: `mode` is a C string that outlives the call; the descriptor is a number.
        Stream::checked(unsafe { libc::fdopen(fd, mode.as_ptr()) })
    }

    /// As [`from_descriptor`](Stream::from_descriptor), but calls the function of libc itself: a
    /// preloaded hook does not record the call.
    ///
    /// # Errors
    /// `ENOSYS` if there is no libc.so.6 with `fdopen`, else as `fdopen`(3).
    pub(in crate::replay::calls) fn from_descriptor_untraced(fd: c_int, mode: &CStr) -> Result<Stream> {
        type FdOpen = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;
        // SAFETY: the name is a C string that outlives the call.
        let own = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY) };
        if own.is_null() {
            return Err(rustix::io::Errno::NOSYS);
        }
        // SAFETY: an open library, and a C string that outlives the call.
        let found = unsafe { libc::dlsym(own, c"fdopen".as_ptr()) };
        if found.is_null() {
            return Err(rustix::io::Errno::NOSYS);
        }
        // SAFETY: the function `fdopen` of libc has this prototype.
        let fdopen = unsafe { std::mem::transmute::<*mut c_void, FdOpen>(found) };
        // SAFETY: `mode` is a C string that outlives the call; the descriptor is a number.
        Stream::checked(unsafe { fdopen(fd, mode.as_ptr()) })
    }

    fn checked(stream: *mut libc::FILE) -> Result<Stream> {
        if stream.is_null() { Err(last_error()) } else { Ok(Stream(stream)) }
    }

    /// Address for the table of open files, see [`from_address`](Stream::from_address).
    pub(in crate::replay::calls) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    /// `address` must come from [`address`](Stream::address), of a stream that is not closed.
    pub(in crate::replay::calls) fn from_address(address: usize) -> Stream {
        Stream(std::ptr::with_exposed_provenance_mut(address))
    }

    pub(in crate::replay::calls) fn descriptor(self) -> c_int {
        // SAFETY: the stream is open.
        unsafe { libc::fileno(self.0) }
    }

    /// Returns 0 at the end of the file, an error if the stream has one.
    fn end_or_error(self) -> Result<i64> {
        // SAFETY: the stream is open.
        if unsafe { libc::ferror(self.0) } == 0 { Ok(0) } else { Err(last_error()) }
    }

    /// Bytes moved; of none, whether that is an error.
    fn moved(self, count: usize, requested: usize) -> Result<i64> {
        if count == 0 && requested > 0 { self.end_or_error() } else { Ok(count as i64) }
    }

    pub(in crate::replay::calls) fn read(self, memory: &mut [u8]) -> Result<i64> {
        // SAFETY:
        // - the stream is open;
        // - `memory` is valid for writes of its length, and this call has it alone.
        let count = unsafe { libc::fread(memory.as_mut_ptr().cast(), 1, memory.len(), self.0) };
        self.moved(count, memory.len())
    }

    pub(in crate::replay::calls) fn write(self, memory: &[u8]) -> Result<i64> {
        // SAFETY:
        // - the stream is open;
        // - `memory` is valid for reads of its length.
        let count = unsafe { libc::fwrite(memory.as_ptr().cast(), 1, memory.len(), self.0) };
        self.moved(count, memory.len())
    }

    /// `fprintf` of a text without NUL bytes.
    pub(in crate::replay::calls) fn print(self, text: &[u8]) -> Result<i64> {
        let length = text.len() as c_int;
        // SAFETY:
        // - the stream is open;
        // - the format takes an `int` and a string, of which it reads at most so many bytes.
        returned(unsafe { libc::fprintf(self.0, c"%.*s".as_ptr(), length, text.as_ptr().cast::<c_char>()) })
    }

    pub(in crate::replay::calls) fn put_string(self, text: &CStr) -> Result<i64> {
        // SAFETY: the stream is open, and `text` is a C string that outlives the call.
        returned(unsafe { libc::fputs(text.as_ptr(), self.0) })
    }

    /// Returns 1 for a byte, 0 at the end of the file.
    pub(in crate::replay::calls) fn get_byte(self) -> Result<i64> {
        // SAFETY: the stream is open.
        match unsafe { libc::fgetc(self.0) } {
            libc::EOF => self.end_or_error(),
            _ => Ok(1),
        }
    }

    pub(in crate::replay::calls) fn put_byte(self, byte: u8) -> Result<i64> {
        // SAFETY: the stream is open.
        returned(unsafe { libc::fputc(c_int::from(byte), self.0) })
    }

    pub(in crate::replay::calls) fn seek(self, offset: i64, whence: c_int) -> Result<i64> {
        // SAFETY: the stream is open; the other arguments are numbers.
        returned(unsafe { libc::fseeko64(self.0, offset, whence) })
    }

    pub(in crate::replay::calls) fn tell(self) -> Result<i64> {
        // SAFETY: the stream is open.
        returned(unsafe { libc::ftello64(self.0) })
    }

    pub(in crate::replay::calls) fn rewind(self) {
        // SAFETY: the stream is open.
        unsafe { libc::rewind(self.0) }
    }

    pub(in crate::replay::calls) fn get_position(self) -> Result<i64> {
        let mut position = MaybeUninit::<libc::fpos64_t>::uninit();
        // SAFETY: the stream is open, and `position` is valid for writes of a position.
        returned(unsafe { libc::fgetpos64(self.0, position.as_mut_ptr()) })
    }

    pub(in crate::replay::calls) fn flush(self) -> Result<i64> {
        // SAFETY: the stream is open.
        returned(unsafe { libc::fflush(self.0) })
    }

    /// The table of open files must not contain the stream any more.
    pub(in crate::replay::calls) fn close(self) -> Result<i64> {
        // SAFETY: the stream is open, and nothing uses it after this.
        returned(unsafe { libc::fclose(self.0) })
    }
}

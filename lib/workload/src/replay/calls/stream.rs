//! Requests of the layer stdio.

use super::name::is_pipe;
use super::said::{Result, last_error, said};
use super::{Buffer, Target};
use crate::replay::Step;
use crate::replay::files::stream_mode;
use crate::replay::plan::LARGEST;
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

impl Target {
    /// A request of the layer stdio.
    pub(super) fn on_stream(&self, name: &str, step: &Step, buffer: &mut Buffer) -> Result<i64> {
        let low = step.arg as c_int;
        if matches!(name, "fopen" | "freopen") {
            let path = self.name(step.path.as_deref(), true)?;
            // SAFETY: strings that outlive the call.
            let stream = unsafe {
                // To read and write, a named pipe waits for nobody.
                let mode = if is_pipe(path.as_ptr()) { c"r+" } else { mode_of(low) };
                libc::fopen64(path.as_ptr(), mode.as_ptr())
            };
            if stream.is_null() {
                return Err(last_error());
            }
            // SAFETY: just opened.
            let fd = unsafe { libc::fileno(stream) };
            let mut files = self.files();
            files.opened(step.handle, step.result, fd);
            files.stream_opened(step.handle, stream.expose_provenance(), fd);
            return Ok(i64::from(fd));
        }
        if name == "fflush" && step.handle == 0 {
            // SAFETY: null stands for all streams.
            return said(unsafe { libc::fflush(null_mut()) });
        }
        if name == "fdopen" {
            let fd = self.descriptor(step)?;
            // SAFETY: the descriptor is open and a string that outlives the call.
            let stream = unsafe { libc::fdopen(fd, mode_of(low).as_ptr()) };
            if stream.is_null() {
                return Err(last_error());
            }
            self.files().stream_opened(step.handle, stream.expose_provenance(), fd);
            return Ok(i64::from(fd));
        }
        let (stream, fd) = self.stream(step)?;
        if name == "fclose" {
            self.files().closed(step.handle, fd);
        }
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        // What is asked for says nothing where lines are read.
        let bytes = if matches!(name, "fread" | "fwrite") { length } else { step.result.max(0) as usize };
        let bytes = bytes.min(LARGEST as usize);
        let offset = step.offset.unwrap_or(0);
        let failed = |stream| {
            // SAFETY: the stream is open.
            if unsafe { libc::ferror(stream) } == 0 { Ok(0) } else { Err(last_error()) }
        };
        let moved = |count: usize| if count == 0 && bytes > 0 { failed(stream) } else { Ok(count as i64) };
        let text = self.text.as_ptr();
        // SAFETY: the stream was opened by this process and not closed since; the memory outlives the calls and is as large as they
        // are told.
        unsafe {
            match name {
                "fread" | "fgets" | "getline" | "getdelim" | "fscanf" | "scanf" => {
                    moved(libc::fread(buffer.of(bytes), 1, bytes, stream))
                }
                "fwrite" | "puts" | "printf" => {
                    moved(libc::fwrite(self.written(offset, bytes as u64), 1, bytes, stream))
                }
                "fprintf" => {
                    let bytes = bytes.min(self.text.len()) as c_int;
                    said(libc::fprintf(stream, c"%.*s".as_ptr(), bytes, text.cast::<c_char>()))
                }
                "fputs" => {
                    let string =
                        CString::new(&self.text[..bytes.min(self.text.len())]).map_err(|_| Errno::INVAL)?;
                    said(libc::fputs(string.as_ptr(), stream)).map(|_| bytes as i64)
                }
                "fgetc" => match libc::fgetc(stream) {
                    -1 => failed(stream),
                    _ => Ok(1),
                },
                "fputc" => said(libc::fputc(c_int::from(b'x'), stream)).map(|_| 1),
                "fseek" => said(libc::fseeko64(stream, offset, low)),
                "ftell" => said(libc::ftello64(stream)),
                "rewind" => {
                    libc::rewind(stream);
                    Ok(0)
                }
                "fgetpos" | "fsetpos" => {
                    let mut place = std::mem::MaybeUninit::<libc::fpos64_t>::uninit();
                    if name == "fsetpos" {
                        // Only a position that the stream has had can be set.
                        return said(libc::fseeko64(stream, offset, libc::SEEK_SET));
                    }
                    said(libc::fgetpos64(stream, place.as_mut_ptr()))
                }
                "fflush" => said(libc::fflush(stream)),
                "fclose" => said(libc::fclose(stream)),
                _ => Err(Errno::NOSYS),
            }
        }
    }

    /// The stream of a step's file; one on a descriptor of another process is made past the hook.
    fn stream(&self, step: &Step) -> Result<(*mut libc::FILE, c_int)> {
        if let Some((address, fd)) = self.files().stream(step.handle) {
            return Ok((std::ptr::with_exposed_provenance_mut(address), fd));
        }
        let fd = self.descriptor(step)?;
        type FdOpen = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;
        // SAFETY: the function of this name in libc itself has this prototype; the descriptor is open.
        let stream = unsafe {
            let own = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
            let found = if own.is_null() { null_mut() } else { libc::dlsym(own, c"fdopen".as_ptr()) };
            if found.is_null() {
                return Err(Errno::NOSYS);
            }
            std::mem::transmute::<*mut c_void, FdOpen>(found)(fd, stream_mode(fd).as_ptr())
        };
        if stream.is_null() {
            return Err(last_error());
        }
        self.files().stream_opened(step.handle, stream.expose_provenance(), fd);
        Ok((stream, fd))
    }
}

/// `mode` of `fopen` for flags of `open`.
fn mode_of(flags: c_int) -> &'static CStr {
    let has = |flag: c_int| flags & flag != 0;
    let both = flags & libc::O_ACCMODE == libc::O_RDWR;
    match (has(libc::O_APPEND), has(libc::O_TRUNC), has(libc::O_EXCL), both) {
        (true, _, _, true) => c"a+",
        (true, _, _, false) => c"a",
        (_, true, true, true) => c"w+x",
        (_, true, true, false) => c"wx",
        (_, true, false, true) => c"w+",
        (_, true, false, false) => c"w",
        (_, _, _, true) => c"r+",
        _ if flags & libc::O_ACCMODE == libc::O_WRONLY => c"w",
        _ => c"r",
    }
}

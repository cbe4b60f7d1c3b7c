//! Requests of the layer stdio.

use super::libc_calls::{Stream, flush_all};
use super::open::is_pipe;
use super::returned::Result;
use super::{Buffer, Symlink, Target};
use crate::replay::ReplayStep;
use crate::replay::open_files::stream_mode;
use crate::replay::plan::MAX_REQUEST_BYTES;
use miot_proto::op::stdio;
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_int};

impl Target {
    /// Makes a request of the layer stdio.
    pub(super) fn on_stream(&self, step: &ReplayStep, buffer: &mut Buffer) -> Result<i64> {
        match step.operation() {
            stdio::FOPEN | stdio::FREOPEN => self.open_stream(step),
            stdio::FFLUSH if step.handle == 0 => flush_all(),
            stdio::FDOPEN => self.open_stream_on_descriptor(step),
            _ => self.on_open_stream(step, buffer),
        }
    }

    fn open_stream(&self, step: &ReplayStep) -> Result<i64> {
        let path = self.full_path(step.path.as_deref(), Symlink::Follow)?;
        // A named pipe that is opened for reading and writing does not block.
        let mode = if is_pipe(&path) { c"r+" } else { mode_of(step.low_argument()) };
        let stream = Stream::open(&path, mode)?;
        let fd = stream.descriptor();
        let mut files = self.files();
        files.insert(step.handle, step.result, fd);
        files.set_stream(step.handle, stream.address(), fd);
        Ok(i64::from(fd))
    }

    fn open_stream_on_descriptor(&self, step: &ReplayStep) -> Result<i64> {
        let fd = self.descriptor(step)?;
        let stream = Stream::from_descriptor(fd, mode_of(step.low_argument()))?;
        self.files().set_stream(step.handle, stream.address(), fd);
        Ok(i64::from(fd))
    }

    fn on_open_stream(&self, step: &ReplayStep, buffer: &mut Buffer) -> Result<i64> {
        let (stream, fd) = self.stream(step)?;
        if step.operation() == stdio::FCLOSE {
            self.files().remove(step.handle, fd);
        }
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        // The requested length is that of a buffer where lines are read: the result counts.
        let is_block = matches!(step.operation(), stdio::FREAD | stdio::FWRITE);
        let bytes = if is_block { length } else { step.result.max(0) as usize };
        let bytes = bytes.min(MAX_REQUEST_BYTES as usize);
        let offset = step.offset.unwrap_or(0);
        match step.operation() {
            stdio::FREAD | stdio::FGETS | stdio::GETLINE | stdio::GETDELIM | stdio::FSCANF | stdio::SCANF => {
                stream.read(buffer.slice(bytes))
            }
            stdio::FWRITE | stdio::PUTS | stdio::PRINTF => stream.write(self.written(offset, bytes)),
            stdio::FPRINTF => stream.print(self.text(bytes)),
            stdio::FPUTS => {
                let string = CString::new(self.text(bytes)).map_err(|_| Errno::INVAL)?;
                stream.put_string(&string).map(|_| bytes as i64)
            }
            stdio::FGETC => stream.get_byte(),
            stdio::FPUTC => stream.put_byte(b'x').map(|_| 1),
            stdio::FSEEK => stream.seek(offset, step.low_argument()),
            stdio::FTELL => stream.tell(),
            stdio::REWIND => {
                stream.rewind();
                Ok(0)
            }
            stdio::FGETPOS => stream.get_position(),
            // `fsetpos` takes only what `fgetpos` of the same stream has returned.
            stdio::FSETPOS => stream.seek(offset, libc::SEEK_SET),
            stdio::FFLUSH => stream.flush(),
            stdio::FCLOSE => stream.close(),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Returns text of `bytes` bytes, or less if no string that is written is as long.
    fn text(&self, bytes: usize) -> &[u8] {
        &self.text[..bytes.min(self.text.len())]
    }

    /// Returns the stream of a step's file and its descriptor. For a descriptor of another process
    /// the stream is created without a record of a hook.
    fn stream(&self, step: &ReplayStep) -> Result<(Stream, c_int)> {
        if let Some((address, fd)) = self.files().stream(step.handle) {
            return Ok((Stream::from_address(address), fd));
        }
        let fd = self.descriptor(step)?;
        let stream = Stream::from_descriptor_untraced(fd, stream_mode(fd))?;
        self.files().set_stream(step.handle, stream.address(), fd);
        Ok((stream, fd))
    }
}

/// Mode of `fopen` for flags of `open`.
fn mode_of(flags: c_int) -> &'static CStr {
    let has = |flag: c_int| flags & flag != 0;
    let reads_and_writes = flags & libc::O_ACCMODE == libc::O_RDWR;
    match (has(libc::O_APPEND), has(libc::O_TRUNC), has(libc::O_EXCL), reads_and_writes) {
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

//! Files through MPI-IO.

use super::{Failed, Handle, Mpi, Status, count};
use crate::pattern::Piece;
use std::ffi::{CString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

/// `MPI_MODE_RDWR`, of both MPIs.
const READ_AND_WRITE: c_int = 8;

/// A call that moves bytes between an open file, from an offset on, and memory.
type Transfer<Memory> = unsafe extern "C" fn(Handle, i64, Memory, c_int, Handle, *mut Status) -> c_int;

/// An open file. Closed by [`close`](SharedFile::close) alone, since that is collective.
pub(crate) struct SharedFile {
    mpi: Arc<Mpi>,
    handle: Handle,
    is_collective: bool,
}

impl SharedFile {
    /// Opens a file that is there: with all ranks for collective calls, else by this rank alone, so that nothing it does waits for others.
    pub(crate) fn open(mpi: &Arc<Mpi>, path: &Path, is_collective: bool) -> io::Result<SharedFile> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let comm = if is_collective { mpi.constants.world } else { mpi.constants.own };
        let mut handle = 0;
        // SAFETY: a communicator of this MPI, a C string, no hints.
        let code = unsafe {
            (mpi.functions.file_open)(
                comm,
                name.as_ptr(),
                READ_AND_WRITE,
                mpi.constants.no_info,
                &raw mut handle,
            )
        };
        mpi.check("MPI_File_open", code).map_err(io::Error::other)?;
        Ok(SharedFile { mpi: Arc::clone(mpi), handle, is_collective })
    }

    /// Shows only these pieces, `together` of which are one call.
    pub(crate) fn show(&self, pieces: &[Piece], together: usize) -> io::Result<()> {
        self.set_view(pieces, together).map_err(io::Error::other)
    }

    fn set_view(&self, pieces: &[Piece], together: usize) -> Result<(), Failed> {
        let (mpi, functions) = (&self.mpi, &self.mpi.functions);
        // Applications repeat a small type: a long one would be slower.
        let (shown, extent) = match period(pieces, together) {
            Some(extent) => (&pieces[..together.min(pieces.len())], extent),
            None => (pieces, pieces.iter().map(|piece| piece.offset + piece.length).max().unwrap_or(1)),
        };
        let first = shown.first().map_or(0, |piece| piece.offset);
        let lengths: Vec<c_int> =
            shown.iter().map(|piece| count(piece.length as usize)).collect::<Result<_, _>>()?;
        let begins: Vec<i64> = shown.iter().map(|piece| piece.offset as i64 - first as i64).collect();
        let (byte, blocks) = (mpi.constants.byte, count(shown.len())?);
        let (mut blocks_type, mut view) = (0, 0);
        // SAFETY: as many lengths and begins as are told; handles that the calls before have made.
        unsafe {
            let code = (functions.type_create_hindexed)(
                blocks,
                lengths.as_ptr(),
                begins.as_ptr(),
                byte,
                &raw mut blocks_type,
            );
            mpi.check("MPI_Type_create_hindexed", code)?;
            let code = (functions.type_create_resized)(blocks_type, 0, extent.max(1) as i64, &raw mut view);
            mpi.check("MPI_Type_create_resized", code)?;
            mpi.check("MPI_Type_commit", (functions.type_commit)(&raw mut view))?;
            let code = (functions.file_set_view)(
                self.handle,
                first as i64,
                byte,
                view,
                c"native".as_ptr(),
                mpi.constants.no_info,
            );
            mpi.check("MPI_File_set_view", code)?;
            mpi.check("MPI_Type_free", (functions.type_free)(&raw mut view))?;
            mpi.check("MPI_Type_free", (functions.type_free)(&raw mut blocks_type))
        }
    }

    /// Reads all of these bytes, at an offset in what the view shows.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let functions = &self.mpi.functions;
        let call = if self.is_collective {
            ("MPI_File_read_at_all", functions.read_at_all)
        } else {
            ("MPI_File_read_at", functions.read_at)
        };
        // SAFETY: room for so many bytes.
        unsafe { self.transfer(call, bytes.as_mut_ptr().cast(), bytes.len(), offset) }
    }

    /// Writes all of these bytes, at an offset in what the view shows.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let functions = &self.mpi.functions;
        let call = if self.is_collective {
            ("MPI_File_write_at_all", functions.write_at_all)
        } else {
            ("MPI_File_write_at", functions.write_at)
        };
        // SAFETY: so many bytes, which are only read.
        unsafe { self.transfer(call, bytes.as_ptr().cast(), bytes.len(), offset) }
    }

    /// Moves all of these bytes by a call of this name.
    ///
    /// # Safety
    /// `memory` has `length` bytes, and may be used as the call uses it.
    unsafe fn transfer<Memory>(
        &self,
        (name, call): (&'static str, Transfer<Memory>),
        memory: Memory,
        length: usize,
        offset: u64,
    ) -> io::Result<()> {
        let (mpi, byte) = (&self.mpi, self.mpi.constants.byte);
        let (length, mut status) = (count(length).map_err(io::Error::other)?, Status([0; 24]));
        // SAFETY: an open file, room for a status; the memory is the caller's word.
        let code = unsafe { call(self.handle, offset as i64, memory, length, byte, &raw mut status) };
        mpi.check(name, code).map_err(io::Error::other)?;
        let mut moved = 0;
        // SAFETY: the status of a call that has succeeded.
        let code = unsafe { (mpi.functions.get_count)(&raw const status, byte, &raw mut moved) };
        mpi.check("MPI_Get_count", code).map_err(io::Error::other)?;
        if moved == length {
            Ok(())
        } else {
            Err(io::Error::other(format!("{name} moved {moved} of {length} bytes")))
        }
    }

    /// Makes durable what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: an open file.
        let code = unsafe { (self.mpi.functions.file_sync)(self.handle) };
        self.mpi.check("MPI_File_sync", code).map_err(io::Error::other)
    }

    /// Closes it, with those who have opened it.
    pub(crate) fn close(mut self) -> io::Result<()> {
        // SAFETY: an open file, which nobody has after this.
        let code = unsafe { (self.mpi.functions.file_close)(&raw mut self.handle) };
        self.mpi.check("MPI_File_close", code).map_err(io::Error::other)
    }
}

/// The distance at which the first `together` pieces are repeated by all the others, if they are.
fn period(pieces: &[Piece], together: usize) -> Option<u64> {
    let first = pieces.get(..together.min(pieces.len()))?;
    let extent = match pieces.get(together) {
        Some(next) => next.offset.checked_sub(first.first()?.offset)?,
        None => {
            let end = first.iter().map(|piece| piece.offset + piece.length).max()?;
            end.checked_sub(first.first()?.offset)?
        }
    };
    let is_same = |(nth, call): (usize, &[Piece])| {
        let moved = |one: &Piece| one.offset.checked_add(extent.checked_mul(nth as u64)?);
        call.len() == first.len()
            && call
                .iter()
                .zip(first)
                .all(|(piece, one)| piece.length == one.length && Some(piece.offset) == moved(one))
    };
    pieces.chunks(together).enumerate().all(is_same).then_some(extent)
}

#[cfg(test)]
mod tests {
    use super::period;
    use crate::Pattern;
    use crate::pattern::Piece;

    #[test]
    fn what_repeats_is_a_small_type() {
        let pieces = |pattern: Pattern| -> Vec<Piece> { pattern.pieces(1, 3).unwrap().collect() };
        let strided = pieces(Pattern::Strided { block: 10, count: 6, stride: None });
        assert_eq!((period(&strided, 2), period(&strided, 3)), (Some(60), Some(90)));
        assert_eq!(period(&strided, 6), Some(160), "all in one call");
        assert_eq!(period(&strided, 4), None, "the last call is shorter");
        let random = pieces(Pattern::RandomStrided { least: 1, most: 100, count: 6, seed: 1 });
        assert_eq!(period(&random, 2), None);
    }
}

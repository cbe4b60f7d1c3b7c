//! Files through MPI-IO.

use super::{Handle, Mpi, MpiError, Status, count};
use crate::pattern::Extent;
use std::ffi::{CString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

/// `MPI_MODE_RDWR` of both MPIs.
const READ_AND_WRITE: c_int = 8;

/// A function that moves bytes between an open file, from an offset on, and memory.
type Transfer<Memory> = unsafe extern "C" fn(Handle, i64, Memory, c_int, Handle, *mut Status) -> c_int;

/// An open file. Only [`close`](SharedFile::close) closes it, not a drop, because closing is
/// collective.
pub(crate) struct SharedFile {
    mpi: Arc<Mpi>,
    handle: Handle,
    is_collective: bool,
}

impl SharedFile {
    /// Opens an existing file: with all ranks for collective calls, else by this rank alone, so
    /// that its calls do not wait for others.
    pub(crate) fn open(mpi: &Arc<Mpi>, path: &Path, is_collective: bool) -> io::Result<SharedFile> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let comm = if is_collective { mpi.constants.world } else { mpi.constants.own };
        let mut handle = 0;
        // SAFETY:
        // - the communicator is one of this MPI, and there are no hints;
        // - `name` is a C string that outlives the call;
        // - `handle` is valid for writes.
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

    /// Sets a view that shows only these extents, of which one call accesses `per_call`.
    pub(crate) fn set_view(&self, extents: &[Extent], per_call: usize) -> io::Result<()> {
        self.try_set_view(extents, per_call).map_err(io::Error::other)
    }

    fn try_set_view(&self, extents: &[Extent], per_call: usize) -> Result<(), MpiError> {
        let (mpi, functions) = (&self.mpi, &self.mpi.functions);
        // As applications do, a small type is repeated if possible: a long one would be slower.
        let (shown, type_extent) = match period(extents, per_call) {
            Some(period) => (&extents[..per_call.min(extents.len())], period),
            None => (extents, extents.iter().map(|extent| extent.offset + extent.length).max().unwrap_or(1)),
        };
        let first = shown.first().map_or(0, |extent| extent.offset);
        let lengths: Vec<c_int> =
            shown.iter().map(|extent| count(extent.length as usize)).collect::<Result<_, _>>()?;
        let begins: Vec<i64> = shown.iter().map(|extent| extent.offset as i64 - first as i64).collect();
        let (byte, blocks) = (mpi.constants.byte, count(shown.len())?);
        let (mut blocks_type, mut view) = (0, 0);
        // SAFETY:
        // - `lengths` and `begins` have `blocks` elements and outlive the calls;
        // - each handle was created by a call before.
        unsafe {
            let code = (functions.type_create_hindexed)(
                blocks,
                lengths.as_ptr(),
                begins.as_ptr(),
                byte,
                &raw mut blocks_type,
            );
            mpi.check("MPI_Type_create_hindexed", code)?;
            let code =
                (functions.type_create_resized)(blocks_type, 0, type_extent.max(1) as i64, &raw mut view);
            mpi.check("MPI_Type_create_resized", code)?;
            mpi.check("MPI_Type_commit", (functions.type_commit)(&raw mut view))?;
        }
        // SAFETY:
        // - the file and both types are valid handles, and each type is freed once;
        // - the name of the data representation is a C string.
        unsafe {
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

    /// Fills `bytes` from an offset in the view.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let functions = &self.mpi.functions;
        let call = if self.is_collective {
            ("MPI_File_read_at_all", functions.read_at_all)
        } else {
            ("MPI_File_read_at", functions.read_at)
        };
        // SAFETY: `bytes` is valid for writes of its length.
        unsafe { self.transfer(call, bytes.as_mut_ptr().cast(), bytes.len(), offset) }
    }

    /// Writes all of `bytes` at an offset in the view.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let functions = &self.mpi.functions;
        let call = if self.is_collective {
            ("MPI_File_write_at_all", functions.write_at_all)
        } else {
            ("MPI_File_write_at", functions.write_at)
        };
        // SAFETY: `bytes` is valid for reads of its length, and a write only reads it.
        unsafe { self.transfer(call, bytes.as_ptr().cast(), bytes.len(), offset) }
    }

    /// Moves `length` bytes with a function, whose name is for errors.
    ///
    /// # Safety
    /// - `memory` points to `length` bytes;
    /// - they are valid for reads, or for writes if the function reads from the file.
    unsafe fn transfer<Memory>(
        &self,
        (name, call): (&'static str, Transfer<Memory>),
        memory: Memory,
        length: usize,
        offset: u64,
    ) -> io::Result<()> {
        let (mpi, byte) = (&self.mpi, self.mpi.constants.byte);
        let (length, mut status) = (count(length).map_err(io::Error::other)?, Status([0; 24]));
        // SAFETY:
        // - the file is open, and `status` is valid for writes of a status of either MPI;
        // - the caller guarantees the memory.
        let code = unsafe { call(self.handle, offset as i64, memory, length, byte, &raw mut status) };
        mpi.check(name, code).map_err(io::Error::other)?;
        let mut moved = 0;
        // SAFETY: a call that succeeded has filled the status.
        let code = unsafe { (mpi.functions.get_count)(&raw const status, byte, &raw mut moved) };
        mpi.check("MPI_Get_count", code).map_err(io::Error::other)?;
        if moved == length {
            Ok(())
        } else {
            Err(io::Error::other(format!("{name} moved {moved} of {length} bytes")))
        }
    }

    /// Makes the written data durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the file is open.
        let code = unsafe { (self.mpi.functions.file_sync)(self.handle) };
        self.mpi.check("MPI_File_sync", code).map_err(io::Error::other)
    }

    /// Closes the file, together with the ranks that have opened it.
    pub(crate) fn close(mut self) -> io::Result<()> {
        // SAFETY: the file is open, and nothing uses the handle after this.
        let code = unsafe { (self.mpi.functions.file_close)(&raw mut self.handle) };
        self.mpi.check("MPI_File_close", code).map_err(io::Error::other)
    }
}

/// Returns the distance at which the other extents repeat the first `per_call` ones, if they do.
fn period(extents: &[Extent], per_call: usize) -> Option<u64> {
    let first = extents.get(..per_call.min(extents.len()))?;
    let period = match extents.get(per_call) {
        Some(next) => next.offset.checked_sub(first.first()?.offset)?,
        None => {
            let end = first.iter().map(|extent| extent.offset + extent.length).max()?;
            end.checked_sub(first.first()?.offset)?
        }
    };
    let is_same = |(nth, call): (usize, &[Extent])| {
        let moved = |one: &Extent| one.offset.checked_add(period.checked_mul(nth as u64)?);
        call.len() == first.len()
            && call
                .iter()
                .zip(first)
                .all(|(extent, one)| extent.length == one.length && Some(extent.offset) == moved(one))
    };
    extents.chunks(per_call).enumerate().all(is_same).then_some(period)
}

#[cfg(test)]
mod tests {
    use super::period;
    use crate::Pattern;
    use crate::pattern::Extent;

    #[test]
    fn period_is_found_only_if_all_calls_repeat() {
        let extents = |pattern: Pattern| -> Vec<Extent> { pattern.extents(1, 3).unwrap().collect() };
        let strided = extents(Pattern::Strided { block: 10, count: 6, stride: None });
        assert_eq!((period(&strided, 2), period(&strided, 3)), (Some(60), Some(90)));
        assert_eq!(period(&strided, 6), Some(160), "all in one call");
        assert_eq!(period(&strided, 4), None, "the last call is shorter");
        let random = extents(Pattern::RandomStrided { least: 1, most: 100, count: 6, seed: 1 });
        assert_eq!(period(&random, 2), None);
    }
}

//! The measured file, through POSIX or through MPI-IO.

use crate::mpi::SharedFile;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// An open file.
pub(crate) enum BenchFile {
    Posix(File),
    MpiIo(SharedFile),
}

impl BenchFile {
    /// Fills `bytes` from this offset.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            BenchFile::Posix(file) => file.read_exact_at(bytes, offset),
            BenchFile::MpiIo(file) => file.read(bytes, offset),
        }
    }

    /// Writes all of `bytes` at this offset.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            BenchFile::Posix(file) => file.write_all_at(bytes, offset),
            BenchFile::MpiIo(file) => file.write(bytes, offset),
        }
    }

    /// Makes the written data durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self {
            BenchFile::Posix(file) => file.sync_data(),
            BenchFile::MpiIo(file) => file.sync(),
        }
    }

    /// Closes the file.
    pub(crate) fn close(self) -> io::Result<()> {
        match self {
            BenchFile::Posix(_) => Ok(()),
            BenchFile::MpiIo(file) => file.close(),
        }
    }
}

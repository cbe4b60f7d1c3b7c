//! The file of a measurement while the clock runs: through POSIX, or through MPI-IO.

use crate::mpi::SharedFile;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// An open file.
pub(crate) enum Opened {
    Posix(File),
    MpiIo(SharedFile),
}

impl Opened {
    /// Reads all of these bytes.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Opened::Posix(file) => file.read_exact_at(bytes, offset),
            Opened::MpiIo(file) => file.read(bytes, offset),
        }
    }

    /// Writes all of these bytes.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Opened::Posix(file) => file.write_all_at(bytes, offset),
            Opened::MpiIo(file) => file.write(bytes, offset),
        }
    }

    /// Makes durable what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self {
            Opened::Posix(file) => file.sync_data(),
            Opened::MpiIo(file) => file.sync(),
        }
    }

    /// Closes it.
    pub(crate) fn close(self) -> io::Result<()> {
        match self {
            Opened::Posix(_) => Ok(()),
            Opened::MpiIo(file) => file.close(),
        }
    }
}

//! Target of an export: a file or directory that appears when it is complete, or standard output.

use crate::output::Out;
use anyhow::Context as _;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Size of a write, bytes.
const BUFFER: usize = 256 << 10;

/// Output that did not exist before. It is removed unless [`Target::finish`] is called.
pub(crate) struct Target {
    /// `None`: standard output.
    place: Option<OutputPath>,
}

struct OutputPath {
    path: PathBuf,
    partial: PathBuf,
    is_directory: bool,
    made: bool,
}

impl Target {
    /// Prepares the output; `-` is standard output.
    ///
    /// # Errors
    /// If the path already exists.
    pub(crate) fn new(path: &Path, is_directory: bool) -> anyhow::Result<Target> {
        if path == Path::new("-") {
            anyhow::ensure!(!is_directory, "-o -: this format writes a directory; name a new one");
            return Ok(Target { place: None });
        }
        anyhow::ensure!(
            path.symlink_metadata().is_err(),
            "{} exists; remove it, or choose another name",
            path.display()
        );
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let place = OutputPath { path: path.to_owned(), partial: partial.into(), is_directory, made: false };
        Ok(Target { place: Some(place) })
    }

    /// Opens the file, or standard output, to be written once.
    pub(crate) fn file(&mut self) -> anyhow::Result<Box<dyn Write>> {
        let Some(place) = &mut self.place else {
            return Ok(Box::new(BufWriter::with_capacity(BUFFER, Out::new(true))));
        };
        let file = File::create_new(&place.partial).map_err(|error| place.not_made(error))?;
        place.made = true;
        let to = NamedFile { to: file, path: place.partial.clone() };
        Ok(Box::new(BufWriter::with_capacity(BUFFER, to)))
    }

    /// Creates the empty directory.
    pub(crate) fn directory(&mut self) -> anyhow::Result<PathBuf> {
        let place = self.place.as_mut().context("standard output cannot be a directory")?;
        fs::create_dir(&place.partial).map_err(|error| place.not_made(error))?;
        place.made = true;
        Ok(place.partial.clone())
    }

    /// Renames the complete output to its final name.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let Some(place) = &mut self.place else { return Ok(()) };
        // A full disk may be reported only here.
        let synced = File::open(&place.partial).and_then(|file| file.sync_all());
        synced.with_context(|| format!("cannot write {}", place.partial.display()))?;
        let renamed = renameat_with(CWD, &place.partial, CWD, &place.path, RenameFlags::NOREPLACE);
        let renamed = match renamed {
            // The file system does not support an atomic rename without replacement.
            Err(rustix::io::Errno::INVAL) if place.path.symlink_metadata().is_err() => {
                fs::rename(&place.partial, &place.path)
            }
            renamed => renamed.map_err(io::Error::from),
        };
        renamed.with_context(|| format!("cannot rename the export to {}", place.path.display()))?;
        place.made = false;
        Ok(())
    }
}

impl OutputPath {
    fn not_made(&self, error: io::Error) -> anyhow::Error {
        let partial = self.partial.display();
        if error.kind() == io::ErrorKind::AlreadyExists {
            return anyhow::anyhow!(
                "{partial} exists: an export to {} is running or was killed; remove it if none is running",
                self.path.display()
            );
        }
        anyhow::Error::new(error).context(format!("cannot create {partial}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(place) = self.place.as_ref().filter(|place| place.made) {
            // The failure that caused the removal is reported already.
            let _ = match place.is_directory {
                true => fs::remove_dir_all(&place.partial),
                false => fs::remove_file(&place.partial),
            };
        }
    }
}

/// File whose errors contain its path.
struct NamedFile {
    to: File,
    path: PathBuf,
}

impl Write for NamedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "; free space there, or choose another directory"
                }
                _ => "",
            };
            io::Error::new(error.kind(), format!("cannot write {}: {error}{hint}", self.path.display()))
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

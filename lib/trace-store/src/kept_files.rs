//! Sealed files that stay open, so that they can be read after retention has removed them. The
//! content of a sealed file never changes, so all readers of a process share an open file.

use crate::error::Error;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static OPEN: Mutex<BTreeMap<PathBuf, Weak<File>>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<PathBuf, Weak<File>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that stay open until this value is dropped.
#[derive(Debug, Default)]
pub(crate) struct KeptFiles(BTreeMap<PathBuf, Arc<File>>);

impl KeptFiles {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps a file open, if it exists.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn keep(&mut self, path: PathBuf) -> Result<(), Error> {
        let mut all = all();
        let file = match all.get(&path).and_then(Weak::upgrade) {
            Some(file) => file,
            None => match File::open(&path) {
                Ok(file) => Arc::new(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(Error::io("open", &path)(error)),
            },
        };
        all.insert(path.clone(), Arc::downgrade(&file));
        self.0.insert(path, file);
        Ok(())
    }

    /// Returns a path under which this process can read a kept file, whether it was removed or not.
    pub(crate) fn readable_path(&self, path: &Path) -> Option<PathBuf> {
        self.0.get(path).map(descriptor_path)
    }
}

impl Drop for KeptFiles {
    fn drop(&mut self) {
        self.0.clear();
        all().retain(|_, file| file.strong_count() > 0);
    }
}

fn kept(path: &Path) -> Option<Arc<File>> {
    all().get(path)?.upgrade()
}

fn descriptor_path(file: &Arc<File>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Opens a file of a trace for reading, also if it was removed and is kept open.
///
/// # Errors
/// Those of [`File::open`].
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match kept(path) {
        // Not a duplicate of the descriptor: threads that read concurrently have positions of
        // their own.
        Some(file) => File::open(descriptor_path(&file)),
        None => File::open(path),
    }
}

/// Returns whether [`open`] can find a file.
pub(crate) fn exists(path: &Path) -> bool {
    kept(path).is_some() || path.exists()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{KeptFiles, exists, open};
    use std::io::Read as _;

    #[test]
    fn removed_file_is_readable_while_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        std::fs::write(&path, "rows").unwrap();
        let [mut first, mut second, mut third] = [(); 3].map(|()| KeptFiles::default());
        first.keep(path.clone()).unwrap();
        std::fs::remove_file(&path).unwrap();
        second.keep(path.clone()).unwrap();
        third.keep(path.clone()).unwrap();
        drop(first);
        drop(third);
        for _ in 0..2 {
            let mut text = String::new();
            open(&path).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "rows");
        }
        assert_eq!(std::fs::read_to_string(second.readable_path(&path).unwrap()).unwrap(), "rows");
        drop(second);
        assert!(!exists(&path));
        open(&path).unwrap_err();
    }
}

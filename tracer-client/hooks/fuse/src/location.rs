//! Last known location of a file: its name and the location of its directory.
//!
//! A rename of a directory changes one location, and with it the paths of all files below. A file
//! with several names has the one that was looked up last; a file without a name keeps its last
//! one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of components in a recorded path: those of the longest path with one-byte names.
const MAX_COMPONENTS: usize = miot_proto::event::MAX_PATH / 2;

/// Directory and name of a file; `None` for the root of the mount.
#[derive(Debug, Default)]
pub(crate) struct Location(Mutex<Option<NameInDirectory>>);

type NameInDirectory = (Arc<Location>, Box<[u8]>);

impl Location {
    pub(crate) fn new(directory: &Arc<Location>, name: &OsStr) -> Location {
        Location(Mutex::new(Some((directory.clone(), name.as_bytes().into()))))
    }

    /// Sets the location of a file that is not the root.
    pub(crate) fn set(self: &Arc<Location>, directory: &Arc<Location>, name: &OsStr) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *current {
            Some((parent, last)) if Arc::ptr_eq(parent, directory) && **last == *name.as_bytes() => {}
            // A directory within itself, in a source tree that another process changes.
            _ if Arc::ptr_eq(self, directory) => {}
            Some(current) => *current = (directory.clone(), name.as_bytes().into()),
            None => {}
        }
    }

    /// Returns the location of the directory; `None` for the root.
    pub(crate) fn directory(&self) -> Option<Arc<Location>> {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(directory, _)| directory.clone())
    }

    /// Returns whether this is the location of a name in a directory.
    pub(crate) fn is_at(&self, directory: &Arc<Location>, name: &OsStr) -> bool {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        current
            .as_ref()
            .is_some_and(|(parent, last)| Arc::ptr_eq(parent, directory) && **last == *name.as_bytes())
    }

    /// Appends the path below `mount` to an empty buffer. The path does not end in a slash unless
    /// it is the root directory.
    pub(crate) fn write_path(self: &Arc<Location>, mount: &[u8], path: &mut Vec<u8>) {
        // Backwards, from the last name to the mount point: nothing is copied but the names.
        let mut next = Some(self.clone());
        for _ in 0..MAX_COMPONENTS {
            let Some(at) = next.take() else { break };
            let current = at.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((directory, name)) = &*current else { break };
            path.extend(name.iter().rev());
            path.push(b'/');
            next = Some(directory.clone());
        }
        path.extend(mount.strip_suffix(b"/").unwrap_or(mount).iter().rev());
        path.reverse();
        if path.is_empty() {
            path.push(b'/');
        }
    }

    /// Returns the path below `mount`, see [`Location::write_path`].
    pub(crate) fn path(self: &Arc<Location>, mount: &[u8]) -> Vec<u8> {
        let mut path = Vec::new();
        self.write_path(mount, &mut path);
        path
    }

    /// Appends the path of a name in this directory to an empty buffer.
    pub(crate) fn write_path_of(self: &Arc<Location>, mount: &[u8], name: &OsStr, path: &mut Vec<u8>) {
        self.write_path(mount, path);
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
    }
}

/// Drops the parents in a loop: recursion over a deep tree would overflow the stack.
impl Drop for Location {
    fn drop(&mut self) {
        let mut next = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        while let Some((directory, _)) = next {
            next = Arc::into_inner(directory)
                .and_then(|mut parent| parent.0.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_a_renamed_directory() {
        let root = Arc::new(Location::default());
        let a = Arc::new(Location::new(&root, "a".as_ref()));
        let file = Arc::new(Location::new(&a, "file".as_ref()));
        assert_eq!(root.path(b"/mnt"), b"/mnt");
        assert_eq!(file.path(b"/mnt"), b"/mnt/a/file");
        assert_eq!(file.path(b"/"), b"/a/file");
        let mut named = Vec::new();
        root.write_path_of(b"/", "x".as_ref(), &mut named);
        assert_eq!((root.path(b"/"), named), (b"/".to_vec(), b"/x".to_vec()));
        let b = Arc::new(Location::new(&root, "b".as_ref()));
        a.set(&b, "c".as_ref());
        assert_eq!(file.path(b"/mnt"), b"/mnt/b/c/file");
    }

    #[test]
    fn cycles_and_deep_trees_are_handled() {
        let root = Arc::new(Location::default());
        let a = Arc::new(Location::new(&root, "a".as_ref()));
        let b = Arc::new(Location::new(&a, "b".as_ref()));
        a.set(&b, "a".as_ref());
        assert!(a.path(b"/mnt").len() < 3 * miot_proto::event::MAX_PATH);
        // Breaks the cycle, so that its memory is freed.
        a.set(&root, "a".as_ref());
        let mut deep = root.clone();
        for _ in 0..1_000_000 {
            deep = Arc::new(Location::new(&deep, "d".as_ref()));
        }
        drop(deep);
    }
}

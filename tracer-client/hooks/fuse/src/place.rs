//! Where a file was last seen: its name and the place of its directory.
//!
//! A rename of a directory changes one place, and with it the paths of everything below. A file with several names has
//! the one that was asked for last; a file without any keeps its last.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Most components of a path that is recorded: those of the longest, one letter each.
const MOST_COMPONENTS: usize = miot_proto::event::MAX_PATH / 2;

/// `None`: the root of the mount.
#[derive(Debug, Default)]
pub(crate) struct Place(Mutex<Option<Named>>);

type Named = (Arc<Place>, Box<[u8]>);

impl Place {
    pub(crate) fn of(directory: &Arc<Place>, name: &OsStr) -> Place {
        Place(Mutex::new(Some((directory.clone(), name.as_bytes().into()))))
    }

    /// From now on the file is here.
    pub(crate) fn set(self: &Arc<Place>, directory: &Arc<Place>, name: &OsStr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *known {
            Some((at, is)) if Arc::ptr_eq(at, directory) && **is == *name.as_bytes() => {}
            // A directory that is said to be in itself, by a tree that changes behind our back.
            _ if Arc::ptr_eq(self, directory) => {}
            Some(known) => *known = (directory.clone(), name.as_bytes().into()),
            None => {}
        }
    }

    /// The directory; `None` for the root.
    pub(crate) fn directory(&self) -> Option<Arc<Place>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map(|(directory, _)| directory.clone())
    }

    /// Whether the file was last seen under this name.
    pub(crate) fn is(&self, directory: &Arc<Place>, name: &OsStr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|(at, is)| Arc::ptr_eq(at, directory) && **is == *name.as_bytes())
    }

    /// The path below `mount`, which does not end in a slash unless it is the root directory.
    pub(crate) fn path(self: &Arc<Place>, mount: &[u8]) -> Vec<u8> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = self.clone();
        while names.len() < MOST_COMPONENTS {
            let known = at.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Some((directory, name)) = known else { break };
            names.push(name);
            at = directory;
        }
        let mut path = mount.strip_suffix(b"/").unwrap_or(mount).to_vec();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// The path of a name in this directory.
    pub(crate) fn path_of(self: &Arc<Place>, mount: &[u8], name: &OsStr) -> Vec<u8> {
        let mut path = self.path(mount);
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        path
    }
}

/// Step by step: a deep tree that goes at once would take a deep stack.
impl Drop for Place {
    fn drop(&mut self) {
        let mut next = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        while let Some((directory, _)) = next {
            next = Arc::into_inner(directory)
                .and_then(|mut place| place.0.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_directory_that_is_renamed() {
        let root = Arc::new(Place::default());
        let a = Arc::new(Place::of(&root, "a".as_ref()));
        let file = Arc::new(Place::of(&a, "file".as_ref()));
        assert_eq!(root.path(b"/mnt"), b"/mnt");
        assert_eq!(file.path(b"/mnt"), b"/mnt/a/file");
        assert_eq!(file.path(b"/"), b"/a/file");
        assert_eq!((root.path(b"/"), root.path_of(b"/", "x".as_ref())), (b"/".to_vec(), b"/x".to_vec()));
        let b = Arc::new(Place::of(&root, "b".as_ref()));
        a.set(&b, "c".as_ref());
        assert_eq!(file.path(b"/mnt"), b"/mnt/b/c/file");
    }

    #[test]
    fn a_circle_and_a_deep_tree_end() {
        let root = Arc::new(Place::default());
        let a = Arc::new(Place::of(&root, "a".as_ref()));
        let b = Arc::new(Place::of(&a, "b".as_ref()));
        a.set(&b, "a".as_ref());
        assert!(a.path(b"/mnt").len() < 3 * miot_proto::event::MAX_PATH);
        // Out of the circle, so that it can go.
        a.set(&root, "a".as_ref());
        let mut deep = root.clone();
        for _ in 0..1_000_000 {
            deep = Arc::new(Place::of(&deep, "d".as_ref()));
        }
        drop(deep);
    }
}

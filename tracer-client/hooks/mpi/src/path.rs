//! File names as in the other layers: absolute, without ROMIO's file-system prefix.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStringExt as _;

/// Prefixes before a colon that select ROMIO's file-system driver.
const PREFIXES: [&[u8]; 14] = [
    b"ufs",
    b"nfs",
    b"xfs",
    b"panfs",
    b"pfs",
    b"pvfs",
    b"pvfs2",
    b"orangefs",
    b"gpfs",
    b"lustre",
    b"testfs",
    b"daos",
    b"quobytefs",
    b"ad_ufs",
];

/// Returns the absolute path of a file name of MPI; empty for a null pointer.
///
/// # Safety
/// - `name` is null or a C string.
pub(crate) unsafe fn absolute(name: *const c_char) -> CString {
    if name.is_null() {
        return CString::default();
    }
    // SAFETY:
    // - `name` is not null, so it is a C string by the contract of this function.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    CString::new(make_absolute(without_prefix(name))).unwrap_or_default()
}

fn without_prefix(name: &[u8]) -> &[u8] {
    let colon = name.iter().position(|byte| *byte == b':');
    match colon.map(|at| name.split_at(at)) {
        Some((prefix, rest)) if PREFIXES.contains(&prefix) => &rest[1..],
        _ => name,
    }
}

/// Makes a path absolute as the posix hook does: removes `//`, `/./` and a final slash, and keeps
/// `..`.
fn make_absolute(name: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    if !name.starts_with(b"/") {
        path = std::env::current_dir().map(|dir| dir.into_os_string().into_vec()).unwrap_or_default();
    }
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::{make_absolute, without_prefix};

    #[test]
    fn paths_equal_those_of_the_posix_layer() {
        assert_eq!(make_absolute(b"/a//b/./c/../d/"), b"/a/b/c/../d");
        assert!(make_absolute(b"x").starts_with(b"/") && make_absolute(b"x").ends_with(b"/x"));
        assert_eq!(without_prefix(b"ufs:/a:b"), b"/a:b");
        assert_eq!(without_prefix(b"a:b"), b"a:b");
    }
}

//! The name of a file as the other layers have it: absolute, without the file-system prefix of ROMIO.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStringExt as _;

/// Names before a colon by which ROMIO is told what kind of file system it is.
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

/// # Safety
/// `name` is null or a C string.
pub(crate) unsafe fn absolute(name: *const c_char) -> CString {
    if name.is_null() {
        return CString::default();
    }
    // SAFETY: by the contract of this function.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    CString::new(joined(without_prefix(name))).unwrap_or_default()
}

fn without_prefix(name: &[u8]) -> &[u8] {
    let colon = name.iter().position(|byte| *byte == b':');
    match colon.map(|at| name.split_at(at)) {
        Some((prefix, rest)) if PREFIXES.contains(&prefix) => &rest[1..],
        _ => name,
    }
}

/// As the posix hook makes them: `//`, `/./` and a slash at the end fall away, `..` stays.
fn joined(name: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    if !name.starts_with(b"/") {
        whole = std::env::current_dir().map(|dir| dir.into_os_string().into_vec()).unwrap_or_default();
    }
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if whole.last() != Some(&b'/') {
            whole.push(b'/');
        }
        whole.extend_from_slice(part);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::{joined, without_prefix};

    #[test]
    fn names_are_those_of_the_posix_layer() {
        assert_eq!(joined(b"/a//b/./c/../d/"), b"/a/b/c/../d");
        assert!(joined(b"x").starts_with(b"/") && joined(b"x").ends_with(b"/x"));
        assert_eq!(without_prefix(b"ufs:/a:b"), b"/a:b");
        assert_eq!(without_prefix(b"a:b"), b"a:b");
    }
}

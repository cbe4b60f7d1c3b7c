//! One observed I/O request, in a form that is comparable between trace and strace.

use std::borrow::Cow;

/// One request. The operation has the name of the kernel's operation: `open` and `creat` are
/// `openat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fact {
    /// Canonical operation.
    pub op: Cow<'static, str>,
    /// File, normalized by [`normal_path`].
    pub path: Option<Vec<u8>>,
    /// Second file, or name of an attribute.
    pub path2: Option<Vec<u8>>,
    /// Offset in the file.
    pub offset: Option<i64>,
    /// Bytes requested.
    pub length: Option<i64>,
    /// Flags, mode, command or `whence`. Compared where both sides have it.
    pub arg: Option<i64>,
    /// Result of the kernel. Addresses are replaced by 0.
    pub result: i64,
}

impl Fact {
    /// File of the request. For a symbolic link it is the new name, because the first path is
    /// arbitrary text.
    #[must_use]
    pub fn file(&self) -> Option<&[u8]> {
        if self.op == "symlink" { self.path2.as_deref() } else { self.path.as_deref() }
    }
}

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.op)?;
        for path in [&self.path, &self.path2].into_iter().flatten() {
            write!(f, " {}", path.escape_ascii())?;
        }
        for (name, value) in [("offset", self.offset), ("length", self.length), ("arg", self.arg)] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        write!(f, " = {}", self.result)
    }
}

/// Joins a relative path to a directory and removes empty parts: `//`, `/./` and a slash at the
/// end.
#[must_use]
pub fn normal_path(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let joined = if path.starts_with(b"/") { path.to_vec() } else { [directory, b"/", path].concat() };
    let mut out = Vec::with_capacity(joined.len());
    for part in joined.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".") {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// True for files that MIOT excludes by default: pseudo files, shared libraries and files that the
/// dynamic loader reads.
#[must_use]
pub fn is_excluded(path: &[u8]) -> bool {
    let inside =
        |dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    inside(b"/proc")
        || inside(b"/sys")
        || (inside(b"/dev") && !inside(b"/dev/shm"))
        || !path.starts_with(b"/")
        || name.ends_with(b".so")
        || name.windows(4).any(|w| w == b".so.")
        || path.starts_with(b"/etc/ld.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_and_normal() {
        assert_eq!(normal_path(b"/a", b"b//c/./d/"), b"/a/b/c/d");
        assert_eq!(normal_path(b"/a", b"."), b"/a");
        assert_eq!(normal_path(b"/a", b"/x/../y"), b"/x/../y");
        assert_eq!(normal_path(b"/", b"/"), b"/");
    }

    #[test]
    fn pseudo_files_and_libraries_are_excluded() {
        for path in [
            "/proc/self/fd",
            "/dev/null",
            "/lib/x/libc.so.6",
            "/a/_m.cpython-311.so",
            "pipe:[7]",
            "/etc/ld.so.cache",
        ] {
            assert!(is_excluded(path.as_bytes()), "{path}");
        }
        for path in ["/dev/shm/x", "/process", "/etc/ldap", "/a/b.sol", "/home/x.so/y"] {
            assert!(!is_excluded(path.as_bytes()), "{path}");
        }
    }
}

//! Rows of a trace as printed by `miot cat --format json`.

use crate::fact::{Fact, normal_path};
use serde_json::Value;
use std::borrow::Cow;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintedEvent {
    /// Completion time, nanoseconds since 1970.
    pub time: i64,
    /// Duration, nanoseconds.
    pub duration: i64,
    /// Name of the node.
    pub node: String,
    /// Number of the process in the trace.
    pub process: u64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Layer.
    pub layer: String,
    /// Operation.
    pub op: String,
    /// File.
    pub path: Option<String>,
    /// Second file, or name of an attribute.
    pub path2: Option<String>,
    /// Offset.
    pub offset: Option<i64>,
    /// Offset in the other file.
    pub offset2: Option<i64>,
    /// Length.
    pub length: Option<i64>,
    /// Argument.
    pub arg: Option<i64>,
    /// Result.
    pub result: i64,
    /// Flags.
    pub flags: u64,
    /// Handle.
    pub handle: Option<u64>,
    /// Stream.
    pub stream: u64,
    /// Attempt number.
    pub seq: u64,
    /// Request number.
    pub request: u64,
    /// Request number of the parent request.
    pub enclosing: Option<u64>,
    /// Rank in the file's communicator, and its size.
    pub mpi: Option<(u64, u64)>,
    /// Offset in elementary types.
    pub etypes: Option<i64>,
    /// Bytes of the datatype.
    pub type_size: Option<u64>,
    /// Extent of the datatype.
    pub type_extent: Option<i64>,
    /// Text of a debug message.
    pub message: Option<String>,
    /// Thread that made the request to a file system.
    pub caller_tid: Option<u32>,
    /// User id of that thread.
    pub caller_uid: Option<u32>,
}

/// Parses all rows of `miot cat --format json`.
///
/// # Errors
/// The first line that is not an event.
pub fn rows(text: &str) -> Result<Vec<PrintedEvent>, String> {
    text.lines().map(|line| row(line).ok_or_else(|| format!("not an event: {line}"))).collect()
}

fn row(line: &str) -> Option<PrintedEvent> {
    let value: Value = serde_json::from_str(line).ok()?;
    let int = |name: &str| value.get(name).and_then(Value::as_i64);
    let unsigned = |name: &str| value.get(name).and_then(Value::as_u64);
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(PrintedEvent {
        time: nanoseconds(&text("time")?)?,
        duration: int("duration")?,
        node: text("node")?,
        process: unsigned("process")?,
        pid: unsigned("pid")? as u32,
        tid: unsigned("tid")? as u32,
        layer: text("layer")?,
        op: text("op")?,
        path: text("path"),
        path2: text("path2"),
        offset: int("offset"),
        offset2: int("offset2"),
        length: int("length"),
        arg: int("arg"),
        result: int("result")?,
        flags: unsigned("flags")?,
        handle: unsigned("handle"),
        stream: unsigned("stream")?,
        seq: unsigned("seq")?,
        request: unsigned("request")?,
        enclosing: unsigned("enclosing"),
        mpi: unsigned("mpi_rank").zip(unsigned("mpi_size")),
        etypes: int("etypes"),
        type_size: unsigned("type_size"),
        type_extent: int("type_extent"),
        message: text("message"),
        caller_tid: unsigned("caller_tid").map(|tid| tid as u32),
        caller_uid: unsigned("caller_uid").map(|uid| uid as u32),
    })
}

/// Converts `2026-11-21T04:12:33.123456789Z` to nanoseconds since 1970. Only the form with nine
/// digits and `Z` is accepted.
#[must_use]
pub fn nanoseconds(text: &str) -> Option<i64> {
    let part = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let separators: String = [4, 7, 10, 13, 16, 19, 29].iter().filter_map(|i| text.chars().nth(*i)).collect();
    if text.len() != 30 || separators != "--T::.Z" {
        return None;
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    // Days since 1970 of the proleptic Gregorian calendar, years starting in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 719_469;
    let seconds = days * 86_400 + part(11, 13)? * 3600 + part(14, 16)? * 60 + part(17, 19)?;
    Some(seconds * 1_000_000_000 + part(20, 29)?)
}

impl PrintedEvent {
    /// Returns the request in the form of strace's. `None` for an event that is not a system call
    /// of its own.
    #[must_use]
    pub fn fact(&self) -> Option<Fact> {
        let op: Cow<'static, str> = match (self.layer.as_str(), self.op.as_str()) {
            ("stdio", "fopen" | "tmpfile") => "openat".into(),
            ("stdio", "fclose") => "close".into(),
            ("stdio", _) => return None,
            ("posix", "open" | "openat" | "creat" | "mkstemp" | "opendir") => "openat".into(),
            ("posix", "closedir") => "close".into(),
            ("posix", "readdir" | "rewinddir" | "seekdir" | "scandir" | "fdopendir") => return None,
            ("posix", "dup3") => "dup2".into(),
            ("posix", "preadv2") => "preadv".into(),
            ("posix", "pwritev2") => "pwritev".into(),
            ("posix", "posix_fallocate") => "fallocate".into(),
            ("posix", "statvfs") => "statfs".into(),
            ("posix", "fstatvfs") => "fstatfs".into(),
            ("posix", "fstatat") if self.arg.is_some_and(|flags| flags & 0x1000 != 0) => "fstat".into(),
            ("posix", "fstatat") if self.arg.is_some_and(|flags| flags & 0x100 != 0) => "lstat".into(),
            ("posix", "fstatat") => "stat".into(),
            ("posix", "faccessat" | "euidaccess") => "access".into(),
            ("posix", "mkdirat" | "mkdtemp") => "mkdir".into(),
            ("posix", "unlinkat") if self.arg.is_some_and(|flags| flags & 0x200 != 0) => "rmdir".into(),
            ("posix", "unlinkat") => "unlink".into(),
            ("posix", "remove") => "unlink".into(),
            ("posix", "renameat" | "renameat2") => "rename".into(),
            ("posix", "linkat") => "link".into(),
            ("posix", "symlinkat") => "symlink".into(),
            ("posix", "readlinkat") => "readlink".into(),
            ("posix", "fchmodat") => "chmod".into(),
            ("posix", "fchownat") if self.arg.is_some_and(|flags| flags & 0x100 != 0) => "lchown".into(),
            ("posix", "fchownat") => "chown".into(),
            ("posix", "mknodat" | "mkfifo" | "mkfifoat") => "mknod".into(),
            ("posix", "utime" | "utimes" | "lutimes" | "futimesat" | "utimensat") => "utimens".into(),
            ("posix", "futimes") => "futimens".into(),
            ("posix", "lockf") => "fcntl".into(),
            (_, op) => op.to_owned().into(),
        };
        let path = |path: &Option<String>| path.as_deref().map(unescape);
        let arg = match self.op.as_str() {
            // Low half: flags; high half: mode.
            "open" | "openat" => self.arg.map(|a| a & 0xffff_ffff),
            "dup3" => self.arg.map(|a| a & 0xffff_ffff),
            "lseek" | "fcntl" | "dup2" | "flock" => self.arg,
            "mkdir" | "mkdirat" | "chmod" | "fchmod" => self.arg,
            _ => None,
        };
        let attribute = self.op.contains("xattr");
        Some(Fact {
            // The target of a symbolic link and the name of an attribute are arbitrary text.
            path: path(&self.path).map(|p| if op == "symlink" { p } else { normal_path(b"/", &p) }),
            path2: path(&self.path2).map(|p| if attribute { p } else { normal_path(b"/", &p) }),
            offset: self.offset,
            length: self.length,
            arg,
            result: if op == "mmap" && self.result >= 0 { 0 } else { self.result },
            op,
        })
    }
}

/// Returns the bytes of a path, in which `\xHH` stands for a byte that was not UTF-8.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("\\x") {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        match rest.get(at + 2..at + 4).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[at + 4..];
            }
            None => {
                out.extend_from_slice(b"\\x");
                rest = &rest[at + 2..];
            }
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_nanosecond_precision() {
        assert_eq!(nanoseconds("1970-01-01T00:00:00.000000001Z"), Some(1));
        assert_eq!(nanoseconds("2000-02-29T12:00:00.000000000Z"), Some(951_825_600_000_000_000));
        assert_eq!(nanoseconds("2026-11-21T04:12:33.123456789Z"), Some(1_795_234_353_123_456_789));
        assert_eq!(nanoseconds("2026-11-21T04:12:33Z"), None);
    }

    #[test]
    fn a_line_becomes_a_fact() {
        let line = r#"{"time":"2026-11-21T04:12:33.123456789Z","duration":5,"node":"n","process":1,"pid":2,"tid":3,
            "layer":"posix","op":"openat","path":"/a//b\\xff","arg":1881196199936,"result":3,"flags":0,"stream":1,
            "seq":0,"request":1}"#
            .replace('\n', "");
        let fact = rows(&line).unwrap()[0].fact().unwrap();
        assert_eq!(fact.path.as_deref(), Some(b"/a/b\xff".as_slice()));
        assert_eq!((fact.op.as_ref(), fact.arg, fact.result), ("openat", Some(0x80000), 3));
        assert!(rows("{}").is_err());
    }
}

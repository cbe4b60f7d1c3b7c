//! Comments with data that records cannot hold, as `key=value`.
//!
//! Other programs ignore these comments, and MIOT ignores comments of other programs. In a value,
//! blanks, control characters and bytes that are not UTF-8 are written as `\xHH`, as in the paths
//! of a trace. Ids of files and processes are hexadecimal as in records; all other numbers are
//! decimal.

use std::fmt::Write as _;

/// First word of the first comment of a trace that MIOT wrote.
pub(super) const SIGNATURE: &str = "miller-1990";
/// Nanoseconds since 1970 at tick 0.
pub(super) const EPOCH: &str = "epoch_ns";
/// `recorded` or `absent`: whether the cache flags are valid.
pub(super) const CACHE_FLAGS: &str = "cacheflags";
/// Process, before its first record.
pub(super) const PROCESS: &str = "process";
/// File, before its first record.
pub(super) const FILE: &str = "file";
/// Before a record: number of ticks by which it began earlier, see [`super::export`].
pub(super) const EARLIER: &str = "start_earlier";

/// Appends ` key=value`.
pub(super) fn word(to: &mut String, key: &str, value: &str) {
    if !to.is_empty() {
        to.push(' ');
    }
    // Writing to a String cannot fail.
    let _ = write!(to, "{key}=");
    for c in value.chars() {
        if c.is_control() || c.is_whitespace() {
            let mut utf8 = [0; 4];
            for byte in c.encode_utf8(&mut utf8).bytes() {
                let _ = write!(to, "\\x{byte:02x}");
            }
        } else {
            to.push(c);
        }
    }
}

/// Returns the value of a word in a comment.
pub(super) fn value<'a>(comment: &'a str, key: &str) -> Option<&'a str> {
    comment.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns a value as bytes, with the escapes of [`word`] removed.
pub(super) fn bytes(value: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
        match (digit(2), digit(3)) {
            (Some(high), Some(low)) if rest.starts_with(b"\\x") => {
                out.push((high << 4 | low) as u8);
                rest = &rest[4..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{bytes, value, word};

    #[test]
    fn written_values_are_found() {
        let mut text = String::new();
        word(&mut text, "file", "1F");
        word(&mut text, "path", "/a b\n\u{a0}ä\\x\\xff=c");
        assert_eq!(text, "file=1F path=/a\\x20b\\x0a\\xc2\\xa0ä\\x\\xff=c");
        assert_eq!(value(&text, "file"), Some("1F"));
        assert_eq!(value(&text, "ile"), None);
        assert_eq!(bytes(value(&text, "path").unwrap()), b"/a b\n\xc2\xa0\xc3\xa4\\x\xff=c");
    }
}

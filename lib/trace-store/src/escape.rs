//! Paths as UTF-8. Paths are bytes, and text columns are UTF-8: other bytes are escaped, and the
//! raw path is kept in another column.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns the path as text, and the raw bytes if they are not UTF-8. Each byte that is not part of
/// valid UTF-8 becomes `\xHH`; everything else, also a backslash, is unchanged.
///
/// ```
/// use miot_trace_store::escape;
/// assert_eq!(escape::path(b"/tmp/a"), ("/tmp/a".into(), None));
/// assert_eq!(escape::path(b"/tmp/\xff"), (r"/tmp/\xff".into(), Some(&b"/tmp/\xff"[..])));
/// ```
#[must_use]
pub fn path(bytes: &[u8]) -> (Cow<'_, str>, Option<&[u8]>) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return (Cow::Borrowed(text), None);
    }
    let mut text = String::with_capacity(bytes.len() + 12);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    (Cow::Owned(text), Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn only_invalid_bytes_are_escaped() {
        assert_eq!(path("/ä\\x".as_bytes()), ("/ä\\x".into(), None));
        let bytes = b"a\xc3\xa4\xc3(\xf0\x9f";
        assert_eq!(path(bytes), (r"aä\xc3(\xf0\x9f".into(), Some(&bytes[..])));
        assert_eq!(path(b""), ("".into(), None));
    }
}

//! Terminal-safe output of names that a program chose. Characters that would control the terminal
//! or change the order in which it shows text are escaped.

use std::borrow::Cow;
use std::io::{self, Write};

/// Returns true for characters that a terminal executes instead of showing: control characters (C0,
/// DEL and C1), and those that change the direction of text or start a line, with which one name
/// can look like another.
#[must_use]
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes all control characters of a text, e.g. `\u{1b}`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, &is_terminal_control, EscapeStyle::Braces)
}

/// Like [`printable`], but keeps line feeds.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, &|c| is_terminal_control(c) && c != '\n', EscapeStyle::Braces)
}

/// Notation of an escaped character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapeStyle {
    /// `\u{1b}`, and `\t`, `\r`, `\n`.
    Braces,
    /// `\u001b`: within a JSON string it denotes the same character.
    Json,
}

/// Escapes the characters for which `is_escaped` returns true.
fn escaped<'a>(text: &'a str, is_escaped: &dyn Fn(char) -> bool, escape: EscapeStyle) -> Cow<'a, str> {
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut output = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match escape {
            _ if !is_escaped(c) => output.push(c),
            EscapeStyle::Braces => output.extend(c.escape_default()),
            EscapeStyle::Json => output += &format!("\\u{:04x}", u32::from(c)),
        }
    }
    output.into()
}

/// Writer that escapes control characters except line feeds and tabs, and bytes that are not UTF-8.
#[derive(Debug)]
pub struct EscapingWriter<W: Write> {
    to: W,
    escape: EscapeStyle,
    /// Start of a character whose remaining bytes have not been written yet.
    incomplete: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    /// Returns a writer that writes escaped text to `to`.
    pub fn new(to: W, escape: EscapeStyle) -> EscapingWriter<W> {
        EscapingWriter { to, escape, incomplete: Vec::new() }
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        let is_escaped = |c| is_terminal_control(c) && !matches!(c, '\n' | '\t');
        self.to.write_all(escaped(text, &is_escaped, self.escape).as_bytes())
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.incomplete);
        all.extend_from_slice(bytes);
        let mut rest = &all[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.write_text(text)?;
                    break;
                }
                Err(error) => {
                    let (good, other) = rest.split_at(error.valid_up_to());
                    self.write_text(&String::from_utf8_lossy(good))?;
                    let Some(bad) = error.error_len() else {
                        self.incomplete = other.to_vec();
                        break;
                    };
                    let (bad, after) = other.split_at(bad);
                    bad.iter().try_for_each(|byte| write!(self.to, "\\x{byte:02x}"))?;
                    rest = after;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}31m\r\u{7f}"), "a\\u{1b}[2Jb\\u{9b}31m\\r\\u{7f}");
        // The name of a program that looks like an image: "exe.gpj" backwards.
        assert_eq!(printable("photo\u{202e}gpj.exe"), "photo\\u{202e}gpj.exe");
        for c in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202d}\u{2066}\u{2069}".chars() {
            assert_eq!(printable(&c.to_string()), c.escape_default().to_string());
        }
        assert_eq!(printable("/äö/\u{5e9}\u{200d}/日本"), "/äö/\u{5e9}\u{200d}/日本");
        assert_eq!(printable_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
    }

    #[test]
    fn stream_is_escaped_regardless_of_write_sizes() {
        let text = "time,path\n1,/a\u{1b}]0;x\u{7}\t/ä\u{9b}\u{202e}日\n".as_bytes();
        let bytes = [text, b"\xff\n"].concat();
        let expected = "time,path\n1,/a\\u{1b}]0;x\\u{7}\t/ä\\u{9b}\\u{202e}日\n\\xff\n";
        for cut in 0..bytes.len() {
            let mut out = Vec::new();
            let mut escaping = EscapingWriter::new(&mut out, EscapeStyle::Braces);
            escaping.write_all(&bytes[..cut]).unwrap();
            escaping.write_all(&bytes[cut..]).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "cut at {cut}");
        }
        let mut out = Vec::new();
        EscapingWriter::new(&mut out, EscapeStyle::Json).write_all("\"a\u{9b}\u{202e}\"".as_bytes()).unwrap();
        assert_eq!(out, b"\"a\\u009b\\u202e\"");
    }
}

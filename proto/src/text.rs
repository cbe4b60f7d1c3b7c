//! Names that a program chose, on a terminal: what would steer it, or change the order in which it shows text, is shown escaped.

use std::borrow::Cow;
use std::io::{self, Write};

/// True for what a terminal obeys instead of showing it: control characters (C0, DEL and C1), and those that change the direction of
/// text or begin a line, by which a name can look like another one.
#[must_use]
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with all of that escaped: `\u{1b}`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, &is_terminal_control, EscapeStyle::Braces)
}

/// The same of a text of several lines, which stay lines.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, &|c| is_terminal_control(c) && c != '\n', EscapeStyle::Braces)
}

/// How a character is escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapeStyle {
    /// `\u{1b}`, and `\t`, `\r`, `\n`.
    Braces,
    /// `\u001b`: within strings of JSON the same text.
    Json,
}

fn escaped<'a>(
    text: &'a str,
    is_terminal_control: &dyn Fn(char) -> bool,
    escape: EscapeStyle,
) -> Cow<'a, str> {
    if !text.contains(is_terminal_control) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match escape {
            _ if !is_terminal_control(c) => shown.push(c),
            EscapeStyle::Braces => shown.extend(c.escape_default()),
            EscapeStyle::Json => shown += &format!("\\u{:04x}", u32::from(c)),
        }
    }
    shown.into()
}

/// Passes on text to a terminal, with what it would obey escaped, apart from ends of lines and tabs.
#[derive(Debug)]
pub struct EscapingWriter<W: Write> {
    to: W,
    escape: EscapeStyle,
    /// The beginning of a character whose other bytes are still to come.
    begun: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    /// To a terminal.
    pub fn new(to: W, escape: EscapeStyle) -> EscapingWriter<W> {
        EscapingWriter { to, escape, begun: Vec::new() }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        let is_escaped = |c| is_terminal_control(c) && !matches!(c, '\n' | '\t');
        self.to.write_all(escaped(text, &is_escaped, self.escape).as_bytes())
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut rest = &all[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.put(text)?;
                    break;
                }
                Err(error) => {
                    let (good, other) = rest.split_at(error.valid_up_to());
                    self.put(&String::from_utf8_lossy(good))?;
                    let Some(bad) = error.error_len() else {
                        self.begun = other.to_vec();
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
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}31m\r\u{7f}"), "a\\u{1b}[2Jb\\u{9b}31m\\r\\u{7f}");
        // The name of a program that looks like a picture: "exe.gpj" backwards.
        assert_eq!(printable("photo\u{202e}gpj.exe"), "photo\\u{202e}gpj.exe");
        for c in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202d}\u{2066}\u{2069}".chars() {
            assert_eq!(printable(&c.to_string()), c.escape_default().to_string());
        }
        assert_eq!(printable("/äö/\u{5e9}\u{200d}/日本"), "/äö/\u{5e9}\u{200d}/日本");
        assert_eq!(printable_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
    }

    #[test]
    fn a_stream_is_escaped_however_it_is_cut() {
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

//! Text that is safe in HTML and XML.

use miot_proto::text::printable;
use std::fmt::{self, Write as _};

/// Escapes text for HTML and XML, including attributes. Control characters are replaced by visible
/// escapes.
#[derive(Debug)]
pub struct XmlText<'a>(pub &'a str);

impl fmt::Display for XmlText<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
            match character {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                // Characters that XML forbids, or that change the direction of the text around
                // them.
                '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(out, "\\u{{{:x}}}", u32::from(character))?;
                }
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_are_escaped() {
        let hostile = "<script>\"'&\u{1}\u{202e}\u{ffff}";
        assert_eq!(XmlText(hostile).to_string(), "&lt;script&gt;&quot;&#39;&amp;\\u{1}\\u{202e}\\u{ffff}");
    }
}

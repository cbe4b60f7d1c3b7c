//! Text of the messages of a debug log (`miot_debug`), from their recorded format and arguments,
//! and of the attributes of regions.

use miot_proto::debug;
use miot_proto::event::flag;

/// Returns the text of a message; `None` if the row is not a message. Bytes that are not UTF-8
/// become U+FFFD.
#[must_use]
pub fn message(layer: &str, op: &str, format: Option<&str>, arguments: Option<&str>) -> Option<String> {
    if (layer, op) != ("app", "debug") {
        return None;
    }
    let text = debug::message(format.unwrap_or("").as_bytes(), &bytes(arguments.unwrap_or("")));
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the attributes of a region: the recorded text, followed by the number. `None` if the row
/// is not a region, or has none.
#[must_use]
pub fn attributes(layer: &str, op: &str, text: Option<&str>, number: Option<i64>) -> Option<String> {
    if (layer, op) != ("app", "region") || text.is_none() && number.is_none() {
        return None;
    }
    let number = number.map_or_else(String::new, |number| number.to_string());
    Some(text.unwrap_or_default().to_owned() + &number)
}

/// Returns the character for the kind of a message, from the flags of its row.
#[must_use]
pub fn prefix(flags: u16) -> char {
    char::from((flags >> flag::OP_SHIFT) as u8 & 0x7f)
}

/// Returns the bytes of hexadecimal digits, as in a trace, up to the first character that is not a
/// digit.
fn bytes(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().as_chunks::<2>().0.iter();
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    pairs.map_while(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::{attributes, message, prefix};

    #[test]
    fn message_is_formatted() {
        let shown = message("app", "debug", Some("%d of %s\n"), Some("ffffffffffffffff02000000000000006162"));
        assert_eq!(shown.as_deref(), Some("-1 of ab\n"));
        assert_eq!(message("app", "debug", Some("%d"), Some("xx")).as_deref(), Some("?"));
        assert_eq!(message("app", "note", Some("%d"), None), None);
        assert_eq!(
            attributes("app", "region", Some("epoch=3,step="), Some(17)).as_deref(),
            Some("epoch=3,step=17")
        );
        assert_eq!(attributes("app", "region", Some("kind=io"), None).as_deref(), Some("kind=io"));
        assert_eq!(attributes("app", "region", None, None), None);
        assert_eq!(attributes("posix", "open", None, Some(1)), None);
        assert_eq!(prefix(1 | (b'E' as u16) << 8), 'E');
    }
}

//! Formatting of a message.

use super::format::{Conversion, Count, MAX_COUNT, Size, Spec, Token, Tokens};
use super::{CUT, MAX_ARGUMENTS, NULL, argument_kinds};

/// Returns the bytes that `printf` writes for a format and its recorded arguments (see the module
/// for their layout).
///
/// Both are untrusted. A missing argument is shown as `?`, a truncated string ends in `…`, and a
/// format with an unsupported conversion is returned unchanged.
///
/// ```
/// use miot_proto::debug::message;
/// let words = [(-7i64) as u64, 4];
/// let arguments: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).chain(*b"file").collect();
/// assert_eq!(message(b"%5d|%6s\n", &arguments), b"   -7|  file\n");
/// ```
#[must_use]
pub fn message(format: &[u8], arguments: &[u8]) -> Vec<u8> {
    let Some(count) = argument_kinds(format, &mut [0; MAX_ARGUMENTS]) else { return format.to_vec() };
    let words = arguments.len().min(8 * count) / 8;
    let (words, texts) = arguments.split_at(8 * words);
    let mut remaining = Arguments { words: words.as_chunks().0, texts };
    let mut out = Vec::with_capacity(format.len() + arguments.len());
    for token in Tokens(format).flatten() {
        match token {
            Token::Text(text) => out.extend_from_slice(text),
            Token::Spec(spec) => {
                if convert(spec, &mut remaining, &mut out).is_none() {
                    out.push(b'?');
                }
            }
        }
    }
    out
}

/// Arguments that no conversion has consumed yet.
struct Arguments<'a> {
    words: &'a [[u8; 8]],
    texts: &'a [u8],
}

impl<'a> Arguments<'a> {
    fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(u64::from_le_bytes(*first))
    }

    /// Returns a width or precision. The outer `None`: its argument is missing.
    fn count(&mut self, count: Count) -> Option<Option<i64>> {
        match count {
            Count::Absent => Some(None),
            Count::Fixed(n) => Some(Some(n.into())),
            Count::Star => {
                let limit = i64::from(MAX_COUNT);
                self.word().map(|w| Some(i64::from(w as i32).clamp(-limit, limit)))
            }
        }
    }

    /// Removes a string, at most the rest of the texts. `length` is the word of the string.
    fn text(&mut self, length: u64) -> &'a [u8] {
        let length = usize::try_from(length & !CUT).unwrap_or(usize::MAX).min(self.texts.len());
        let (text, rest) = self.texts.split_at(length);
        self.texts = rest;
        text
    }
}

/// Appends one converted argument. Returns `None` if an argument is missing.
fn convert(mut spec: Spec, arguments: &mut Arguments<'_>, out: &mut Vec<u8>) -> Option<()> {
    let width = arguments.count(spec.width)?.unwrap_or(0);
    spec.left |= width < 0;
    let width = width.unsigned_abs() as usize;
    let precision = arguments.count(spec.precision)?.and_then(|p| usize::try_from(p).ok());
    let word = arguments.word()?;
    match spec.conversion {
        Conversion::Char => pad(out, &spec, width, &[], &[word as u8], Padding::Spaces),
        Conversion::Text => {
            let whole = if word == NULL { &b"(null)"[..] } else { arguments.text(word) };
            // The C library omits "(null)" if the precision is too small for all of it.
            let text = match precision {
                Some(precision) if word == NULL && precision < whole.len() => &[],
                Some(precision) => whole.get(..precision).unwrap_or(whole),
                None => whole,
            };
            let is_truncated = word != NULL && word & CUT != 0;
            let text = if is_truncated { [text, "…".as_bytes()].concat() } else { text.to_vec() };
            pad(out, &spec, width, &[], &text, Padding::Spaces);
        }
        Conversion::Pointer if word == 0 => pad(out, &spec, width, &[], b"(nil)", Padding::Spaces),
        Conversion::Pointer => {
            let spec = Spec { alternative: true, ..spec };
            integer(out, &spec, width, precision, &[], word, b'x');
        }
        Conversion::Signed(size) => {
            let value = match size {
                Size::Char => i64::from(word as i8),
                Size::Short => i64::from(word as i16),
                Size::Int => i64::from(word as i32),
                Size::Long => word as i64,
            };
            integer(out, &spec, width, precision, sign(&spec, value < 0), value.unsigned_abs(), b'd');
        }
        Conversion::Unsigned { size, base } => {
            let value = match size {
                Size::Char => u64::from(word as u8),
                Size::Short => u64::from(word as u16),
                Size::Int => u64::from(word as u32),
                Size::Long => word,
            };
            integer(out, &spec, width, precision, &[], value, base);
        }
        Conversion::Float { letter, .. } => {
            let value = f64::from_bits(word);
            let sign = sign(&spec, value.is_sign_negative());
            let mut digits = float(value.abs(), letter.to_ascii_lowercase(), precision.unwrap_or(6), &spec);
            if letter.is_ascii_uppercase() {
                digits.make_ascii_uppercase();
            }
            pad(out, &spec, width, sign, digits.as_bytes(), Padding::of(spec.zero && value.is_finite()));
        }
    }
    Some(())
}

fn sign(spec: &Spec, negative: bool) -> &'static [u8] {
    match (negative, spec.plus, spec.space) {
        (true, ..) => b"-",
        (_, true, _) => b"+",
        (_, _, true) => b" ",
        _ => b"",
    }
}

/// Padding up to the width: spaces before the sign, or zeros between sign and digits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Spaces,
    Zeros,
}

impl Padding {
    fn of(zeros: bool) -> Padding {
        if zeros { Padding::Zeros } else { Padding::Spaces }
    }
}

/// Appends head and body, padded to `width` with spaces, or with zeros between the two.
fn pad(out: &mut Vec<u8>, spec: &Spec, width: usize, head: &[u8], body: &[u8], padding: Padding) {
    let missing = width.saturating_sub(head.len() + body.len());
    if !spec.left && padding == Padding::Spaces {
        out.extend(std::iter::repeat_n(b' ', missing));
    }
    out.extend_from_slice(head);
    if !spec.left && padding == Padding::Zeros {
        out.extend(std::iter::repeat_n(b'0', missing));
    }
    out.extend_from_slice(body);
    if spec.left {
        out.extend(std::iter::repeat_n(b' ', missing));
    }
}

/// Appends an integer. `base` is the conversion letter; `d` and `u` are decimal.
fn integer(
    out: &mut Vec<u8>,
    spec: &Spec,
    width: usize,
    precision: Option<usize>,
    sign: &[u8],
    value: u64,
    base: u8,
) {
    let mut digits = match base {
        _ if value == 0 && precision == Some(0) => String::new(),
        b'x' => format!("{value:x}"),
        b'X' => format!("{value:X}"),
        b'o' => format!("{value:o}"),
        _ => value.to_string(),
    };
    if let Some(missing) = precision.and_then(|p| p.checked_sub(digits.len())) {
        digits.insert_str(0, &"0".repeat(missing));
    }
    let head: &[u8] = match base {
        b'o' if spec.alternative && !digits.starts_with('0') => {
            digits.insert(0, '0');
            sign
        }
        b'x' if spec.alternative && value != 0 => b"0x",
        b'X' if spec.alternative && value != 0 => b"0X",
        _ => sign,
    };
    pad(out, spec, width, head, digits.as_bytes(), Padding::of(spec.zero && precision.is_none()));
}

/// Formats a value that is not negative like `%f`, `%e` or `%g`.
fn float(value: f64, letter: u8, precision: usize, spec: &Spec) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "nan" } else { "inf" }.to_owned();
    }
    match letter {
        b'f' => {
            let mut digits = format!("{value:.precision$}");
            if spec.alternative && precision == 0 {
                digits.push('.');
            }
            digits
        }
        b'e' => {
            let (mut digits, exponent) = scientific(value, precision);
            if spec.alternative && precision == 0 {
                digits.push('.');
            }
            with_exponent(&digits, exponent)
        }
        _ => {
            let precision = precision.max(1);
            let (digits, exponent) = scientific(value, precision - 1);
            let fixed = (-4..precision as i32).contains(&exponent);
            let decimals = if fixed { (precision as i32 - 1 - exponent) as usize } else { precision - 1 };
            let mut digits = if fixed { format!("{value:.decimals$}") } else { digits };
            if spec.alternative {
                if decimals == 0 {
                    digits.push('.');
                }
            } else if digits.contains('.') {
                digits.truncate(digits.trim_end_matches('0').trim_end_matches('.').len());
            }
            if fixed { digits } else { with_exponent(&digits, exponent) }
        }
    }
}

/// Returns the digits with `precision` decimals, and the power of ten to multiply them by.
fn scientific(value: f64, precision: usize) -> (String, i32) {
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => (digits.to_owned(), exponent.parse().unwrap_or(0)),
        None => (text, 0),
    }
}

fn with_exponent(digits: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::message;
    use crate::debug::{CUT, NULL};
    use proptest::prelude::*;

    fn arguments(words: &[u64], texts: &str) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).chain(texts.bytes()).collect()
    }

    #[test]
    fn missing_and_truncated_arguments_are_marked() {
        assert_eq!(message(b"%d %d", &arguments(&[1], "")), b"1 ?");
        assert_eq!(message(b"%s|%s", &arguments(&[3 | CUT, 2], "abcde")), "abc…|de".as_bytes());
        assert_eq!(message(b"%s %.2s", &arguments(&[NULL, NULL], "")), b"(null) ");
        assert_eq!(message(b"100%% %n", &[]), b"100%% %n");
        assert_eq!(message(b"%99999d", &arguments(&[1], "")), b"%99999d");
        assert_eq!(message(b"%*d", &arguments(&[1 << 30, 7], "")).len(), 4096);
    }

    proptest! {
        #[test]
        fn arbitrary_input_has_bounded_output(format in "[%dsxgf*.#0-9lhz+ -]{0,30}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let shown = message(format.as_bytes(), &bytes);
            prop_assert!(shown.len() <= 30 * 4500 + bytes.len());
        }
    }
}

//! Parser of printf formats (C11, 7.21.6.1), without the conversions that the tracer cannot record.

/// Maximum number of arguments of a format, including `*`. A format with more is recorded without
/// arguments.
pub const MAX_ARGUMENTS: usize = 24;

/// How an argument is passed: the low 8 bits of a number of [`argument_kinds`].
/// `tracer-client/src/debug.c` uses the same numbers.
pub mod argument_kind {
    /// `int` or shorter.
    pub const INT: u32 = 1;
    /// 64 bits: `long`, `long long`, `intmax_t`, `size_t`, `ptrdiff_t`, a pointer.
    pub const LONG: u32 = 2;
    /// `double`.
    pub const DOUBLE: u32 = 3;
    /// `long double`.
    pub const LONG_DOUBLE: u32 = 4;
    /// A zero-terminated string.
    pub const TEXT: u32 = 5;
    /// A string with a maximum length, bytes: bits 8 and up.
    pub const TEXT_UP_TO: u32 = 6;
    /// A string whose maximum length is the previous argument, bytes. A negative one means no
    /// limit.
    pub const TEXT_UP_TO_STAR: u32 = 7;
}

/// Type of an integer argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Char,
    Short,
    Int,
    Long,
}

/// A width or precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Absent,
    Fixed(u32),
    /// `*`: the value is an argument.
    Star,
}

/// Conversion of an argument, with its base or letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    /// `d`, `i`.
    Signed(Size),
    /// `o`, `u`, `x`, `X`.
    Unsigned {
        size: Size,
        base: u8,
    },
    Char,
    Text,
    Pointer,
    /// `e`, `f`, `g` and their capitals.
    Float {
        letter: u8,
        is_long_double: bool,
    },
}

/// One conversion specification, from `%` to its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) left: bool,
    pub(super) plus: bool,
    pub(super) space: bool,
    pub(super) alternative: bool,
    pub(super) zero: bool,
    pub(super) width: Count,
    pub(super) precision: Count,
    pub(super) conversion: Conversion,
}

/// Part of a format: literal text or one conversion specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Text(&'a [u8]),
    Spec(Spec),
}

/// Maximum width and precision. A larger one is an error, or an attempt to exhaust the memory of a
/// reader.
pub(super) const MAX_COUNT: u32 = 4096;

/// Iterator over the tokens of a format. The item `None` is the last one: the rest contains an
/// unsupported conversion, i.e. `%n`, wide characters, `%a`, `%m`, numbered arguments, or a width
/// above [`MAX_COUNT`].
pub(super) struct Tokens<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Tokens<'a> {
    type Item = Option<Token<'a>>;

    fn next(&mut self) -> Option<Option<Token<'a>>> {
        let (first, rest) = self.0.split_first()?;
        if *first != b'%' {
            let end = self.0.iter().position(|b| *b == b'%').unwrap_or(self.0.len());
            let (text, rest) = self.0.split_at(end);
            self.0 = rest;
            return Some(Some(Token::Text(text)));
        }
        if rest.first() == Some(&b'%') {
            let text = &rest[..1];
            self.0 = &rest[1..];
            return Some(Some(Token::Text(text)));
        }
        let mut at = Cursor(rest);
        let spec = at.spec();
        self.0 = if spec.is_some() { at.0 } else { &[] };
        Some(spec.map(Token::Spec))
    }
}

/// The rest of a format.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Removes the next byte if it is `byte`.
    fn take_if(&mut self, byte: u8) -> bool {
        let found = self.0.first() == Some(&byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    /// Parses a width or precision; returns `empty` if there is none, `None` above [`MAX_COUNT`].
    fn count(&mut self, empty: Count) -> Option<Count> {
        if self.take_if(b'*') {
            return Some(Count::Star);
        }
        let mut count = empty;
        while let Some(digit) = self.0.first().filter(|b| b.is_ascii_digit()) {
            let value = if let Count::Fixed(n) = count { n } else { 0 };
            let next = value * 10 + u32::from(digit - b'0');
            if next > MAX_COUNT {
                return None;
            }
            count = Count::Fixed(next);
            self.0 = &self.0[1..];
        }
        Some(count)
    }

    /// Parses a conversion specification after its `%`.
    fn spec(&mut self) -> Option<Spec> {
        let mut spec = Spec {
            left: false,
            plus: false,
            space: false,
            alternative: false,
            zero: false,
            width: Count::Absent,
            precision: Count::Absent,
            conversion: Conversion::Char,
        };
        self.flags(&mut spec)?;
        spec.width = self.count(Count::Absent)?;
        if self.take_if(b'.') {
            spec.precision = self.count(Count::Fixed(0))?;
        }
        spec.conversion = self.conversion()?;
        Some(spec)
    }

    fn flags(&mut self, spec: &mut Spec) -> Option<()> {
        loop {
            match self.0.first()? {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternative = true,
                b'0' => spec.zero = true,
                // Grouping of digits, which the locale "C" does not have.
                b'\'' => {}
                _ => return Some(()),
            }
            self.take();
        }
    }

    /// Parses the length modifier and the conversion letter.
    fn conversion(&mut self) -> Option<Conversion> {
        // Plain: without a modifier, or with one that does not change the conversion.
        let (mut size, mut is_long_double, mut is_plain) = (Size::Int, false, true);
        match self.0.first()? {
            b'h' => {
                self.take();
                size = if self.take_if(b'h') { Size::Char } else { Size::Short };
                is_plain = false;
            }
            b'l' => {
                self.take();
                let is_long_long = self.take_if(b'l');
                size = Size::Long;
                // `%lf` is `%f`; `%lc` and `%ls` are wide.
                is_plain =
                    !is_long_long && matches!(self.0.first(), Some(b'e' | b'f' | b'g' | b'E' | b'F' | b'G'));
            }
            b'q' | b'j' | b'z' | b't' => {
                self.take();
                (size, is_plain) = (Size::Long, false);
            }
            b'L' => {
                self.take();
                (is_long_double, is_plain) = (true, false);
            }
            _ => {}
        }
        Some(match self.take()? {
            b'd' | b'i' if !is_long_double => Conversion::Signed(size),
            base @ (b'o' | b'u' | b'x' | b'X') if !is_long_double => Conversion::Unsigned { size, base },
            b'c' if is_plain => Conversion::Char,
            b's' if is_plain => Conversion::Text,
            b'p' if is_plain => Conversion::Pointer,
            letter @ (b'e' | b'f' | b'g' | b'E' | b'F' | b'G') if is_plain || is_long_double => {
                Conversion::Float { letter, is_long_double }
            }
            _ => return None,
        })
    }
}

/// Writes the kinds of the arguments of a format to `into`, in the order in which they are passed,
/// and returns their number. Returns `None` if a conversion is unsupported or there are more than
/// [`MAX_ARGUMENTS`] arguments.
///
/// ```
/// use miot_proto::debug::{argument_kind, argument_kinds};
/// let mut found = [0; 24];
/// assert_eq!(argument_kinds(b"%-5d %.3s %zu", &mut found), Some(3));
/// let text = argument_kind::TEXT_UP_TO | 3 << 8;
/// assert_eq!(found[..3], [argument_kind::INT, text, argument_kind::LONG]);
/// assert_eq!(argument_kinds(b"%n", &mut found), None);
/// ```
#[must_use]
pub fn argument_kinds(format: &[u8], into: &mut [u32; MAX_ARGUMENTS]) -> Option<usize> {
    let mut count = 0;
    let mut push = |kind| {
        *into.get_mut(count)? = kind;
        count += 1;
        Some(())
    };
    for token in Tokens(format) {
        let Token::Spec(spec) = token? else { continue };
        for star in [spec.width, spec.precision] {
            if star == Count::Star {
                push(argument_kind::INT)?;
            }
        }
        push(match spec.conversion {
            Conversion::Signed(Size::Long)
            | Conversion::Unsigned { size: Size::Long, .. }
            | Conversion::Pointer => argument_kind::LONG,
            Conversion::Signed(_) | Conversion::Unsigned { .. } | Conversion::Char => argument_kind::INT,
            Conversion::Float { is_long_double: false, .. } => argument_kind::DOUBLE,
            Conversion::Float { is_long_double: true, .. } => argument_kind::LONG_DOUBLE,
            Conversion::Text => match spec.precision {
                Count::Absent => argument_kind::TEXT,
                Count::Fixed(bytes) => argument_kind::TEXT_UP_TO | bytes << 8,
                Count::Star => argument_kind::TEXT_UP_TO_STAR,
            },
        })?;
    }
    Some(count)
}

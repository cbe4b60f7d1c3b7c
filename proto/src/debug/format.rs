//! Formats taken apart.

/// Most arguments of a format, stars included. A format with more is recorded without them.
pub const MAX_ARGUMENTS: usize = 24;

/// How an argument is passed, as `tracer-client/src/debug.c` knows it: the low 8 bits of a number of [`argument_kinds`].
pub mod argument_kind {
    /// `int` or shorter.
    pub const INT: u32 = 1;
    /// 64 bits: `long`, `long long`, `intmax_t`, `size_t`, `ptrdiff_t`, a pointer.
    pub const LONG: u32 = 2;
    /// `double`.
    pub const DOUBLE: u32 = 3;
    /// `long double`.
    pub const LONG_DOUBLE: u32 = 4;
    /// A string that ends with a zero.
    pub const TEXT: u32 = 5;
    /// A string of at most so many bytes: the number is in bits 8 and up.
    pub const TEXT_UP_TO: u32 = 6;
    /// A string of at most as many bytes as the argument before says, unless that is negative.
    pub const TEXT_UP_TO_STAR: u32 = 7;
}

/// The type of an integer.
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
    /// An argument of its own.
    Star,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    /// `d`, `i`.
    Signed(Size),
    /// `o`, `u`, `x`, `X`.
    Unsigned(Size, u8),
    Char,
    Text,
    Pointer,
    /// `e`, `f`, `g` and the like in capitals; true: a `long double`.
    Float(u8, bool),
}

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

/// A piece of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(&'a [u8]),
    Spec(Spec),
}

/// Widths and precisions above this are a mistake, or an attack on who reads.
pub(super) const MAX_COUNT: u32 = 4096;

/// The pieces of a format. An item `None`, the last one: from here on it cannot be understood: `%n`, wide characters, `%a`,
/// `%m`, numbered arguments, widths above 4096.
pub(super) struct Pieces<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = Option<Piece<'a>>;

    fn next(&mut self) -> Option<Option<Piece<'a>>> {
        let (first, rest) = self.0.split_first()?;
        if *first != b'%' {
            let end = self.0.iter().position(|b| *b == b'%').unwrap_or(self.0.len());
            let (text, rest) = self.0.split_at(end);
            self.0 = rest;
            return Some(Some(Piece::Text(text)));
        }
        if rest.first() == Some(&b'%') {
            let text = &rest[..1];
            self.0 = &rest[1..];
            return Some(Some(Piece::Text(text)));
        }
        let mut at = Cursor(rest);
        let spec = at.spec();
        self.0 = if spec.is_some() { at.0 } else { &[] };
        Some(spec.map(Piece::Spec))
    }
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn is(&mut self, byte: u8) -> bool {
        let is = self.0.first() == Some(&byte);
        if is {
            self.0 = &self.0[1..];
        }
        is
    }

    fn count(&mut self, empty: Count) -> Option<Count> {
        if self.is(b'*') {
            return Some(Count::Star);
        }
        let mut count = empty;
        while let Some(digit) = self.0.first().filter(|b| b.is_ascii_digit()) {
            let so_far = if let Count::Fixed(n) = count { n } else { 0 };
            let next = so_far * 10 + u32::from(digit - b'0');
            if next > MAX_COUNT {
                return None;
            }
            count = Count::Fixed(next);
            self.0 = &self.0[1..];
        }
        Some(count)
    }

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
        loop {
            match self.0.first()? {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternative = true,
                b'0' => spec.zero = true,
                // Groups of digits: the locale "C" has none.
                b'\'' => {}
                _ => break,
            }
            self.take();
        }
        spec.width = self.count(Count::Absent)?;
        if self.is(b'.') {
            spec.precision = self.count(Count::Fixed(0))?;
        }
        let (mut size, mut long_double, mut plain) = (Size::Int, false, true);
        match self.0.first()? {
            b'h' => {
                self.take();
                size = if self.is(b'h') { Size::Char } else { Size::Short };
                plain = false;
            }
            b'l' => {
                self.take();
                let twice = self.is(b'l');
                size = Size::Long;
                // `%lf` is `%f`; `%lc` and `%ls` are wide.
                plain = !twice && matches!(self.0.first(), Some(b'e' | b'f' | b'g' | b'E' | b'F' | b'G'));
            }
            b'q' | b'j' | b'z' | b't' => {
                self.take();
                (size, plain) = (Size::Long, false);
            }
            b'L' => {
                self.take();
                (long_double, plain) = (true, false);
            }
            _ => {}
        }
        spec.conversion = match self.take()? {
            b'd' | b'i' if !long_double => Conversion::Signed(size),
            base @ (b'o' | b'u' | b'x' | b'X') if !long_double => Conversion::Unsigned(size, base),
            b'c' if plain => Conversion::Char,
            b's' if plain => Conversion::Text,
            b'p' if plain => Conversion::Pointer,
            letter @ (b'e' | b'f' | b'g' | b'E' | b'F' | b'G') if plain || long_double => {
                Conversion::Float(letter, long_double)
            }
            _ => return None,
        };
        Some(spec)
    }
}

/// The kinds of the arguments of a format, in the order in which they are passed; `None` if the format cannot be
/// understood or has too many.
///
/// ```
/// use miot_proto::debug::{argument_kind, argument_kinds};
/// let mut room = [0; 24];
/// assert_eq!(argument_kinds(b"%-5d %.3s %zu", &mut room), Some(3));
/// assert_eq!(room[..3], [argument_kind::INT, argument_kind::TEXT_UP_TO | 3 << 8, argument_kind::LONG]);
/// assert_eq!(argument_kinds(b"%n", &mut room), None);
/// ```
#[must_use]
pub fn argument_kinds(format: &[u8], into: &mut [u32; MAX_ARGUMENTS]) -> Option<usize> {
    let mut count = 0;
    let mut push = |kind| {
        *into.get_mut(count)? = kind;
        count += 1;
        Some(())
    };
    for piece in Pieces(format) {
        let Piece::Spec(spec) = piece? else { continue };
        for star in [spec.width, spec.precision] {
            if star == Count::Star {
                push(argument_kind::INT)?;
            }
        }
        push(match spec.conversion {
            Conversion::Signed(Size::Long) | Conversion::Unsigned(Size::Long, _) | Conversion::Pointer => {
                argument_kind::LONG
            }
            Conversion::Signed(_) | Conversion::Unsigned(..) | Conversion::Char => argument_kind::INT,
            Conversion::Float(_, false) => argument_kind::DOUBLE,
            Conversion::Float(_, true) => argument_kind::LONG_DOUBLE,
            Conversion::Text => match spec.precision {
                Count::Absent => argument_kind::TEXT,
                Count::Fixed(bytes) => argument_kind::TEXT_UP_TO | bytes << 8,
                Count::Star => argument_kind::TEXT_UP_TO_STAR,
            },
        })?;
    }
    Some(count)
}

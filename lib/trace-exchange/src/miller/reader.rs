//! Parses text into records.

use super::state::CodecState;
use super::{BLOCK, Item, Record, RecordType, compression};
use std::io::{self, BufRead};

/// Maximum length of a line in bytes. A path has up to 4096 bytes, each of up to four characters.
const LONGEST: usize = 64 << 10;

/// Handling of lines that violate the format but can be interpreted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are damage.
    #[default]
    Strict,
    /// Unknown bits and contradictory flags are ignored and counted in [`Reader::oddities`]. A file
    /// that begins with a sequential access begins at 0.
    Lenient,
}

/// Base of the numbers. The appendix does not specify it; the sample of its Figure 1 is
/// hexadecimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// Without `0x`, digits in upper or lower case.
    #[default]
    Hexadecimal,
    /// For traces of other programs.
    Decimal,
}

/// Damage of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A field is not a number of this base with up to 64 bits.
    #[error("field {field} is `{found}`; expected a number in {base}")]
    NotANumber {
        /// Field number from 1.
        field: usize,
        /// At most the first 20 characters of the field.
        found: String,
        /// Expected base.
        base: &'static str,
    },
    /// The number of fields does not match the compression field.
    #[error("{found} fields; expected {expected} with this compression field")]
    Fields {
        /// Number of fields of the line.
        found: usize,
        /// Number of fields that the compression field requires.
        expected: usize,
    },
    /// The record type is above 0xff or has an undefined bit.
    #[error("record type {0:X} has undefined bits")]
    Type(u64),
    /// The compression field is above 0xff or has an undefined bit.
    #[error("compression {0:X} has undefined bits")]
    Compression(u64),
    /// A field is omitted and cannot be derived from an earlier record.
    #[error("no {0}, and no earlier record to derive it from")]
    Unknown(&'static str),
    /// An omitted or physical length or offset cannot be in blocks.
    #[error("compression {0:X} contradicts itself or the record type: {1} cannot be in blocks")]
    Scale(u8, &'static str),
    /// A value has more than 64 bits.
    #[error("{0} does not fit 64 bits")]
    TooLarge(&'static str),
    /// A number has more than 32 bits, the limit of MIOT. Only in an import.
    #[error("the number of the {0} does not fit 32 bits")]
    TooWide(&'static str),
    /// The line is longer than any record or comment.
    #[error("longer than 65536 bytes")]
    TooLong,
}

/// Reason why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The line is damaged. Reading can continue with the next line, but times and omitted fields
    /// that depend on this line are lost.
    #[error("line {line}: {damage}")]
    Damaged {
        /// Line number from 1.
        line: u64,
        /// Damage of the line.
        damage: Damage,
    },
    /// The text cannot be read; no further records follow.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
}

/// Reads a trace. Memory grows with the number of processes and their files, not with the number of
/// records.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    base: Base,
    mode: Mode,
    state: CodecState,
    buffer: Vec<u8>,
    line: u64,
    oddities: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Returns a reader at the beginning of a trace.
    pub fn new(from: R, base: Base, mode: Mode) -> Reader<R> {
        Reader {
            from,
            base,
            mode,
            state: CodecState::default(),
            buffer: Vec::new(),
            line: 0,
            oddities: 0,
            ended: false,
        }
    }

    /// Returns the number of the last line that was read, from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the number of lines with ignored irregularities; see [`Mode::Lenient`].
    #[must_use]
    pub fn oddities(&self) -> u64 {
        self.oddities
    }

    /// Reads a line into the buffer, without its end. Returns `None` at the end of the input, and
    /// false for a line that is too long.
    fn next_line(&mut self) -> io::Result<Option<bool>> {
        self.buffer.clear();
        let mut fits = true;
        loop {
            let found = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                found => found?,
            };
            if found.is_empty() {
                let any = !self.buffer.is_empty() || !fits;
                return Ok(any.then_some(fits));
            }
            let end = found.iter().position(|byte| *byte == b'\n');
            let piece = &found[..end.unwrap_or(found.len())];
            fits &= self.buffer.len() + piece.len() <= LONGEST;
            if fits {
                self.buffer.extend_from_slice(piece);
            } else {
                self.buffer.clear();
            }
            let used = piece.len() + usize::from(end.is_some());
            self.from.consume(used);
            if end.is_some() {
                return Ok(Some(fits));
            }
        }
    }

    fn next_item(&mut self) -> Result<Option<Item>, ReadError> {
        loop {
            let Some(fits) = self.next_line()? else { return Ok(None) };
            self.line += 1;
            let line = self.line;
            let damaged = |damage| ReadError::Damaged { line, damage };
            if !fits {
                return Err(damaged(Damage::TooLong));
            }
            let mut odd = false;
            let item = parse(&self.buffer, self.base, self.mode, &mut self.state, &mut odd);
            self.oddities += u64::from(odd);
            if let Some(item) = item.map_err(damaged)? {
                return Ok(Some(item));
            }
        }
    }
}

/// Returns each line that is not blank, and each error. Ends after an error of reading.
impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Item, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.next_item().transpose();
        self.ended = matches!(item, None | Some(Err(ReadError::Io(_))));
        item
    }
}

/// Iterator over the fields of a line, from left to right.
struct Fields<'a> {
    rest: &'a [u8],
    taken: usize,
    base: Base,
}

fn is_blank(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == b'\x0b'
}

impl<'a> Fields<'a> {
    fn word(&mut self) -> Option<&'a [u8]> {
        let from = self.rest.iter().position(|byte| !is_blank(byte))?;
        let rest = &self.rest[from..];
        let (word, rest) = rest.split_at(rest.iter().position(is_blank).unwrap_or(rest.len()));
        self.rest = rest;
        self.taken += 1;
        Some(word)
    }

    fn number(&self, word: &[u8]) -> Result<u64, Damage> {
        let (radix, base) = match self.base {
            Base::Hexadecimal => (16, "hexadecimal"),
            Base::Decimal => (10, "decimal"),
        };
        let digits = word.iter().try_fold(0u64, |value, byte| {
            let digit = char::from(*byte).to_digit(radix)?;
            value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
        });
        digits.ok_or_else(|| {
            let found = String::from_utf8_lossy(&word[..word.len().min(20)]);
            Damage::NotANumber { field: self.taken, found: found.escape_default().to_string(), base }
        })
    }

    /// Parses the remaining fields; returns their values and their number. There is room for one
    /// more than the maximum, so that excess fields are detected.
    fn numbers(&mut self) -> Result<([u64; 9], usize), Damage> {
        let (mut values, mut found) = ([0; 9], 0);
        while let Some(word) = self.word() {
            if let Some(value) = values.get_mut(found) {
                *value = self.number(word)?;
            }
            found += 1;
        }
        Ok((values, found))
    }
}

/// Returns the text of a comment without surrounding blanks and carriage returns.
fn comment(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., b'\r'] = text {
        text = rest;
    }
    let from = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    &text[from..]
}

/// Parses a line; returns `None` for a blank one. A damaged line does not change the state.
fn parse(
    line: &[u8],
    base: Base,
    mode: Mode,
    state: &mut CodecState,
    odd: &mut bool,
) -> Result<Option<Item>, Damage> {
    let mut fields = Fields { rest: line, taken: 0, base };
    let Some(first) = fields.word() else { return Ok(None) };
    let kind = fields.number(first)?;
    if kind == u64::from(RecordType::COMMENT) {
        return Ok(Some(Item::Comment(comment(fields.rest).to_vec())));
    }
    let lenient = mode == Mode::Lenient;
    let byte = u8::try_from(kind).ok().and_then(RecordType::from_bits);
    let kind = byte.ok_or(Damage::Type(kind))?;
    let mut allow = |is_odd: bool, damage: Damage| match (is_odd, lenient) {
        (true, false) => Err(damage),
        (true, true) => {
            *odd = true;
            Ok(())
        }
        (false, _) => Ok(()),
    };
    allow(kind.bits() & RecordType::RESERVED != 0, Damage::Type(kind.bits().into()))?;

    let word = fields.word().ok_or(Damage::Fields { found: 1, expected: 5 })?;
    let number = fields.number(word)?;
    let all = u8::try_from(number).map_err(|_| Damage::Compression(number))?;
    allow(all & !compression::ALL != 0, Damage::Compression(number))?;
    let has = |bit: u8| all & bit != 0;

    let (values, found) = fields.numbers()?;
    let left_out = [
        compression::NO_BLOCK,
        compression::NO_LENGTH,
        compression::NO_OPERATIONID,
        compression::NO_FILEID,
        compression::NO_PROCESSID,
    ];
    let expected = 8 - left_out.into_iter().filter(|bit| has(*bit)).count();
    if found != expected {
        return Err(Damage::Fields { found: found + 2, expected: expected + 2 });
    }
    let mut values = values.into_iter();
    let mut take = |left_out: u8| if has(left_out) { None } else { values.next() };
    let offset = take(compression::NO_BLOCK);
    let length = take(compression::NO_LENGTH);
    let [since, took] = [take(0), take(0)].map(Option::unwrap_or_default);
    let operation = take(compression::NO_OPERATIONID);
    let file = take(compression::NO_FILEID);
    let process = take(compression::NO_PROCESSID);
    let process_time = take(0).unwrap_or_default();

    // Derive omitted fields, in the order of their dependencies.
    let process = process.or(state.last_process).ok_or(Damage::Unknown("process"))?;
    let file = match file {
        Some(file) => file,
        None => state
            .processes
            .get(&process)
            .and_then(|process| process.last_file)
            .ok_or(Damage::Unknown("file"))?,
    };
    let before = state.file(process, (kind.is_logical(), file));
    let mut scaled = |value: Option<u64>, bit: u8, name: &'static str| match value {
        Some(value) if has(bit) && kind.is_logical() => {
            value.checked_mul(BLOCK).map(Some).ok_or(Damage::TooLarge(name))
        }
        value => allow(has(bit), Damage::Scale(all, name)).map(|()| value),
    };
    let length = match scaled(length, compression::LENGTH_IN_BLOCKS, "the length")? {
        Some(length) => length,
        None => before.ok_or(Damage::Unknown("length"))?.length,
    };
    let offset = match (scaled(offset, compression::OFFSET_IN_BLOCKS, "the offset")?, before) {
        (Some(offset), _) => offset,
        (None, Some(before)) => before.next().ok_or(Damage::TooLarge("the offset"))?,
        (None, None) => {
            allow(true, Damage::Unknown("offset"))?;
            0
        }
    };
    let operation = operation.unwrap_or_else(|| before.map_or(0, |before| before.operation));
    let start = state.start.checked_add(since).ok_or(Damage::TooLarge("the start time"))?;
    let record = Record { kind, offset, length, start, took, operation, file, process, process_time };
    state.see(&record, 0);
    Ok(Some(Item::Record(record)))
}

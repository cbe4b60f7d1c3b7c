//! Text in Miller's trace format.
//!
//! The first byte selects base and mode, the second the compression with which the records are
//! written again. For all further bytes, reading ends, each line results in at most one record,
//! comment or error, and the written records read back equal.

use crate::Seed;
use miot_trace_exchange::miller::{Base, Item, Mode, ReadError, Reader, RecordType, Writer};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let [mode, allowed, text @ ..] = bytes else { return };
    let base = if mode & 1 == 0 { Base::Hexadecimal } else { Base::Decimal };
    let mode = if mode & 2 == 0 { Mode::Strict } else { Mode::Lenient };
    let mut reader = Reader::new(text, base, mode);
    let mut items = Vec::new();
    let mut damaged = 0;
    for item in reader.by_ref() {
        match item {
            // The reader accepts reserved bits, and the writer omits them.
            Ok(Item::Record(mut record)) => {
                let kind = RecordType::from_bits(record.kind.bits() & !RecordType::RESERVED);
                record.kind = kind.unwrap_or(record.kind);
                items.push(Item::Record(record));
            }
            Ok(comment) => items.push(comment),
            Err(ReadError::Damaged { line, damage }) => {
                assert!(line > 0 && !damage.to_string().is_empty());
                damaged += 1;
            }
            Err(ReadError::Io(error)) => panic!("reading from memory fails: {error}"),
        }
    }
    assert!(items.len() + damaged <= reader.line() as usize);
    let mut writer = Writer::with(Vec::new(), *allowed);
    for item in &items {
        let written = match item {
            Item::Record(record) => writer.record(record),
            Item::Comment(text) => writer.comment(text),
        };
        assert!(written.is_ok(), "records that were read can be written");
    }
    let written = writer.into_inner();
    let again: Result<Vec<_>, _> = Reader::new(&written[..], Base::Hexadecimal, Mode::Strict).collect();
    assert!(again.is_ok_and(|again| again == items), "{}", written.escape_ascii());
}

/// Returns texts for each base and mode.
pub fn seeds() -> Vec<Seed> {
    let text = "FF miller-1990\nFF epoch_ns=1795384070461290000 cacheflags=absent\nFF file=1 process=5E27 path=/tmp/f\n\
        C0 22 0 8 0 1 1 5E27 E\nC0 EC 1 1 0\n80 23 2 1 5 10 3 4D2 FF\n60 8 400 8000 0 10 0 1 FF\n80 A8 7 1 1 10 3\n";
    let seed = |first: &[u8]| [first, text.as_bytes()].concat();
    vec![
        ("strict", seed(&[0, 0xef])),
        ("lenient", seed(&[2, 0x23])),
        ("decimal", b"\x01\xef192 34 0 8 0 1 1 24103 14\n192 236 1 1 0\n255 comment\n".to_vec()),
        ("reserved", b"\x02\xef84 10 0 200 0 1 0 1 1 0\n80 ff 1 1 0\n80 40 1 1 1 0 7 1 0\r\n\n".to_vec()),
    ]
}

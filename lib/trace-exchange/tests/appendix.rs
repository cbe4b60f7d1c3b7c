//! Compares the reader with a decoder written only from the appendix of Miller (1990), and the
//! writer with both.
//!
//! The decoder here keeps no state: it reads all lines, and searches earlier records for omitted
//! fields, as the comments of the appendix's include file specify.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_trace_exchange::miller::{
    Base, Damage, Item, Mode, ReadError, Reader, Record, RecordType, Writer, compression,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// `struct traceRecord`, decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TraceRecord {
    record_type: u64,
    offset: u64,
    length: u64,
    start_time: u64,
    completion_time: u64,
    operation_id: u64,
    file_id: u64,
    process_id: u64,
    process_time: u64,
}

/// Returns the record of a line of a correct trace, given the earlier records; `None` if the line
/// is incorrect.
fn decode(line: &str, before: &[TraceRecord], radix: u32) -> Option<TraceRecord> {
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        words.push(u64::from_str_radix(word, radix).ok().filter(|_| !word.starts_with('+'))?);
    }
    let (record_type, flags) = (*words.first()?, *words.get(1)?);
    // The include file does not define 0x04 of the type and 0x10 of the flags.
    if record_type > 0xff || record_type & 0x04 != 0 || flags > 0xff || flags & 0x10 != 0 {
        return None;
    }
    let no_block = flags & 0x40 != 0;
    let no_length = flags & 0x04 != 0;
    let no_operation = flags & 0x20 != 0;
    let no_file = flags & 0x80 != 0;
    let no_process = flags & 0x08 != 0;
    let physical = record_type & 0x80 == 0;
    if (flags & 0x01 != 0 && (no_block || physical)) || (flags & 0x02 != 0 && (no_length || physical)) {
        return None;
    }
    // From the right: fields that are present are in this order.
    let mut end = words.len();
    let mut last = |is_missing: bool| {
        if is_missing {
            return Some(None);
        }
        end = end.checked_sub(1).filter(|end| *end >= 2)?;
        Some(Some(words[end]))
    };
    let process_time = last(false)??;
    let process = last(no_process)?;
    let file = last(no_file)?;
    let operation = last(no_operation)?;
    let completion_time = last(false)??;
    let since = last(false)??;
    let length = last(no_length)?;
    let offset = last(no_block)?;
    if end != 2 {
        return None;
    }

    let process_id = process.or_else(|| before.last().map(|record| record.process_id))?;
    let by_this_process = || before.iter().rev().filter(|record| record.process_id == process_id);
    let file_id = file.or_else(|| by_this_process().next().map(|record| record.file_id))?;
    let of_this_file = || {
        by_this_process()
            .find(|record| record.file_id == file_id && (record.record_type & 0x80 == 0) == physical)
    };
    let unit = |flag: u64| if flags & flag != 0 { 512 } else { 1 };
    let length = match length {
        Some(length) => length.checked_mul(unit(0x02))?,
        None => of_this_file()?.length,
    };
    let offset = match offset {
        Some(offset) => offset.checked_mul(unit(0x01))?,
        None => of_this_file().and_then(|record| record.offset.checked_add(record.length))?,
    };
    Some(TraceRecord {
        record_type,
        offset,
        length,
        start_time: since.checked_add(before.last().map_or(0, |record| record.start_time))?,
        completion_time,
        operation_id: operation.unwrap_or_else(|| of_this_file().map_or(0, |record| record.operation_id)),
        file_id,
        process_id,
        process_time,
    })
}

/// Decodes all lines; `None` for each incorrect one.
fn decode_all(text: &str, radix: u32) -> Vec<Option<TraceRecord>> {
    let mut before = Vec::new();
    let is_comment = |line: &str| {
        line.split_whitespace().next().is_none_or(|word| u64::from_str_radix(word, radix) == Ok(0xff))
    };
    text.lines()
        .filter(|line| !is_comment(line))
        .map(|line| {
            let record = decode(line, &before, radix);
            before.extend(record);
            record
        })
        .collect()
}

fn plain(record: &Record) -> TraceRecord {
    TraceRecord {
        record_type: record.kind.bits().into(),
        offset: record.offset,
        length: record.length,
        start_time: record.start,
        completion_time: record.took,
        operation_id: record.operation,
        file_id: record.file,
        process_id: record.process,
        process_time: record.process_time,
    }
}

fn read(text: &[u8], base: Base, mode: Mode) -> Vec<Result<Item, ReadError>> {
    Reader::new(text, base, mode).collect()
}

fn records(text: &[u8]) -> Vec<Record> {
    let items = read(text, Base::Hexadecimal, Mode::Strict).into_iter().map(Result::unwrap);
    items
        .filter_map(|item| match item {
            Item::Record(record) => Some(record),
            Item::Comment(_) => None,
        })
        .collect()
}

/// Returns small numbers, multiples of the block size, and any numbers.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..5, 3 => (0u64..5).prop_map(|n| n * 512), 2 => 0u64..1 << 33, 1 => any::<u64>()]
}

/// Returns a line with any combination of flags, valid or invalid. Few processes and files, so that
/// fields are derived from earlier records.
fn line(radix: u32) -> impl Strategy<Value = String> {
    let kind = prop_oneof![8 => any::<u8>().prop_map(|bits| bits & !0x04), 1 => any::<u8>()];
    let flags = prop_oneof![
        6 => any::<u8>().prop_map(|bits| bits & !0x10),
        2 => any::<u8>().prop_map(|bits| bits & !0x13),
        1 => any::<u8>()
    ];
    let small = 0u64..1000;
    let fields = (number(), number(), small.clone(), number(), 0u64..4, 0u64..3, 0u64..3, small, 0u8..24);
    (kind, flags, fields).prop_map(
        move |(kind, flags, (offset, length, since, took, operation, file, process, time, slip))| {
            let write = |number: u64| match radix {
                16 if number.is_multiple_of(2) => format!("{number:x}"),
                16 => format!("{number:X}"),
                _ => number.to_string(),
            };
            let mut words = vec![write(kind.into()), write(flags.into())];
            let fields = [
                (0x40, offset),
                (0x04, length),
                (0, since),
                (0, took),
                (0x20, operation),
                (0x80, file),
                (0x08, process),
                (0, time),
            ];
            let there = fields.into_iter().filter(|(left_out, _)| flags & left_out == 0);
            words.extend(there.map(|(_, value)| write(value)));
            match slip {
                0 => drop(words.pop()),
                1 => words.push("0".to_owned()),
                2 => words[2] = "x".to_owned(),
                3 => words.insert(0, "ff".to_owned()),
                _ => {}
            }
            words.join(if slip.is_multiple_of(2) { " " } else { "\t " })
        },
    )
}

/// Returns any record. Most have few processes and files; many sequential flags follow no access.
fn record() -> impl Strategy<Value = Record> {
    let kind = any::<u8>().prop_map(|bits| RecordType::from_bits(bits & !0x04).unwrap());
    (kind, number(), number(), 0u64..1 << 40, number(), 0u64..3, 0u64..40, 0u64..3, number()).prop_map(
        |(kind, offset, length, start, took, operation, file, process, process_time)| Record {
            kind,
            offset,
            length,
            start,
            took,
            operation,
            file,
            process,
            process_time,
        },
    )
}

/// Sorts records, and makes every other one sequential to the previous one of its file.
fn trace(mut records: Vec<Record>) -> Vec<Record> {
    records.sort_by_key(|record| record.start);
    for i in 1..records.len() {
        let of_file = |other: &Record| {
            (other.process, other.file, other.kind.is_logical())
                == (records[i].process, records[i].file, records[i].kind.is_logical())
        };
        if i.is_multiple_of(2)
            && let Some(before) = records[..i].iter().rev().find(|other| of_file(other)).copied()
        {
            records[i].offset = before.offset.saturating_add(before.length);
            records[i].length = before.length;
        }
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn reader_and_appendix_agree(hexadecimal in vec(line(16), 0..60), decimal in vec(line(10), 0..60)) {
        for (lines, base, radix) in [(hexadecimal, Base::Hexadecimal, 16), (decimal, Base::Decimal, 10)] {
            let text = lines.join("\n");
            let expected = decode_all(&text, radix);
            let found: Vec<_> = read(text.as_bytes(), base, Mode::Strict)
                .into_iter()
                .filter(|item| !matches!(item, Ok(Item::Comment(_))))
                .map(|item| match item {
                    Ok(Item::Record(record)) => Some(plain(&record)),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(found, expected, "{}", text);
        }
    }

    #[test]
    fn written_records_are_read_back(records in vec(record(), 0..80), allowed in any::<u8>()) {
        let trace = trace(records);
        for allowed in [compression::ALL, allowed & compression::ALL, 0] {
            let mut writer = Writer::with(Vec::new(), allowed);
            for record in &trace {
                writer.record(record).unwrap();
            }
            let bytes = writer.bytes();
            let text = writer.into_inner();
            prop_assert_eq!(bytes, text.len() as u64);
            prop_assert_eq!(&self::records(&text), &trace);
            let text = String::from_utf8(text).unwrap();
            let decoded: Option<Vec<_>> = decode_all(&text, 16).into_iter().collect();
            prop_assert_eq!(decoded, Some(trace.iter().map(plain).collect::<Vec<_>>()), "{}", text);
            let used = text.lines().fold(0, |used, line| {
                used | u8::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap()
            });
            prop_assert_eq!(used & !allowed, 0);
        }
    }
}

/// One record of a file after the other: every field that can be omitted is omitted, and lengths
/// and offsets are in blocks.
#[test]
fn every_compression_is_used_where_it_applies() {
    let kind = RecordType::from_bits(0x80).unwrap();
    let first = Record {
        kind,
        offset: 1024,
        length: 32768,
        start: 0,
        took: 16,
        operation: 0,
        file: 3,
        process: 0x4d2,
        process_time: 255,
    };
    let next = Record { offset: first.offset + first.length, start: 1000, ..first };
    let other = Record { file: 4, offset: 0, length: 100, start: 1001, operation: 9, ..first };
    let back = Record { offset: 7, length: 512, start: 1002, ..first };
    let physical = Record { kind: RecordType::from_bits(0x60).unwrap(), file: 1, start: 1002, ..first };
    let mut writer = Writer::new(Vec::new());
    for record in [first, next, other, back, physical] {
        writer.record(&record).unwrap();
    }
    let text = String::from_utf8(writer.into_inner()).unwrap();
    let expected = "80 23 2 40 0 10 3 4D2 FF\n\
                    80 EC 3E8 10 FF\n\
                    80 8 0 64 1 10 9 4 FF\n\
                    80 2A 7 1 1 10 3 FF\n\
                    60 8 400 8000 0 10 0 1 FF\n";
    assert_eq!(text, expected);
}

#[test]
fn damage_is_reported_with_its_line() {
    let text = b"FF a comment\n\n80 0 0 200 0 1 0 1 1 0\n80 0 0 2G0 0 1 0 1 1 0\n80 40 200 1\n84 EC 1 1 0\n80 FC 1 1 0\n\
        80 41 200 1 1 0 1 1 0\n0 C4 1 1 0 1 0\n80 EC FFFFFFFFFFFFFF00 1 0\n80 EC FFFF 1 0\n80 0 0 8000000000000000000 0 1 0 1 1 0\n\
        180 0 0 1 0 1 0 1 1 0\n";
    let found = read(text, Base::Hexadecimal, Mode::Strict);
    let damages: Vec<_> = found
        .iter()
        .filter_map(|item| match item {
            Err(ReadError::Damaged { line, damage }) => Some((*line, damage.to_string())),
            _ => None,
        })
        .collect();
    let expected = [
        (4, "field 4 is `2G0`; expected a number in hexadecimal"),
        (5, "4 fields; expected 9 with this compression field"),
        (6, "record type 84 has undefined bits"),
        (7, "compression FC has undefined bits"),
        (8, "compression 41 contradicts itself or the record type: the offset cannot be in blocks"),
        (9, "no length, and no earlier record to derive it from"),
        (11, "the start time does not fit 64 bits"),
        (12, "field 4 is `8000000000000000000`; expected a number in hexadecimal"),
        (13, "record type 180 has undefined bits"),
    ];
    let expected: Vec<_> = expected.map(|(line, text)| (line, text.to_owned())).into();
    assert_eq!(damages, expected);
    let good = found.iter().filter(|item| matches!(item, Ok(Item::Record(_)))).count();
    assert_eq!(good, 2, "lines 3 and 10");

    let mut lenient = Reader::new(&text[..], Base::Hexadecimal, Mode::Lenient);
    let good = lenient.by_ref().filter(|item| matches!(item, Ok(Item::Record(_)))).count();
    assert_eq!((good, lenient.oddities()), (5, 3), "lines 6, 7 and 8 as well");
}

#[test]
fn a_line_without_an_end_takes_no_memory() {
    let mut text = vec![b'8'; 1 << 20];
    text.extend_from_slice(b"\n80 0 0 200 0 1 0 1 1 0");
    let found = read(&text, Base::Hexadecimal, Mode::Strict);
    assert!(matches!(&found[0], Err(ReadError::Damaged { line: 1, damage: Damage::TooLong })));
    assert!(matches!(&found[1], Ok(Item::Record(record)) if record.length == 512));
    assert_eq!(found.len(), 2);
}

#[test]
fn comments_are_kept_and_do_not_change_state() {
    let mut writer = Writer::new(Vec::new());
    let record = Record {
        kind: RecordType::from_bits(0xc8).unwrap(),
        offset: 0,
        length: 1,
        start: 5,
        took: 2,
        operation: 0,
        file: 1,
        process: 1,
        process_time: 3,
    };
    writer.record(&record).unwrap();
    writer.comment(b"file=1 /a b\xff\nsecond").unwrap();
    writer.record(&Record { offset: 1, start: 6, ..record }).unwrap();
    let text = writer.into_inner();
    assert!(text.ends_with(b"FF file=1 /a b\xff\nFF second\nC8 EC 1 2 3\n"), "{}", text.escape_ascii());
    let items: Vec<_> =
        read(&text, Base::Hexadecimal, Mode::Strict).into_iter().map(Result::unwrap).collect();
    assert_eq!(items[1], Item::Comment(b"file=1 /a b\xff".to_vec()));
    assert_eq!(items[3], Item::Record(Record { offset: 1, start: 6, ..record }));
}

#[test]
fn records_out_of_order_are_refused() {
    let mut writer = Writer::new(Vec::new());
    let record = Record {
        kind: RecordType::from_bits(0x80).unwrap(),
        offset: 0,
        length: 1,
        start: 5,
        took: 2,
        operation: 0,
        file: 1,
        process: 1,
        process_time: 3,
    };
    writer.record(&record).unwrap();
    assert!(writer.record(&Record { start: 4, ..record }).is_err());
    assert_eq!(records(&writer.into_inner()), [record]);
}

//! Golden bytes: layouts and numbers on which other processes, nodes and releases rely.
//!
//! Each test compares the output of this version with a file in `tests/golden/`. A changed line
//! means that this version is incompatible with existing producers, nodes or traces: raise the
//! major version, or do not make the change. A new line (a new operation or message) is fine: run
//! the test once with `MIOT_BLESS=1`, and review the diff.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod samples;

use miot_proto::batch::{self, Columns};
use miot_proto::event::{self, RecordKind};
use miot_proto::wire::{self, Message};
use miot_proto::{control, op, segment};
use std::fmt::Write as _;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn path(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn frozen(name: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    text.lines()
        .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("{name}: {line}")))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn check(name: &str, current: &[(String, String)]) {
    if std::env::var_os("MIOT_BLESS").is_some() {
        let text: String = current.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        std::fs::write(path(name), text).unwrap();
    }
    let mut differences = String::new();
    let frozen = frozen(name);
    for (key, value) in &frozen {
        match current.iter().find(|(k, _)| k == key) {
            Some((_, found)) if found == value => {}
            Some((_, found)) => _ = writeln!(differences, "{key}:\n  frozen {value}\n  now    {found}"),
            None => _ = writeln!(differences, "{key}: missing"),
        }
    }
    for (key, value) in current.iter().filter(|(key, _)| !frozen.iter().any(|(k, _)| k == key)) {
        let _ = writeln!(differences, "{key}: new, not in tests/golden/{name}: {value}");
    }
    assert!(differences.is_empty(), "{name} changed\n{differences}");
}

#[test]
fn operation_numbers_and_names_are_frozen() {
    let current: Vec<_> = op::all_operations()
        .map(|row| {
            let layer = op::Layer::from_number(row.op.layer).unwrap();
            let meaning = format!(
                "{} paths={} args={:?} result={:?}",
                row.class.name(),
                row.paths,
                row.args,
                row.result
            );
            (format!("{}:{}:{}:{}", row.op.layer, layer.name(), row.op.number, row.name), meaning)
        })
        .collect();
    check("operations.txt", &current);
}

#[test]
fn event_records_are_frozen() {
    let current: Vec<_> =
        samples::records().into_iter().map(|(name, bytes)| (name.to_owned(), hex(&bytes))).collect();
    check("events.txt", &current);
}

#[test]
fn frozen_event_records_decode() {
    for (name, text) in frozen("events.txt") {
        let bytes = unhex(&text);
        let slot: event::Slot =
            std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap()));
        assert_eq!(event::slots_of(&slot) * event::SLOT_BYTES, bytes.len(), "{name}");
        assert!(RecordKind::from_number(event::kind_of(&slot)).is_some(), "{name}");
        assert_eq!(event::attempt_of(&slot), samples::ATTEMPT, "{name}");
        let (event, ext) = samples::expected(&name);
        assert_eq!(event::Event::from_slot(&slot), event, "{name}");
        if let Some(ext) = ext {
            assert_eq!(event::ext_from_bytes(&bytes[event::SLOT_BYTES..]), Some(ext), "{name}");
        }
    }
}

#[test]
fn layouts_are_frozen() {
    let mut current = Vec::new();
    let mut put = |key: &str, value: u64| current.push((key.to_owned(), value.to_string()));
    macro_rules! words {
        ($prefix:literal, $module:path, $($name:ident)*) => {{
            use $module as module;
            $(put(concat!($prefix, ".", stringify!($name)), module::$name as u64);)*
        }};
    }
    words!("event", event, WORDS SLOT_BYTES MAX_PATH MAX_SLOTS NONE);
    words!("kind", event::RecordKind, Request File);
    words!("flag", event::flag, PATH_CUT OFFSET_QUERIED ASYNC INTERRUPTED APPEND DIRECT DURATION_SATURATED LATE OP_SHIFT MOVED TIE);
    words!("layer", op::Layer, App MpiIo Stdio Posix Fuse Client Block);
    words!("segment", segment, MAGIC MAJOR MINOR HEADER_BYTES LANE_BYTES MAX_LANES SLOTS_OFFSET MIN_LANE_SLOTS
        MAX_LANE_SLOTS MAX_SEGMENT_BYTES HEADER_STRINGS);
    words!("header", segment::header, MAGIC VERSION NONCE PID PPID CLOCK CREATED_TICKS CREATED_BOOT_NS LANES
        LOST_NO_LANE RANK UID CLOSED PID_NAMESPACE PENDING PENDING_USED STRINGS);
    words!("segment", segment, PENDING_ENTRIES PENDING_BYTES);
    words!("pending", segment::pending, REQUEST BEGIN HANDLE OFFSET LENGTH THREADS PATH PATH_BYTES RESERVED);
    put("pending.word", segment::pending::word(op::posix::READ, 7));
    put("batch.REFUSED", u64::from(batch::REFUSED));
    words!("lane", segment::lane, TAIL LOST_FULL LOST_NESTED ATTEMPTS IN_FLIGHT ENCLOSING OLDEST
        FILTERED STATE TID SLOTS_AT SLOTS START CLAIMED_TICKS COMM HEAD DRAINED);
    words!("in_flight", segment::in_flight, REQUEST BEGIN HANDLE OFFSET LENGTH);
    put("in_flight.stamped", segment::in_flight::word(op::posix::READ, 7, Some(70_000)));
    put("in_flight.unstamped", segment::in_flight::word(op::posix::READ, 7, None));
    put("control.op_bit", {
        let (word, bit) = control::op_bit(op::posix::READ);
        (word as u64) << 8 | u64::from(bit)
    });
    words!("lane_state", segment::LaneState, Free Claimed Retired);
    words!("clock", segment::Clock, Tsc MonotonicRaw);
    words!("control", control, BYTES MAGIC);
    words!("control", control::word, ENABLED LAYERS WHEN_FULL WAIT_NS LANE_SLOTS LANE_SLOTS_MAX PROCESS_BYTES
        READER_PID SWEEPS SLEEPING CLOSED OVERWRITES FILTER MIN_TSC MIN_NS SAMPLE FLIGHT_RECORDER SNAPSHOT
        SNAPSHOT_DONE SNAPSHOT_EVENTS TSC_HZ NODE_FULL EXCEPTIONS EXCEPTED OPS EXCEPTION LEFT_OUT_BYTES
        LEFT_OUT);
    words!("exception", control::exception, KIND KEY ENABLED LAYERS MIN_TSC MIN_NS SAMPLE CHOSEN);
    put("exception.job_key", control::job_key(b"4711"));
    put("exception.bit", {
        let (word, bit) = control::exception_bit(op::posix::READ);
        (word as u64) << 8 | u64::from(bit)
    });
    words!("when_full", control::WhenFull, DropNewest Wait OverwriteOldest);
    words!("wire", wire, MAX_FRAME MAX_HELLO FRAME_HEADER DEFAULT_PORT);
    put("wire.VERSION.major", u64::from(wire::VERSION.major));
    put("wire.GREETING", u64::from_le_bytes(wire::GREETING));
    current.push(("names.control".to_owned(), format!("{} {}", control::FILE, control::DIR_ENV)));
    current.push(("names.segment".to_owned(), segment::SUFFIX.to_owned()));
    check("layouts.txt", &current);
}

/// Strings of a segment header: their positions and the encoding of their lengths.
#[test]
fn header_strings_are_frozen() {
    let mut page = [0u8; segment::HEADER_BYTES];
    let bytes = unhex("02002f78 0300610062 0000 04002f746d70".replace(' ', "").as_str());
    page[segment::header::STRINGS..][..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(segment::strings(&page), [b"/x".as_slice(), b"a\0b", b"", b"/tmp"]);
}

/// LZ4 compressors may differ. The uncompressed bytes must not change, and frozen bytes must
/// decode.
#[test]
fn batches_are_frozen() {
    let columns = samples::columns();
    let (mut scratch, mut packed) = (Vec::new(), Vec::new());
    columns.encode(&mut scratch, &mut packed);
    let size = u32::from_le_bytes(packed[..4].try_into().unwrap()) as usize;
    let plain = scratch[..size].to_vec();
    let current = [("packed", &packed), ("plain", &plain)].map(|(key, bytes)| (key.to_owned(), hex(bytes)));
    let expected = match std::env::var_os("MIOT_BLESS") {
        Some(_) => current.to_vec(),
        None => vec![frozen("batch.txt").swap_remove(0), current[1].clone()],
    };
    check("batch.txt", &expected);
    assert_eq!(expected[0].0, "packed");
    assert_eq!(Columns::decode(&unhex(&expected[0].1)).as_ref(), Ok(&columns));
    assert_eq!(Columns::decode(&packed).as_ref(), Ok(&columns));
}

#[test]
fn messages_are_frozen() {
    let current: Vec<_> =
        samples::messages().iter().map(|(name, m)| ((*name).to_owned(), hex(&m.frame()))).collect();
    check("messages.txt", &current);
}

#[test]
fn frozen_messages_decode() {
    for ((name, text), (_, message)) in frozen("messages.txt").iter().zip(samples::messages()) {
        let bytes = unhex(text);
        let (header, payload) = bytes.split_first_chunk::<{ wire::FRAME_HEADER }>().unwrap();
        let (length, crc) = wire::frame_header(*header, wire::MAX_FRAME).unwrap();
        assert_eq!(length, payload.len(), "{name}");
        assert_eq!(Message::from_payload(payload, crc), Ok(message), "{name}");
    }
}

#[test]
fn http_peer_is_recognized() {
    let response = b"HTTP/1.1 400";
    let error = wire::frame_header(*response, wire::MAX_FRAME).unwrap_err().to_string();
    assert!(error.contains("but HTTP") && error.contains("`listen`"), "{error}");
}

//! Byte layout of a spool file.
//!
//! **Do not add, remove or reorder fields: a log-client reads the files of its predecessor.**
//!
//! ```text
//! 0   magic, 8 bytes            MIOTSPL3
//! 8   boot id of the node, u128
//! 24  number of the first numbered message, u64
//! 32  salt, u128: a random number
//! 48  CRC-32C of bytes 0..48, as u64
//! 56  the last watermark, i64, nanoseconds since 1970: overwritten repeatedly
//! 64  CRC-32C of bytes 56..64, as u64; another value without a watermark
//! 72  frames of miot_proto::wire, each with its own checksum:
//!     Hello                     node and session
//!     Process, Stream           with number 0: the definitions in force at the start
//!     numbered messages         in order, with Heartbeat between them
//!     mark, copies              every 64 KiB, and at the end of the file
//! ```
//!
//! A mark is a frame with the payload `0xff, salt`. It is followed by copies of all numbered
//! messages since the previous mark except batches. After a damaged frame, reading continues at the
//! next mark, and only batches in between are lost. Bytes from traced programs (e.g. file names)
//! may look like a frame, but only the log-client knows the salt.

use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, frame_header, frame_header_of};

const MAGIC: [u8; 8] = *b"MIOTSPL3";
/// Bytes before the first frame.
pub(super) const HEADER: u64 = 72;
/// Offset of the last watermark.
pub(super) const WATERMARK_AT: u64 = 56;
const SUFFIX: &str = ".spool";
/// Suffix of the ledger beside a file, see [`super::ledger`].
const LEDGER_SUFFIX: &str = ".ledger";
/// Digits in the name of a file: enough for any u64.
const DIGITS: usize = 20;

/// Tags of the numbered messages: `Process` to `ProcessEnd`, `GivenUp`, `Devices` and `Resume`.
const NUMBERED: std::ops::RangeInclusive<u8> = 3..=7;
const GIVEN_UP: u8 = 16;
const DEVICES: u8 = 23;
const RESUME: u8 = 25;
/// Tag of `Batch`.
const BATCH: u8 = 5;
/// Tag of a mark; no message has it.
const MARK: u8 = 0xff;
/// Tag of `Hello`.
const HELLO: u8 = 0;

/// Header before the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Boot id of the node when the file was created.
    pub(super) boot: u128,
    /// Number of the first numbered message.
    pub(super) first: u64,
    /// Random number that only the log-client knows.
    pub(super) salt: u128,
}

impl Header {
    pub(super) fn bytes(self) -> [u8; HEADER as usize] {
        let mut bytes = [0; HEADER as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.boot.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.salt.to_le_bytes());
        let sum = sum(&bytes[..48]);
        bytes[48..56].copy_from_slice(&sum);
        bytes[64..].copy_from_slice(&[0xff; 8]);
        bytes
    }

    pub(super) fn read(bytes: &[u8; HEADER as usize]) -> Option<Header> {
        if !bytes.starts_with(&MAGIC) || bytes[48..56] != sum(&bytes[..48]) {
            return None;
        }
        Some(Header {
            boot: u128::from_le_bytes(*bytes[8..].first_chunk()?),
            first: u64::from_le_bytes(*bytes[24..].first_chunk()?),
            salt: u128::from_le_bytes(*bytes[32..].first_chunk()?),
        })
    }
}

/// The bytes of a watermark at [`WATERMARK_AT`].
pub(super) fn watermark_bytes(watermark: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&watermark.to_le_bytes());
    let sum = sum(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum);
    bytes
}

/// The last watermark in the header of a file; `None` if its checksum is wrong.
pub(super) fn read_watermark(head: &[u8; HEADER as usize]) -> Option<i64> {
    let at = WATERMARK_AT as usize;
    let watermark = i64::from_le_bytes(*head[at..].first_chunk()?);
    (head[at..] == watermark_bytes(watermark)).then_some(watermark)
}

fn sum(bytes: &[u8]) -> [u8; 8] {
    u64::from(crc32c::crc32c(bytes)).to_le_bytes()
}

/// The frame of a mark.
pub(super) fn mark(salt: u128) -> [u8; FRAME_HEADER + 17] {
    let mut bytes = [0; FRAME_HEADER + 17];
    bytes[FRAME_HEADER] = MARK;
    bytes[FRAME_HEADER + 1..].copy_from_slice(&salt.to_le_bytes());
    let header = frame_header_of(&bytes[FRAME_HEADER..]);
    bytes[..FRAME_HEADER].copy_from_slice(&header);
    bytes
}

/// Name of the file with this number.
pub(super) fn name(file: u64) -> String {
    format!("{file:0DIGITS$}{SUFFIX}")
}

/// Name of the ledger of the file with this number.
pub(super) fn ledger_name(file: u64) -> String {
    format!("{file:0DIGITS$}{LEDGER_SUFFIX}")
}

/// The number in the name of a spool file; `None` for other names.
pub(super) fn parse_name(name: &[u8]) -> Option<u64> {
    parse(name, SUFFIX)
}

/// The number in the name of a ledger; `None` for other names.
pub(super) fn parse_ledger_name(name: &[u8]) -> Option<u64> {
    parse(name, LEDGER_SUFFIX)
}

fn parse(name: &[u8], suffix: &str) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok()?.strip_suffix(suffix)?;
    let sound = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| sound)
}

/// The start of a byte sequence, parsed as a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FramePrefix<'a> {
    /// A whole frame, and the bytes after it.
    Frame(Frame<'a>, &'a [u8]),
    /// The start of a frame of this many bytes.
    Incomplete(usize),
    /// Not a frame that a log-client wrote.
    Invalid,
}

/// A frame with a valid checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// The whole frame.
    pub(super) bytes: &'a [u8],
    /// The encoded message.
    pub(super) payload: &'a [u8],
    /// Checksum of the payload.
    pub(super) crc: u32,
}

impl<'a> FramePrefix<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> FramePrefix<'a> {
        let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
            return FramePrefix::Incomplete(FRAME_HEADER);
        };
        let Ok((length, crc)) = frame_header(*header, MAX_FRAME) else { return FramePrefix::Invalid };
        match rest.split_at_checked(length) {
            // No message is empty, but a file that lost its end in a power failure may continue
            // with zeros.
            _ if length == 0 => FramePrefix::Invalid,
            None => FramePrefix::Incomplete(FRAME_HEADER + length),
            Some((payload, _)) if crc32c::crc32c(payload) != crc => FramePrefix::Invalid,
            Some((payload, rest)) => {
                FramePrefix::Frame(Frame { bytes: &bytes[..FRAME_HEADER + length], payload, crc }, rest)
            }
        }
    }
}

impl Frame<'_> {
    /// The number of a numbered message, without decoding the message.
    pub(super) fn number(self) -> Option<u64> {
        let (tag, rest) = self.payload.split_first()?;
        let is_numbered = NUMBERED.contains(tag) || [GIVEN_UP, DEVICES, RESUME].contains(tag);
        varint(rest).map(|(number, _)| number).filter(|_| is_numbered)
    }

    /// The stream of a `Batch` or `GivenUp` message, without decoding the message.
    pub(super) fn stream(self) -> Option<u32> {
        let (tag, rest) = self.payload.split_first()?;
        let (_, rest) = varint(rest)?;
        let stream = varint(rest).and_then(|(stream, _)| u32::try_from(stream).ok());
        stream.filter(|_| [BATCH, GIVEN_UP].contains(tag))
    }

    /// Device samples are dropped without a report when the spool is full: the trace shows the
    /// missing intervals.
    pub(super) fn is_sample(self) -> bool {
        self.payload.first() == Some(&DEVICES)
    }

    pub(super) fn is_mark(self) -> bool {
        self.payload.first() == Some(&MARK)
    }

    pub(super) fn is_hello(self) -> bool {
        self.payload.first() == Some(&HELLO)
    }

    /// Batches are nearly all of the spooled bytes, and most readers skip them.
    pub(super) fn is_batch(self) -> bool {
        self.payload.first() == Some(&BATCH)
    }
}

/// Decodes a number in postcard's encoding (LEB128); returns it and the bytes after it.
fn varint(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((number, rest));
        }
        bytes = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::samples;
    use miot_proto::wire::{DeviceSample, Message, ProcessKey, ProcessLoss, Resume};

    fn number(message: &Message) -> Option<u64> {
        let bytes = message.frame();
        let FramePrefix::Frame(frame, []) = FramePrefix::of(&bytes) else { panic!("{message:?}") };
        assert_eq!(frame.is_batch(), matches!(message, Message::Batch { .. }));
        assert_eq!(frame.is_sample(), matches!(message, Message::Devices { .. }));
        let of_stream = matches!(message, Message::Batch { .. } | Message::GivenUp { .. });
        assert_eq!(frame.stream(), of_stream.then_some(7));
        assert!(!frame.is_mark());
        frame.number()
    }

    #[test]
    fn mark_is_a_frame_and_not_a_message() {
        let bytes = mark(u128::MAX / 3);
        let FramePrefix::Frame(frame, []) = FramePrefix::of(&bytes) else { panic!("{bytes:?}") };
        assert!(frame.is_mark() && frame.number().is_none() && frame.bytes == bytes);
        assert!(Message::from_payload(frame.payload, frame.crc).is_err(), "not a message");
    }

    #[test]
    fn message_number_is_read_without_decoding() {
        let key = ProcessKey { boot: u128::MAX, nonce: 2, pid: 3 };
        let (process, stream) = (samples::process(key), samples::stream(7, key, 1));
        let end = samples::stream_end(7, 1, 0);
        let sample = DeviceSample { boot: 1, uptime: 2, time: 3, interval: 4, devices: Vec::new() };
        for seq in [0, 1, 127, 128, 1 << 40, u64::MAX] {
            let lost = ProcessLoss::default();
            for message in [
                Message::Process { seq, process: process.clone() },
                Message::Stream { seq, stream: stream.clone() },
                Message::Batch { seq, stream: 7, after: 1, columns: vec![1; 100] },
                Message::StreamEnd { seq, end },
                Message::ProcessEnd { seq, key, time: 1, lost },
                Message::GivenUp { seq, stream: 7, after: 1, ranges: vec![(1, 2)], time: 3 },
                Message::Devices { seq, sample: sample.clone() },
                Message::Resume { seq, resume: Resume::Process { key, no_lane: 1, time: 2 } },
            ] {
                assert_eq!(number(&message), Some(seq), "{message:?}");
            }
        }
        for message in [Message::Heartbeat { watermark: 5 }, Message::Ack { through: 5 }, Message::Bye] {
            assert_eq!(number(&message), None);
        }
    }

    #[test]
    fn incomplete_frames_differ_from_invalid_ones() {
        let bytes = Message::Heartbeat { watermark: 5 }.frame();
        assert!(matches!(FramePrefix::of(&bytes), FramePrefix::Frame(_, [])));
        for length in 0..bytes.len() {
            assert!(
                matches!(FramePrefix::of(&bytes[..length]), FramePrefix::Incomplete(all) if all > length)
            );
        }
        let mut flipped = bytes.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(FramePrefix::of(&flipped), FramePrefix::Invalid);
        assert_eq!(FramePrefix::of(&[0; 100]), FramePrefix::Invalid);
        assert_eq!(FramePrefix::of(&[0xff; 100]), FramePrefix::Invalid);
    }

    #[test]
    fn headers_and_names_round_trip() {
        let header = Header { boot: 1 << 100, first: 42, salt: 7 << 90 };
        let mut bytes = header.bytes();
        assert_eq!(Header::read(&bytes), Some(header));
        bytes[24] ^= 1;
        assert_eq!(Header::read(&bytes), None);
        assert_eq!(read_watermark(&bytes), None);
        for watermark in [0, -1, i64::MAX] {
            bytes[WATERMARK_AT as usize..].copy_from_slice(&watermark_bytes(watermark));
            assert_eq!(read_watermark(&bytes), Some(watermark));
        }
        bytes[WATERMARK_AT as usize] ^= 1;
        assert_eq!(read_watermark(&bytes), None);
        assert_eq!(parse_name(name(u64::MAX).as_bytes()), Some(u64::MAX));
        for odd in ["42.spool", "lock", "0000000000000000004x.spool", "99999999999999999999.spool"] {
            assert_eq!(parse_name(odd.as_bytes()), None, "{odd}");
        }
    }
}

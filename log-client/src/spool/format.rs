//! The bytes of a spool file.
//!
//! **Do not add, remove or reorder fields: a log-client reads what the one before it wrote.**
//!
//! ```text
//! 0   magic, 8 bytes            MIOTSPL3
//! 8   boot id of the node, u128
//! 24  number of the first numbered message, u64
//! 32  salt, u128: a random number
//! 48  CRC-32C of bytes 0..48, as u64
//! 56  the last promise, i64, nanoseconds since 1970: written again and again
//! 64  CRC-32C of bytes 56..64, as u64; another number if there is no promise
//! 72  frames, as miot_proto::wire has them, each with its own checksum:
//!     Hello                     node and session
//!     Process, Stream           with number 0: the definitions in force where the file begins
//!     numbered messages         one after the other, with Heartbeat between them
//!     mark, copies              every 64 KiB, and where the file ends
//! ```
//!
//! A mark is a frame with the payload `0xff, salt`, and is followed by copies of all numbered messages since the mark
//! before it but the batches. Where a frame is damaged, reading goes on at the next mark: nothing in between is lost
//! but batches. What comes from traced programs (names of files, say) may look like a frame, but nobody else
//! knows the salt.

use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, frame_header, frame_header_of};

const MAGIC: [u8; 8] = *b"MIOTSPL3";
/// Bytes before the first frame.
pub(super) const HEADER: u64 = 72;
/// Place of the last promise.
pub(super) const PROMISE: u64 = 56;
const SUFFIX: &str = ".spool";
/// Of the file beside it, see [`super::ledger`].
const LEDGER_SUFFIX: &str = ".ledger";
/// Digits in the name of a file: those of the largest number.
const DIGITS: usize = 20;

/// Tags of the messages that carry a number, `Process` to `ProcessEnd`, `GivenUp` and `Devices`.
const NUMBERED: std::ops::RangeInclusive<u8> = 3..=7;
const GIVEN_UP: u8 = 16;
const DEVICES: u8 = 23;
/// Tag of `Batch`.
const BATCH: u8 = 5;
/// Of no message.
const MARK: u8 = 0xff;
/// Tag of `Hello`.
const HELLO: u8 = 0;

/// What stands before the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Boot id of the node when the file was made.
    pub(super) boot: u128,
    /// Number of the first numbered message.
    pub(super) first: u64,
    /// Known to nobody else.
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

/// A promise as it stands at [`PROMISE`].
pub(super) fn promise(watermark: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&watermark.to_le_bytes());
    let sum = sum(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum);
    bytes
}

/// The last promise in the head of a file.
pub(super) fn promised(head: &[u8; HEADER as usize]) -> Option<i64> {
    let at = PROMISE as usize;
    let watermark = i64::from_le_bytes(*head[at..].first_chunk()?);
    (head[at..] == promise(watermark)).then_some(watermark)
}

fn sum(bytes: &[u8]) -> [u8; 8] {
    u64::from(crc32c::crc32c(bytes)).to_le_bytes()
}

/// A mark: a whole frame.
pub(super) fn mark(salt: u128) -> [u8; FRAME_HEADER + 17] {
    let mut bytes = [0; FRAME_HEADER + 17];
    bytes[FRAME_HEADER] = MARK;
    bytes[FRAME_HEADER + 1..].copy_from_slice(&salt.to_le_bytes());
    let header = frame_header_of(&bytes[FRAME_HEADER..]);
    bytes[..FRAME_HEADER].copy_from_slice(&header);
    bytes
}

/// Name of the file of this number.
pub(super) fn name(file: u64) -> String {
    format!("{file:0DIGITS$}{SUFFIX}")
}

/// Name of the ledger of the file of this number.
pub(super) fn ledger_name(file: u64) -> String {
    format!("{file:0DIGITS$}{LEDGER_SUFFIX}")
}

/// The number in a file's name, if it is one of ours.
pub(super) fn parse_name(name: &[u8]) -> Option<u64> {
    parse(name, SUFFIX)
}

/// The same of the name of a ledger.
pub(super) fn parse_ledger_name(name: &[u8]) -> Option<u64> {
    parse(name, LEDGER_SUFFIX)
}

fn parse(name: &[u8], suffix: &str) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok()?.strip_suffix(suffix)?;
    let sound = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| sound)
}

/// What a run of bytes begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begins<'a> {
    /// A whole frame, with its payload and what follows it.
    Frame(Frame<'a>, &'a [u8]),
    /// A frame of so many bytes, of which not all are there.
    Part(usize),
    /// Something that no log-client wrote there.
    Nonsense,
}

/// A frame whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// All of it.
    pub(super) bytes: &'a [u8],
    /// The message.
    pub(super) payload: &'a [u8],
    /// Its checksum.
    pub(super) crc: u32,
}

impl<'a> Begins<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Begins<'a> {
        let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
            return Begins::Part(FRAME_HEADER);
        };
        let Ok((length, crc)) = frame_header(*header, MAX_FRAME) else { return Begins::Nonsense };
        match rest.split_at_checked(length) {
            // No message is empty, but a file that lost its end in a power failure may go on with zeros.
            _ if length == 0 => Begins::Nonsense,
            None => Begins::Part(FRAME_HEADER + length),
            Some((payload, _)) if crc32c::crc32c(payload) != crc => Begins::Nonsense,
            Some((payload, rest)) => {
                Begins::Frame(Frame { bytes: &bytes[..FRAME_HEADER + length], payload, crc }, rest)
            }
        }
    }
}

impl Frame<'_> {
    /// The number of a message that carries one, without decoding the message.
    pub(super) fn number(self) -> Option<u64> {
        let (tag, rest) = self.payload.split_first()?;
        let is_numbered = NUMBERED.contains(tag) || [GIVEN_UP, DEVICES].contains(tag);
        varint(rest).map(|(number, _)| number).filter(|_| is_numbered)
    }

    /// The stream of a batch or of what was given up, without decoding it.
    pub(super) fn stream(self) -> Option<u32> {
        let (tag, rest) = self.payload.split_first()?;
        let (_, rest) = varint(rest)?;
        let stream = varint(rest).and_then(|(stream, _)| u32::try_from(stream).ok());
        stream.filter(|_| [BATCH, GIVEN_UP].contains(tag))
    }

    /// Given up without a word when the spool is full: the trace shows the time that is missing.
    pub(super) fn is_sample(self) -> bool {
        self.payload.first() == Some(&DEVICES)
    }

    pub(super) fn is_mark(self) -> bool {
        self.payload.first() == Some(&MARK)
    }

    pub(super) fn is_hello(self) -> bool {
        self.payload.first() == Some(&HELLO)
    }

    /// Nearly all that is spooled, and of no interest here.
    pub(super) fn is_batch(self) -> bool {
        self.payload.first() == Some(&BATCH)
    }
}

/// A number as postcard writes it (LEB128), and what follows it.
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
    use crate::testing::made;
    use miot_proto::wire::{Message, ProcessKey, ProcessLoss, Sample};

    fn number(message: &Message) -> Option<u64> {
        let bytes = message.frame();
        let Begins::Frame(frame, []) = Begins::of(&bytes) else { panic!("{message:?}") };
        assert_eq!(frame.is_batch(), matches!(message, Message::Batch { .. }));
        assert_eq!(frame.is_sample(), matches!(message, Message::Devices { .. }));
        let of_stream = matches!(message, Message::Batch { .. } | Message::GivenUp { .. });
        assert_eq!(frame.stream(), of_stream.then_some(7));
        assert!(!frame.is_mark());
        frame.number()
    }

    #[test]
    fn a_mark_is_a_frame() {
        let bytes = mark(u128::MAX / 3);
        let Begins::Frame(frame, []) = Begins::of(&bytes) else { panic!("{bytes:?}") };
        assert!(frame.is_mark() && frame.number().is_none() && frame.bytes == bytes);
        assert!(Message::from_payload(frame.payload, frame.crc).is_err(), "no message is one");
    }

    #[test]
    fn the_number_of_a_message_is_found_without_decoding_it() {
        let key = ProcessKey { boot: u128::MAX, nonce: 2, pid: 3 };
        let (process, stream) = (made::process(key), made::stream(7, key, 1));
        let end = made::stream_end(7, 1, 0);
        let sample = Sample { boot: 1, uptime: 2, time: 3, interval: 4, devices: Vec::new() };
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
            ] {
                assert_eq!(number(&message), Some(seq), "{message:?}");
            }
        }
        for message in [Message::Heartbeat { watermark: 5 }, Message::Ack { through: 5 }, Message::Bye] {
            assert_eq!(number(&message), None);
        }
    }

    #[test]
    fn what_is_not_whole_is_told_from_what_is_wrong() {
        let bytes = Message::Heartbeat { watermark: 5 }.frame();
        assert!(matches!(Begins::of(&bytes), Begins::Frame(_, [])));
        for length in 0..bytes.len() {
            assert!(matches!(Begins::of(&bytes[..length]), Begins::Part(all) if all > length));
        }
        let mut flipped = bytes.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(Begins::of(&flipped), Begins::Nonsense);
        assert_eq!(Begins::of(&[0; 100]), Begins::Nonsense);
        assert_eq!(Begins::of(&[0xff; 100]), Begins::Nonsense);
    }

    #[test]
    fn headers_and_names_are_read_back() {
        let header = Header { boot: 1 << 100, first: 42, salt: 7 << 90 };
        let mut bytes = header.bytes();
        assert_eq!(Header::read(&bytes), Some(header));
        bytes[24] ^= 1;
        assert_eq!(Header::read(&bytes), None);
        assert_eq!(promised(&bytes), None);
        for watermark in [0, -1, i64::MAX] {
            bytes[PROMISE as usize..].copy_from_slice(&promise(watermark));
            assert_eq!(promised(&bytes), Some(watermark));
        }
        bytes[PROMISE as usize] ^= 1;
        assert_eq!(promised(&bytes), None);
        assert_eq!(parse_name(name(u64::MAX).as_bytes()), Some(u64::MAX));
        for odd in ["42.spool", "lock", "0000000000000000004x.spool", "99999999999999999999.spool"] {
            assert_eq!(parse_name(odd.as_bytes()), None, "{odd}");
        }
    }
}

//! Packets and events as bytes: little endian, without alignment.

use miot_trace_events::row::{ColumnType, Value};

const MAGIC: u32 = 0xC1FC_1FC1;
/// Size of the header in bytes: magic, UUID, stream class, stream; begin, end, content, size,
/// number, lost.
const HEADER: usize = 4 + 16 + 4 + 8 + 6 * 8;

/// Fields of a packet header.
#[derive(Clone, Copy)]
pub(super) struct Header<'a> {
    pub(super) uuid: &'a [u8; 16],
    pub(super) stream: u64,
    pub(super) number: u64,
    /// Events lost in the stream up to the end of the packet.
    pub(super) lost: u64,
}

/// Events of a future packet, behind space for the header.
#[derive(Debug, Default)]
pub(super) struct Packet {
    bytes: Vec<u8>,
    begin: Option<u64>,
    end: u64,
}

impl Packet {
    pub(super) fn push(&mut self, time: u64, event: &[u8]) {
        if self.bytes.is_empty() {
            self.bytes.resize(HEADER, 0);
        }
        self.begin.get_or_insert(time);
        self.end = time;
        self.bytes.extend_from_slice(event);
    }

    /// Returns the size of the events in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len().saturating_sub(HEADER)
    }

    /// Returns a packet without events, at this time.
    pub(super) fn empty(time: u64) -> Packet {
        Packet { bytes: Vec::new(), begin: Some(time), end: time }
    }

    pub(super) fn begin(&self) -> u64 {
        self.begin.unwrap_or(self.end)
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn end_at(&mut self, time: u64) {
        self.begin.get_or_insert(time);
        self.end = time;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.begin = None;
    }

    /// Returns all bytes of the packet.
    pub(super) fn close(&mut self, header: &Header<'_>) -> &[u8] {
        if self.bytes.is_empty() {
            self.bytes.resize(HEADER, 0);
        }
        let bits = 8 * self.bytes.len() as u64;
        let begin = self.begin();
        let mut head = Vec::with_capacity(HEADER);
        head.extend_from_slice(&MAGIC.to_le_bytes());
        head.extend_from_slice(header.uuid);
        head.extend_from_slice(&0u32.to_le_bytes());
        for word in [header.stream, begin, self.end, bits, bits, header.number, header.lost] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        self.bytes[..HEADER].copy_from_slice(&head);
        &self.bytes
    }
}

/// Appends the header of an event: its type and its time.
pub(super) fn event_header(to: &mut Vec<u8>, number: u32, time: u64) {
    to.extend_from_slice(&number.to_le_bytes());
    to.extend_from_slice(&time.to_le_bytes());
}

/// Sets the type of an event, which is known after its fields.
pub(super) fn set_type(event: &mut [u8], number: u32) {
    event[..4].copy_from_slice(&number.to_le_bytes());
}

/// Appends a field.
pub(super) fn field(to: &mut Vec<u8>, column_type: ColumnType, value: &Value<'_>) {
    match (value, column_type) {
        (Value::Time(number) | Value::Signed(number), _) => to.extend_from_slice(&number.to_le_bytes()),
        (Value::Unsigned(number), ColumnType::Unsigned(bits)) => {
            to.extend_from_slice(&number.to_le_bytes()[..usize::from(bits / 8)]);
        }
        (Value::Unsigned(number), _) => to.extend_from_slice(&number.to_le_bytes()),
        (Value::Text(text), _) => {
            // A string ends with its first zero.
            for (i, piece) in text.split('\0').enumerate() {
                to.extend_from_slice(if i > 0 { b"\\x00" } else { b"" });
                to.extend_from_slice(piece.as_bytes());
            }
            to.push(0);
        }
    }
}

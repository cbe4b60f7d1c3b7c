//! Header of a message, which is followed by bytes of the connection. All numbers are little
//! endian.
//!
//! ```text
//! offset  bytes
//!      0      8  number of the connection, random
//!      8      8  index of the message in its direction of the connection, from 0
//!     16      8  bytes of the other direction that this side has read (0 in messages of a node)
//!     24      1  kind: 0 bytes, 1 bytes and then the end, 2 the connection is not valid (the
//!                bytes are the reason)
//! ```

use bytes::{BufMut as _, Bytes, BytesMut};

/// Length of a header, bytes.
pub(crate) const HEADER: usize = 25;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data = 0,
    End = 1,
    Reset = 2,
}

/// The header, see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) connection: u64,
    pub(crate) index: u64,
    pub(crate) read: u64,
    pub(crate) kind: Kind,
}

impl Header {
    /// The message with these bytes.
    pub(crate) fn message(self, bytes: &[u8]) -> Bytes {
        let mut message = BytesMut::with_capacity(HEADER + bytes.len());
        message.put_u64_le(self.connection);
        message.put_u64_le(self.index);
        message.put_u64_le(self.read);
        message.put_u8(self.kind as u8);
        message.put_slice(bytes);
        message.freeze()
    }

    /// Splits a message. `None` if it is not one of this module.
    pub(crate) fn split(message: &[u8]) -> Option<(Header, &[u8])> {
        let (header, bytes) = message.split_at_checked(HEADER)?;
        let number = |at: usize| header.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let kind = match header.get(24)? {
            0 => Kind::Data,
            1 => Kind::End,
            2 => Kind::Reset,
            _ => return None,
        };
        Some((Header { connection: number(0)?, index: number(8)?, read: number(16)?, kind }, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_the_header_is_fixed() {
        let header = Header { connection: 0x0102, index: 3, read: 4, kind: Kind::End };
        let message = header.message(b"abc");
        assert_eq!(message[..], *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01abc");
        assert_eq!(Header::split(&message), Some((header, &b"abc"[..])));
        assert_eq!(Header::split(&message[..24]), None);
        assert_eq!(Header::split(&[9; 25]), None);
    }
}

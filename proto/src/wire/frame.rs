//! Frames: a header with length and checksums, and the payload, a message.

use super::{FRAME_HEADER, Message, VERSION};
use crate::list_limits;

/// A frame could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length is more than the limit in force.
    TooLong {
        /// Length in the header, bytes.
        length: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The header does not match its checksum.
    Header {
        /// Value of the length field.
        length: usize,
    },
    /// The payload does not match its checksum.
    Checksum,
    /// The payload is not a message of this version; the text is the reason.
    Message(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong { length, limit } => {
                write!(
                    f,
                    "a frame of {length} bytes, at most {limit} are allowed here: the peer does not use the MIOT protocol"
                )
            }
            FrameError::Header { length } if *length == u32::from_le_bytes(*b"HTTP") as usize => {
                f.write_str(
                    "the peer does not use the MIOT protocol but HTTP: expected the port of the log-server \
                     (setting `listen`), found that of its web page (setting `http`)",
                )
            }
            FrameError::Header { .. } => f.write_str(
                "the header of a frame does not match its checksum: the connection damages data, or the peer does \
                 not use the MIOT protocol",
            ),
            FrameError::Checksum => f.write_str("the payload of a frame does not match its checksum: the connection damages data"),
            FrameError::Message(reason) => {
                write!(f, "a frame is not a message of version {}.{}: {reason}", VERSION.major, VERSION.minor)
            }
        }
    }
}

impl std::error::Error for FrameError {}

impl Message {
    /// Appends the message to `out` as one frame.
    pub fn append_frame(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEADER]);
        // Writing to a Vec cannot fail, and no type in this module fails to serialize.
        if let Ok(filled) = postcard::to_extend(self, std::mem::take(out)) {
            *out = filled;
        }
        let header = frame_header_of(&out[start + FRAME_HEADER..]);
        out[start..start + FRAME_HEADER].copy_from_slice(&header);
    }

    /// Returns the message as one frame.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_frame(&mut out);
        out
    }

    /// Decodes a payload. `crc` is its checksum in the frame header.
    ///
    /// # Errors
    /// [`FrameError::Checksum`] if the payload does not match `crc`, [`FrameError::Message`] if it
    /// is not a message of this version or a list exceeds its limit.
    pub fn from_payload(payload: &[u8], crc: u32) -> Result<Message, FrameError> {
        if crc32c::crc32c(payload) != crc {
            return Err(FrameError::Checksum);
        }
        list_limits::check(payload).map_err(|error| FrameError::Message(error.to_string()))?;
        match postcard::take_from_bytes(payload) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(FrameError::Message(format!("{} bytes follow the message", rest.len()))),
            Err(error) => Err(FrameError::Message(error.to_string())),
        }
    }
}

/// Returns the header of the frame with this payload.
#[must_use]
pub fn frame_header_of(payload: &[u8]) -> [u8; FRAME_HEADER] {
    let mut header = [0; FRAME_HEADER];
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let sum = crc32c::crc32c(&header[..8]);
    header[8..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Decodes a frame header. Returns length and checksum of the payload. `limit` is the maximum
/// length, bytes.
///
/// # Errors
/// [`FrameError::Header`] if the header does not match its checksum, [`FrameError::TooLong`] if the
/// length exceeds `limit`.
pub fn frame_header(header: [u8; FRAME_HEADER], limit: usize) -> Result<(usize, u32), FrameError> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if crc32c::crc32c(&header[..8]) != u32::from_le_bytes([i, j, k, l]) {
        return Err(FrameError::Header { length });
    }
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    Ok((length, u32::from_le_bytes([e, f, g, h])))
}

//! Reads frames from a connection. Each length is checked, and its memory reserved, before memory
//! is allocated.

use crate::store::budget::{Budget, Charge};
use crate::store::watermarks::FlowControl;
use miot_proto::wire::{self, FRAME_HEADER, FrameError, Message};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Memory of a payload that a connection keeps for the next one, bytes at most: there are thousands
/// of connections.
const KEPT: usize = 1024;

/// Reason why no further message can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(FrameError),
    #[error("the connection ended within a frame")]
    Torn,
}

impl From<FrameError> for ReadError {
    fn from(error: FrameError) -> ReadError {
        ReadError::Frame(error)
    }
}

/// Reads messages. Cancelling a call loses no data.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    reader: R,
    header: [u8; FRAME_HEADER],
    filled: usize,
    payload: Option<Payload>,
    /// Memory of an earlier payload, for the next one.
    spare: Vec<u8>,
    /// Size of the last frame, bytes.
    last_size: usize,
}

#[derive(Debug)]
struct Payload {
    bytes: Vec<u8>,
    filled: usize,
    crc: u32,
    charge: Charge,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R) -> Frames<R> {
        Frames {
            reader,
            header: [0; FRAME_HEADER],
            filled: 0,
            payload: None,
            spare: Vec::new(),
            last_size: 0,
        }
    }

    /// Size of the last frame, bytes.
    pub(crate) fn last_size(&self) -> usize {
        self.last_size
    }

    /// Reads the next message, with its reserved memory; `None` when the peer closed the connection
    /// between two frames. Waits while the budget is used up.
    pub(crate) async fn next(
        &mut self,
        limit: usize,
        budget: &Arc<Budget>,
        flow: &FlowControl,
    ) -> Result<Option<(Message, Charge)>, ReadError> {
        while self.filled < FRAME_HEADER {
            match read(&mut self.reader, &mut self.header[self.filled..]).await? {
                0 if self.filled == 0 => return Ok(None),
                0 => return Err(ReadError::Torn),
                n => self.filled += n,
            }
        }
        let payload = match &mut self.payload {
            Some(payload) => payload,
            None => {
                let (length, crc) = wire::frame_header(self.header, limit)?;
                // A decoded message takes slightly more than its length.
                let charge = budget.reserve(length + 256, flow).await;
                let mut bytes = std::mem::take(&mut self.spare);
                bytes.clear();
                bytes.resize(length, 0);
                self.payload.insert(Payload { bytes, filled: 0, crc, charge })
            }
        };
        while payload.filled < payload.bytes.len() {
            match read(&mut self.reader, &mut payload.bytes[payload.filled..]).await? {
                0 => return Err(ReadError::Torn),
                n => payload.filled += n,
            }
        }
        self.filled = 0;
        let Some(Payload { bytes, crc, charge, .. }) = self.payload.take() else { return Ok(None) };
        self.last_size = FRAME_HEADER + bytes.len();
        let message = Message::from_payload(&bytes, crc)?;
        if bytes.capacity() <= KEPT {
            self.spare = bytes;
        }
        Ok(Some((message, charge)))
    }
}

/// Reads some bytes; 0 at the end. A TLS connection that ends without a close notification ends
/// like any other, because frames carry their own lengths and checksums.
async fn read<R: AsyncRead + Unpin>(reader: &mut R, bytes: &mut [u8]) -> io::Result<usize> {
    match reader.read(bytes).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::wire::MAX_FRAME;

    async fn read(bytes: &[u8], limit: usize) -> (Vec<Message>, Option<ReadError>) {
        let (budget, mut frames, mut messages) = (Budget::new(1 << 20), Frames::new(bytes), Vec::new());
        loop {
            match frames.next(limit, &budget, &FlowControl::default()).await {
                Ok(Some((message, _))) => messages.push(message),
                Ok(None) => return (messages, None),
                Err(error) => return (messages, Some(error)),
            }
        }
    }

    #[tokio::test]
    async fn whole_frames_are_read_and_torn_ones_detected() {
        let mut bytes = Message::Bye.frame();
        bytes.extend(Message::Ack { through: 7 }.frame());
        let (messages, error) = read(&bytes, MAX_FRAME).await;
        assert_eq!(messages, [Message::Bye, Message::Ack { through: 7 }]);
        assert!(error.is_none());
        for cut in 1..bytes.len() {
            let (messages, error) = read(&bytes[..cut], MAX_FRAME).await;
            let first = Message::Bye.frame().len();
            assert_eq!(messages.len(), usize::from(cut >= first));
            assert_eq!(matches!(error, Some(ReadError::Torn)), cut != first, "{cut}: {error:?}");
        }
    }

    #[tokio::test]
    async fn damaged_and_oversized_frames_are_errors() {
        let mut bytes = Message::Ack { through: 7 }.frame();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(matches!(read(&bytes, MAX_FRAME).await.1, Some(ReadError::Frame(FrameError::Checksum))));
        let (_, error) = read(b"GET / HTTP/1.1\r\n\r\n", 4096).await;
        assert!(matches!(error, Some(ReadError::Frame(FrameError::Header { .. }))));
        // No byte of the payload is needed.
        let (_, error) = read(&wire::frame_header_of(&[0; 5000]), 4096).await;
        assert!(matches!(error, Some(ReadError::Frame(FrameError::TooLong { .. }))));
        let mut length = Message::Ack { through: 7 }.frame();
        length[1] ^= 1;
        let (_, error) = read(&length, MAX_FRAME).await;
        assert!(
            matches!(error, Some(ReadError::Frame(FrameError::Header { .. }))),
            "without waiting for the payload"
        );
    }

    #[tokio::test]
    async fn cancelled_call_loses_no_data() {
        let (mut near, far) = tokio::io::duplex(64);
        let (budget, mut frames) = (Budget::new(1 << 20), Frames::new(far));
        let flow = FlowControl::default();
        for byte in (Message::Heartbeat { watermark: 1 << 40 }).frame() {
            tokio::select! {
                biased;
                message = frames.next(64, &budget, &flow) => panic!("too early: {message:?}"),
                () = tokio::task::yield_now() => {}
            }
            tokio::io::AsyncWriteExt::write_all(&mut near, &[byte]).await.unwrap();
        }
        let (message, _) = frames.next(64, &budget, &flow).await.unwrap().unwrap();
        assert_eq!(message, Message::Heartbeat { watermark: 1 << 40 });
    }
}

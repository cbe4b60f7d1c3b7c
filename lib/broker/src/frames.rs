//! Ends of frames among the bytes of a connection.

use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, frame_header};

/// Position in a sequence of frames.
#[derive(Debug, Default)]
pub(crate) struct FramePosition {
    header: [u8; FRAME_HEADER],
    filled: usize,
    /// Bytes left of the payload.
    left: usize,
    /// The bytes are not frames.
    invalid: bool,
}

impl FramePosition {
    /// Moves over bytes.
    pub(crate) fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.invalid {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                (self.left, bytes) = (self.left - skipped, &bytes[skipped..]);
                continue;
            }
            let taken = (FRAME_HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            (self.filled, bytes) = (self.filled + taken, &bytes[taken..]);
            if self.filled == FRAME_HEADER {
                match frame_header(self.header, MAX_FRAME) {
                    Ok((length, _)) => (self.filled, self.left) = (0, length),
                    Err(_) => self.invalid = true,
                }
            }
        }
    }

    /// True between two frames.
    pub(crate) fn is_between(&self) -> bool {
        self.filled == 0 && self.left == 0 && !self.invalid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::wire::Message;

    #[test]
    fn ends_of_frames_are_found_however_they_are_cut() {
        let frames = [Message::Bye.frame(), Message::Ack { through: 7 }.frame(), Message::Bye.frame()];
        let (all, ends): (Vec<u8>, Vec<usize>) = (
            frames.concat(),
            frames
                .iter()
                .scan(0, |end, frame| {
                    *end += frame.len();
                    Some(*end)
                })
                .collect(),
        );
        for size in 1..all.len() {
            let (mut position, mut at) = (FramePosition::default(), 0);
            for part in all.chunks(size) {
                position.advance(part);
                at += part.len();
                assert_eq!(position.is_between(), ends.contains(&at), "{at} of {ends:?}");
            }
        }
        let mut position = FramePosition::default();
        position.advance(&[0xff; 100]);
        assert!(!position.is_between());
    }
}

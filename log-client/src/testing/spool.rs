//! A spool in a directory, without sweeper and connection.

use crate::config::SpoolFull;
use crate::error::Error;
use crate::spool::{Reader, Spool, Writer};
use crate::testing::samples;
use miot_proto::wire::Message;
use std::path::Path;
use std::sync::Arc;

/// State of a spool when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredCounts {
    /// Number of unacknowledged messages.
    pub messages: u64,
    /// No messages are missing among them.
    pub intact: bool,
    /// A number above those of all streams.
    pub next_stream: u32,
}

/// End of the last message that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// Number of the file.
    pub file: u64,
    /// Offset in the file, bytes.
    pub end: u64,
}

/// A spool with its writer and its reader.
#[derive(Debug)]
pub struct Spooled {
    spool: Arc<Spool>,
    writer: Writer,
    reader: Reader,
    recovered: RecoveredCounts,
}

impl Spooled {
    /// Opens the spool of the node `fuzz`, as a starting log-client does. If it is dropped without
    /// [`end`](Self::end), its files are those of a killed log-client.
    ///
    /// # Errors
    /// As for a log-client.
    pub fn open(dir: &Path, limit: u64, keeps_newest: bool, boot: u128) -> Result<Spooled, Error> {
        let policy = if keeps_newest { SpoolFull::KeepNewest } else { SpoolFull::KeepOldest };
        let (spool, recovered) = Spool::open(dir, limit, policy, "fuzz", boot)?;
        let spool = Arc::new(spool);
        let writer = Writer::new(Arc::clone(&spool), recovered.watermark);
        let reader = Reader::new(Arc::clone(&spool));
        let recovered = RecoveredCounts {
            messages: recovered.messages,
            intact: recovered.intact,
            next_stream: recovered.next_stream,
        };
        Ok(Spooled { spool, writer, reader, recovered })
    }

    /// State of the spool when it was opened.
    #[must_use]
    pub fn recovered(&self) -> RecoveredCounts {
        self.recovered
    }

    /// The session of its sequence numbers.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.spool.session()
    }

    /// Does what the sweeper does before each sweep, and returns whether a batch would be accepted.
    pub fn has_space(&mut self) -> bool {
        self.writer.make_space();
        self.writer.has_space()
    }

    /// Writes a numbered message. Returns its number and its end in the files.
    pub fn write(&mut self, mut message: Message) -> (u64, Option<FilePosition>) {
        let taken = samples::taken(&message);
        self.writer.write_drained(&mut message, taken);
        let place = self.writer.is_written().then(|| self.spool.end_of_last()).flatten();
        (self.writer.last(), place.map(|(file, end)| FilePosition { file, end }))
    }

    /// Records the watermark: everything that completed before it was written.
    pub fn set_watermark(&mut self, watermark: i64) {
        self.writer.set_watermark(watermark);
    }

    /// All whole frames that would be sent on a new connection whose server has everything up to
    /// `through`. `None` if the server has more than was ever written: then a new session starts.
    pub fn connect(&mut self, through: u64) -> Option<Vec<u8>> {
        if through > self.spool.last() {
            self.spool.renew_session().ok()?;
            return None;
        }
        let mut bytes = Vec::new();
        self.reader.restart(through, &mut bytes);
        loop {
            let before = bytes.len();
            // One frame at a time, with marks where the reader requests them.
            self.reader.take(&mut bytes, before + 1);
            self.writer.make_space();
            if bytes.len() == before {
                self.reader.take(&mut bytes, before + 1);
                if bytes.len() == before {
                    return Some(bytes);
                }
            }
        }
    }

    /// The server has everything up to here. The reader applies it when it looks for more.
    pub fn acknowledge(&mut self, through: u64) {
        self.spool.acknowledge(through);
        self.reader.take(&mut Vec::new(), 1);
    }

    /// Ends the spool: no more messages follow.
    pub fn end(&mut self) {
        self.writer.end();
    }

    /// True if the spool has ended and everything is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.spool.is_done()
    }
}

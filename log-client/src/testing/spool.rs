//! A spool in a directory, without the sweeper before it and the connection behind it.

use crate::config::SpoolFull;
use crate::error::Error;
use crate::spool::{Reader, Spool, Writer};
use crate::testing::made;
use miot_proto::wire::Message;
use std::path::Path;
use std::sync::Arc;

/// What a spool held when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Messages that are not acknowledged.
    pub messages: u64,
    /// Nothing is missing among them.
    pub sound: bool,
    /// A number above those of all streams.
    pub next_stream: u32,
}

/// Where the last message that was written ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file.
    pub file: u64,
    /// Byte in it.
    pub end: u64,
}

/// Both ends of a spool.
#[derive(Debug)]
pub struct Spooled {
    spool: Arc<Spool>,
    writer: Writer,
    reader: Reader,
    found: Found,
}

impl Spooled {
    /// Opens the spool of the node `fuzz`, as a log-client does that starts. Dropped without [`end`](Self::end) it is as
    /// one that was killed leaves it.
    ///
    /// # Errors
    /// As a log-client.
    pub fn open(dir: &Path, limit: u64, keeps_newest: bool, boot: u128) -> Result<Spooled, Error> {
        let policy = if keeps_newest { SpoolFull::KeepNewest } else { SpoolFull::KeepOldest };
        let (spool, heritage) = Spool::open(dir, limit, policy, "fuzz", boot)?;
        let spool = Arc::new(spool);
        let writer = Writer::new(Arc::clone(&spool), heritage.promised);
        let reader = Reader::new(Arc::clone(&spool));
        let found =
            Found { messages: heritage.messages, sound: heritage.sound, next_stream: heritage.next_stream };
        Ok(Spooled { spool, writer, reader, found })
    }

    /// What it held.
    #[must_use]
    pub fn found(&self) -> Found {
        self.found
    }

    /// The session in which its numbers count.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.spool.session()
    }

    /// Whether a batch is taken. What the sweeper does before each sweep is done.
    pub fn has_room(&mut self) -> bool {
        self.writer.make_room();
        self.writer.has_room()
    }

    /// Writes a numbered message, and returns its number and where it ends in the files.
    pub fn write(&mut self, mut message: Message) -> (u64, Option<Place>) {
        let taken = made::taken(&message);
        self.writer.write_taken(&mut message, taken);
        let place = self.writer.is_written().then(|| self.spool.end_of_last()).flatten();
        (self.writer.last(), place.map(|(file, end)| Place { file, end }))
    }

    /// Everything that completed before was written.
    pub fn promise(&mut self, watermark: i64) {
        self.writer.promise(watermark);
    }

    /// All that a new connection is sent by and by, on which the server has everything up to `through`; whole frames.
    /// None if the server has more than was ever written: then there is a new session.
    pub fn connect(&mut self, through: u64) -> Option<Vec<u8>> {
        if through > self.spool.last() {
            self.spool.renew_session().ok()?;
            return None;
        }
        let mut bytes = Vec::new();
        self.reader.restart(through, &mut bytes);
        loop {
            let before = bytes.len();
            // A frame at a time, and marks where the reader wants them.
            self.reader.take(&mut bytes, before + 1);
            self.writer.make_room();
            if bytes.len() == before {
                self.reader.take(&mut bytes, before + 1);
                if bytes.len() == before {
                    return Some(bytes);
                }
            }
        }
    }

    /// The server has everything up to here. The reader hears of it when it looks for more.
    pub fn acknowledge(&mut self, through: u64) {
        self.spool.acknowledge(through);
        self.reader.take(&mut Vec::new(), 1);
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
        self.writer.end();
    }

    /// After the end: all is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.spool.is_done()
    }
}

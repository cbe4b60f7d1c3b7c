//! Reader of a live stream, message by message, also while the stream grows.

use super::{ALIGNMENT, CHECK, CHECK_TAG, CONTINUATION, PREFIX};
use crate::arrow_stream::MessageDecoder;
use crate::error::Error;
use crate::schema::{self, Table};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{Message, MessageHeader};
use rustix::buffer::spare_capacity;
use rustix::io::{pread, retry_on_intr};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Largest metadata of a message, bytes. The writer's are about 2 KiB.
const MAX_META: usize = 1 << 20;
/// Largest body of a message, bytes. Batches have tens of thousands of rows, so a few MiB.
const MAX_BODY: u64 = 1 << 31;

/// Number of threads of [`LiveReader::for_each`] that read.
const READERS: usize = 2;
/// Number of messages that each of them may have ready.
const READ_AHEAD: usize = 1;

/// Why [`LiveReader::next_batch`] returned `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The stream ends after a whole message.
    End,
    /// The last message is incomplete: it is being written, or its writer was killed.
    Partial,
    /// A complete message has a wrong checksum or frame.
    Damaged,
}

/// Reads one live stream. After `None` it can continue, if the stream has grown.
pub struct LiveReader {
    table: Table,
    path: PathBuf,
    file: Arc<File>,
    limit: u64,
    position: u64,
    stop: StopReason,
    decoder: MessageDecoder,
}

impl std::fmt::Debug for LiveReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveReader")
            .field("path", &self.path)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Result of reading a message.
type Read = io::Result<Result<RawMessage, StopReason>>;

/// A message with a correct checksum.
struct RawMessage {
    meta: Vec<u8>,
    body: Buffer,
    /// Offset of the next message.
    next: u64,
}

/// A message whose checksum was not compared yet.
struct MessageHead {
    /// The flatbuffer with padding, tag and checksum.
    meta: Vec<u8>,
    kind: MessageHeader,
    /// Range of the body, bytes of the file.
    body: Range<u64>,
}

impl LiveReader {
    /// Opens a stream; `None` if the file does not exist.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(table: Table, path: &Path) -> Result<Option<LiveReader>, Error> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("open", path)(e)),
        };
        Ok(Some(LiveReader {
            table,
            path: path.to_owned(),
            file: Arc::new(file),
            limit: u64::MAX,
            position: 0,
            stop: StopReason::End,
            decoder: MessageDecoder::default(),
        }))
    }

    /// Limits reading to the present length of the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn stop_at_present_end(&mut self) -> Result<(), Error> {
        self.limit = self.file.metadata().map_err(Error::io("read the size of", &self.path))?.len();
        Ok(())
    }

    /// Limits reading to this offset, bytes.
    pub(crate) fn stop_at(&mut self, offset: u64) {
        self.limit = offset;
    }

    /// Limits reading to the limit of another reader of the same file.
    pub fn stop_with(&mut self, other: &LiveReader) {
        self.limit = self.limit.min(other.limit);
    }

    /// Returns another reader of the same file, from its start and with the same limit. Works also
    /// after the file was removed.
    #[must_use]
    pub fn reopened(&self) -> LiveReader {
        LiveReader {
            table: self.table,
            path: self.path.clone(),
            file: Arc::clone(&self.file),
            limit: self.limit,
            position: 0,
            stop: StopReason::End,
            decoder: MessageDecoder::default(),
        }
    }

    /// Returns the number of bytes after the last whole message that was read, up to the limit.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remaining(&self) -> Result<u64, Error> {
        let length = self.file.metadata().map_err(Error::io("read the size of", &self.path))?.len();
        Ok(length.min(self.limit).saturating_sub(self.position))
    }

    /// Table of the rows.
    #[must_use]
    pub fn table(&self) -> Table {
        self.table
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Offset after the last whole message that was read, bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Why the last call of [`LiveReader::next_batch`] returned `None`.
    #[must_use]
    pub fn stop(&self) -> StopReason {
        self.stop
    }

    /// Returns true if the stream has fewer columns, or narrower keys of names, than the table in
    /// this version.
    pub(crate) fn is_of_earlier_version(&self) -> bool {
        self.decoder.columns().is_some_and(|found| !schema::is_present(self.table, found))
    }

    /// Returns the next batch, or `None` if there is no further whole message (see
    /// [`LiveReader::stop`]).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if a message with a correct checksum is not valid for the
    /// table.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            let whole = match self.message().map_err(Error::io("read", &self.path))? {
                Ok(whole) => whole,
                Err(stop) => {
                    self.stop = stop;
                    return Ok(None);
                }
            };
            let next = whole.next;
            let batch = self.decode(&whole)?;
            self.position = next;
            if batch.is_some() {
                return Ok(batch);
            }
        }
    }

    /// Passes all further batches to a closure, up to the first message that is not whole.
    /// [`READERS`] threads read and verify messages in turn.
    ///
    /// # Errors
    /// Those of [`LiveReader::next_batch`] and of the closure.
    pub(crate) fn for_each(
        &mut self,
        mut to: impl FnMut(&RecordBatch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        thread::scope(|scope| {
            let readers: [_; READERS] = std::array::from_fn(|turn| {
                let (sender, messages) = sync_channel(READ_AHEAD);
                let mut reader = LiveReader { position: self.position, ..self.reopened() };
                scope.spawn(move || reader.send_in_turn(turn, &sender));
                messages
            });
            for messages in readers.iter().cycle() {
                // A reader ends early where the other one finds what ends the stream.
                let message = messages.recv().unwrap_or_else(|_| self.message());
                let whole = match message.map_err(Error::io("read", &self.path))? {
                    Ok(whole) => whole,
                    Err(stop) => {
                        self.stop = stop;
                        break;
                    }
                };
                let batch = self.decode(&whole)?;
                self.position = whole.next;
                batch.map_or(Ok(()), |batch| to(&batch))?;
            }
            Ok(())
        })
    }

    /// Sends one of [`READERS`] messages, beginning with that of this number, until one is not
    /// whole or nobody receives them.
    fn send_in_turn(&mut self, turn: usize, to: &SyncSender<Read>) {
        for number in 0.. {
            if number % READERS == turn {
                let message = self.message();
                let next = message.as_ref().ok().and_then(|whole| Some(whole.as_ref().ok()?.next));
                let (Ok(()), Some(next)) = (to.send(message), next) else { return };
                self.position = next;
            } else {
                let Ok(Ok(head)) = self.head() else { return };
                self.position = head.body.end;
            }
        }
    }

    /// Moves to an offset between two messages. Batches before it are skipped unchecked, the schema
    /// and the dictionaries are read.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if no message begins at the offset.
    pub(crate) fn skip_batches(&mut self, offset: u64) -> Result<(), Error> {
        while self.position < offset {
            match self.head().map_err(Error::io("read", &self.path))? {
                Ok(head) if head.kind == MessageHeader::RecordBatch => self.position = head.body.end,
                Ok(_) => {
                    let whole = self.message().map_err(Error::io("read", &self.path))?;
                    let whole = whole.map_err(|_| self.damaged_message())?;
                    self.decode(&whole)?;
                    self.position = whole.next;
                }
                Err(_) => return Err(self.damaged_message()),
            }
        }
        if self.position == offset { Ok(()) } else { Err(self.damaged_message()) }
    }

    /// Returns true if a whole message follows somewhere after the present position. Then the bytes
    /// at the position are damaged, or the system wrote later bytes before earlier ones when power
    /// was lost.
    pub(crate) fn has_later_message(&self) -> Result<bool, Error> {
        let mut reader = self.reopened();
        let mut chunk = vec![0; 1 << 20];
        let mut from = self.position + ALIGNMENT as u64;
        loop {
            let read = self.file.read_at(&mut chunk, from).map_err(Error::io("read", &self.path))?;
            let whole = read - read % ALIGNMENT;
            if whole == 0 {
                return Ok(false);
            }
            for at in (0..whole).step_by(ALIGNMENT) {
                if chunk[at..at + CONTINUATION.len()] == CONTINUATION {
                    reader.position = from + at as u64;
                    if reader.message().map_err(Error::io("read", &self.path))?.is_ok() {
                        return Ok(true);
                    }
                }
            }
            from += whole as u64;
        }
    }

    /// Returns the error that there is no whole message at the present position.
    #[must_use]
    pub fn damaged_message(&self) -> Error {
        Error::damaged(&self.path, format!("no whole message at byte {}", self.position))
    }

    /// Reads the message at the present position and checks it.
    fn message(&self) -> Read {
        let MessageHead { meta, body: range, .. } = match self.head()? {
            Ok(head) => head,
            Err(stop) => return Ok(Err(stop)),
        };
        let body = self.read(&range)?;
        let (flat, check) = meta.split_at(meta.len() - CHECK);
        let crc = crc32c::crc32c_append(crc32c::crc32c(flat), &body);
        if check[..4] != CHECK_TAG || check[4..] != crc.to_le_bytes() {
            return Ok(Err(StopReason::Damaged));
        }
        Ok(Ok(RawMessage { meta, body: body.into(), next: range.end }))
    }

    /// Reads a range of the file.
    fn read(&self, range: &Range<u64>) -> io::Result<Vec<u8>> {
        let length = (range.end - range.start) as usize;
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let at = range.start + bytes.len() as u64;
            if retry_on_intr(|| pread(&self.file, spare_capacity(&mut bytes), at))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Reads the message at the present position up to its body.
    fn head(&self) -> io::Result<Result<MessageHead, StopReason>> {
        let end = self.file.metadata()?.len().min(self.limit);
        let left = end.saturating_sub(self.position);
        if left == 0 {
            return Ok(Err(StopReason::End));
        }
        if left < PREFIX as u64 {
            return Ok(Err(self.cut_prefix(left)?));
        }
        let mut prefix = [0; PREFIX];
        self.file.read_exact_at(&mut prefix, self.position)?;
        let [a, b, c, d, size @ ..] = prefix;
        let size = u32::from_le_bytes(size) as usize;
        if [a, b, c, d] != CONTINUATION
            || !(CHECK..=MAX_META).contains(&size)
            || !size.is_multiple_of(ALIGNMENT)
        {
            return Ok(Err(StopReason::Damaged));
        }
        if left < (PREFIX + size) as u64 {
            return Ok(Err(self.cut_metadata(left)?));
        }
        let mut meta = vec![0; size];
        self.file.read_exact_at(&mut meta, self.position + PREFIX as u64)?;
        let (flat, check) = meta.split_at(size - CHECK);
        let Ok(message) = arrow_ipc::root_as_message(flat) else {
            return Ok(Err(StopReason::Damaged));
        };
        let Some(body_length) = u64::try_from(message.bodyLength()).ok().filter(|l| *l <= MAX_BODY) else {
            return Ok(Err(StopReason::Damaged));
        };
        let start = self.position + (PREFIX + size) as u64;
        if end - start < body_length {
            // The start of a message that is being written is valid.
            let is_cut = check[..4] == CHECK_TAG && body_of(&message) == Some(body_length);
            return Ok(Err(if is_cut { StopReason::Partial } else { StopReason::Damaged }));
        }
        let kind = message.header_type();
        Ok(Ok(MessageHead { meta, kind, body: start..start + body_length }))
    }

    /// Returns why there are fewer bytes than a prefix has.
    fn cut_prefix(&self, left: u64) -> io::Result<StopReason> {
        let mut prefix = [0; PREFIX];
        let prefix = &mut prefix[..left as usize];
        self.file.read_exact_at(prefix, self.position)?;
        let is_begin = prefix.iter().zip(CONTINUATION).all(|(found, expected)| *found == expected);
        Ok(if is_begin { StopReason::Partial } else { StopReason::Damaged })
    }

    /// Returns why there are fewer bytes than the prefix announces for the metadata. If the end of
    /// the metadata is there, the prefix is damaged.
    fn cut_metadata(&self, left: u64) -> io::Result<StopReason> {
        let mut meta = vec![0; left as usize - PREFIX];
        self.file.read_exact_at(&mut meta, self.position + PREFIX as u64)?;
        let has_end = meta.chunks_exact(CHECK).any(|word| word.starts_with(&CHECK_TAG));
        Ok(if has_end { StopReason::Damaged } else { StopReason::Partial })
    }

    /// Decodes a message; `None` for a schema or a dictionary.
    fn decode(&mut self, whole: &RawMessage) -> Result<Option<RecordBatch>, Error> {
        let decoded = self.decoder.decode(&whole.meta, &whole.body, |found| schema::fits(self.table, found));
        // The schema of the table, so that batches of all parts share it.
        let complete =
            |batch: Option<RecordBatch>| batch.map(|batch| schema::complete(self.table, batch)).transpose();
        let damaged = |error| Error::damaged(&self.path, format!("at byte {}: {error}", self.position));
        decoded.and_then(complete).map_err(damaged)
    }
}

/// Returns the length of the body by the ranges of its buffers, which the metadata has apart from
/// the body length.
fn body_of(message: &Message<'_>) -> Option<u64> {
    let rows = match message.header_type() {
        MessageHeader::Schema => return Some(0),
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch()?.data()?,
        MessageHeader::RecordBatch => message.header_as_record_batch()?,
        _ => return None,
    };
    let mut ends = rows.buffers()?.iter().map(|buffer| buffer.offset().checked_add(buffer.length()));
    let last = ends.try_fold(0, |last, end| Some(end?.max(last)))?;
    u64::try_from(last).ok()?.checked_next_multiple_of(ALIGNMENT as u64)
}

//! One live stream: a growing Arrow IPC stream without an end marker.
//!
//! Any Arrow reader can read it. The messages conform to the format; the padding between metadata
//! and body, whose content the format does not define, contains a checksum:
//!
//! ```text
//! u32 ffffffff · u32 size of the rest up to the body · flatbuffer · zeros · "MCRC" ·
//! u32 CRC-32C · body
//! ```
//!
//! The checksum covers flatbuffer, zeros and body. The length of a message is a multiple of 8
//! bytes. Buffers with one repeated value (columns of nulls, of one process, of one size) are
//! compressed, others are not: a live part is short-lived, and compressing all of it costs more
//! than sealing it. A dictionary is replaced when a batch has another one, which the stream format
//! allows.
//!
//! [`LiveWriter::append`] encodes into memory, [`LiveWriter::write_out`] appends the encoded bytes
//! to the file, [`LiveWriter::sync`] makes them durable. If a write fails, the file is truncated to
//! the last whole message and the encoded bytes are kept, so that the call can be repeated when
//! there is space.

mod direct;
mod encode;
mod read;
mod repeated_value;

pub use read::{LiveReader, StopReason};

use direct::{BLOCK, DirectWriter};
use encode::Encoder;

use crate::error::Error;
use crate::file_identity;
use crate::layout;
use crate::parquet_file::SCHEMA_KEY;
use crate::quarantine;
use crate::schema::{self, Table};
use arrow_array::RecordBatch;
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{ArrowError, SchemaRef};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Tag before the checksum.
const CHECK_TAG: [u8; 4] = *b"MCRC";
/// First four bytes of a message.
pub(crate) const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes before the flatbuffer: continuation and size.
const PREFIX: usize = 8;
/// Bytes of tag and checksum.
const CHECK: usize = 8;
/// Alignment of messages and buffers, bytes: the minimum of the format, because most messages are
/// small while a trace is followed.
const ALIGNMENT: usize = 8;

/// Appends to one live stream.
pub struct LiveWriter {
    table: Table,
    path: PathBuf,
    schema: SchemaRef,
    generator: IpcDataGenerator,
    tracker: DictionaryTracker,
    options: IpcWriteOptions,
    context: IpcWriteContext,
    encoder: Encoder,
    file: Option<File>,
    /// Durable bytes of the file, all whole messages.
    synced: u64,
    /// Encoded messages after these. They are kept until they are durable: after a failed sync they
    /// are written again, because the kernel may have dropped the pages.
    encoded: Vec<u8>,
    /// Bytes of `encoded` that are in the file.
    written: usize,
    direct: DirectWriter,
    /// The durable bytes after the last whole block of the file.
    last_block: Vec<u8>,
    rows: u64,
}

impl std::fmt::Debug for LiveWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveWriter")
            .field("path", &self.path)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl LiveWriter {
    /// Creates a writer of a new stream. The file is created with the first write.
    ///
    /// # Errors
    /// Never: the options are valid constants.
    pub fn new(table: Table, path: PathBuf) -> Result<LiveWriter, Error> {
        let encode = |e: ArrowError| Error::Encode { table, reason: e.to_string() };
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5).map_err(encode)?;
        let mut writer = LiveWriter {
            table,
            schema: schema::of(table),
            generator: IpcDataGenerator::default(),
            tracker: DictionaryTracker::new(false),
            options,
            context: IpcWriteContext::default(),
            encoder: Encoder::new(),
            path,
            file: None,
            synced: 0,
            encoded: Vec::new(),
            written: 0,
            direct: DirectWriter::default(),
            last_block: Vec::new(),
            rows: 0,
        };
        // Assigns numbers to the dictionaries in the tracker, also if the file already has the
        // schema.
        let version = HashMap::from([(SCHEMA_KEY.to_owned(), schema::VERSION.to_string())]);
        let message = writer.generator.schema_to_bytes_with_dictionary_tracker(
            &writer.schema.as_ref().clone().with_metadata(version),
            &mut writer.tracker,
            &writer.options,
        );
        frame(&message, &mut writer.encoded);
        Ok(writer)
    }

    /// Continues an existing stream: passes every batch to `on_batch` and truncates the file after
    /// its last whole message. Returns the writer and the number of truncated bytes. If these
    /// contain whole messages, they are kept in the folder `damaged` of the trace.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if the stream does not have the columns of the table;
    /// errors of `on_batch`.
    pub fn recover(
        table: Table,
        path: &Path,
        mut on_batch: impl FnMut(&RecordBatch) -> Result<(), Error>,
    ) -> Result<(LiveWriter, u64), Error> {
        let mut writer = LiveWriter::new(table, path.to_owned())?;
        let Some(mut reader) = LiveReader::open(table, path)? else {
            return Ok((writer, 0));
        };
        reader.for_each(|batch| {
            writer.rows += batch.num_rows() as u64;
            on_batch(batch)
        })?;
        let good = reader.position();
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("read the size of", path))?.len();
        if length > good {
            if reader.stop() == StopReason::Damaged && reader.has_later_message()? {
                let kept = quarantine::unused_path(path)?;
                quarantine::keep_tail(path, good, &kept)?;
                tracing::warn!(from = %path.display(), to = %kept.display(), "damaged message, its stream is truncated and the rest kept");
            }
            file.set_len(good).map_err(Error::io("truncate", path))?;
        }
        // The readable bytes count as durable from now on, but a killed writer may not have synced
        // them.
        file.sync_all().map_err(Error::io("sync", path))?;
        if good > 0 {
            writer.encoded.clear();
        }
        writer.synced = good;
        writer.last_block = vec![0; (good % BLOCK as u64) as usize];
        let block = good - writer.last_block.len() as u64;
        file.read_exact_at(&mut writer.last_block, block).map_err(Error::io("read", path))?;
        writer.file = Some(file);
        if reader.is_of_earlier_version() {
            writer = LiveWriter::rewrite(table, path, &reader)?;
        }
        Ok((writer, length.saturating_sub(good)))
    }

    /// Rewrites a stream with the columns of this version. A crash leaves either the old or the new
    /// file.
    fn rewrite(table: Table, path: &Path, old: &LiveReader) -> Result<LiveWriter, Error> {
        let tmp = layout::tmp(path);
        let mut writer = LiveWriter::new(table, tmp.clone())?;
        let mut reader = old.reopened();
        while let Some(batch) = reader.next_batch()? {
            writer.append(&batch)?;
        }
        if writer.rows == 0 {
            writer.path = path.to_owned();
            return Ok(writer);
        }
        writer.write_out()?;
        writer.sync()?;
        std::fs::rename(&tmp, path).map_err(Error::io("rename", &tmp))?;
        if let Some(folder) = path.parent() {
            layout::sync_folder(folder)?;
        }
        writer.path = path.to_owned();
        Ok(writer)
    }

    /// Uses the buffers of the writer of an earlier stream, which has nothing left to write.
    pub(crate) fn reuse_buffers_of(&mut self, earlier: LiveWriter) {
        let LiveWriter { mut encoded, direct, .. } = earlier;
        encoded.clear();
        encoded.extend_from_slice(&self.encoded);
        (self.encoded, self.direct) = (encoded, direct);
    }

    /// Encodes a batch, which must have the columns of the table. Nothing is written to the file.
    ///
    /// # Errors
    /// [`Error::Schema`] or [`Error::Encode`]; the stream is as it was.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        check_columns(self.table, &self.schema, batch)?;
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let failed = |e: ArrowError| Error::Encode { table: self.table, reason: e.to_string() };
        // An empty slice encodes only the dictionaries, if they are new.
        let empty = batch.slice(0, 0);
        let (dictionaries, _) = self
            .generator
            .encode(&empty, &mut self.tracker, &self.options, &mut self.context)
            .map_err(failed)?;
        for dictionary in &dictionaries {
            frame(dictionary, &mut self.encoded);
        }
        self.encoder.encode(batch, &mut self.encoded).map_err(failed)?;
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Appends the encoded bytes to the file, if there are rows. Returns true if this created the
    /// file.
    ///
    /// # Errors
    /// [`Error::Io`]: the file is truncated to its previous length, and the encoded bytes are kept
    /// for the next call.
    pub fn write_out(&mut self) -> Result<bool, Error> {
        if self.rows == 0 || self.written == self.encoded.len() {
            return Ok(false);
        }
        let (file, is_new) = match &self.file {
            Some(file) => (file, false),
            None => {
                let file =
                    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&self.path);
                (&*self.file.insert(file.map_err(Error::io("create", &self.path))?), true)
            }
        };
        let end = self.synced + self.written as u64;
        let bytes = &self.encoded[self.written..];
        // `last_block` has no bytes that wait for a sync.
        let direct = if self.written == 0 {
            let block = self.synced - self.last_block.len() as u64;
            self.direct.write(file, block, &self.last_block, bytes)
        } else {
            Ok(0)
        };
        let written = direct.and_then(|direct| file.write_all_at(&bytes[direct..], end + direct as u64));
        if let Err(e) = written {
            // Otherwise readers see a torn tail until the next write. It also frees the space.
            let _ = file.set_len(end);
            return Err(Error::io("write to", &self.path)(e));
        }
        self.written = self.encoded.len();
        Ok(is_new)
    }

    /// Makes the written bytes durable.
    ///
    /// # Errors
    /// [`Error::Io`]: bytes that are not durable are written again by the next
    /// [`LiveWriter::write_out`].
    pub fn sync(&mut self) -> Result<(), Error> {
        let Some(file) = self.file.as_ref().filter(|_| self.written > 0) else { return Ok(()) };
        let written = std::mem::take(&mut self.written);
        file.sync_data().map_err(Error::io("sync", &self.path))?;
        self.synced += written as u64;
        direct::last_block(&mut self.last_block, &self.encoded[..written]);
        self.encoded.drain(..written);
        Ok(())
    }

    /// Checks that the file is still at its path and has all written bytes.
    ///
    /// # Errors
    /// [`Error::Replaced`], [`Error::Io`].
    pub(crate) fn check_linked(&self) -> Result<(), Error> {
        let bytes = self.synced + self.written as u64;
        self.file.as_ref().map_or(Ok(()), |file| file_identity::check(file, &self.path, bytes))
    }

    /// Number of appended rows, written or not.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes in the file and in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.synced + self.encoded.len() as u64
    }

    /// Bytes in memory that wait for [`LiveWriter::sync`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        if self.rows == 0 { 0 } else { self.encoded.len() }
    }
}

/// Appends a message with its checksum.
fn frame(message: &EncodedData, out: &mut Vec<u8>) {
    let flat = &message.ipc_message;
    let padding = (PREFIX + flat.len() + CHECK).next_multiple_of(ALIGNMENT) - (PREFIX + flat.len() + CHECK);
    out.reserve(PREFIX + flat.len() + padding + CHECK + message.arrow_data.len());
    out.extend_from_slice(&CONTINUATION);
    out.extend_from_slice(&((flat.len() + padding + CHECK) as u32).to_le_bytes());
    let start = out.len();
    out.extend_from_slice(flat);
    out.extend_from_slice(&[0; ALIGNMENT][..padding]);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[start..]), &message.arrow_data);
    out.extend_from_slice(&CHECK_TAG);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&message.arrow_data);
}

fn check_columns(table: Table, expected: &SchemaRef, batch: &RecordBatch) -> Result<(), Error> {
    let found = batch.schema_ref();
    if std::sync::Arc::ptr_eq(expected, found) {
        return Ok(());
    }
    let wrong = |reason: String| Err(Error::Schema { table, reason });
    if expected.fields().len() != found.fields().len() {
        return wrong(format!(
            "expected {} columns, found {}",
            expected.fields().len(),
            found.fields().len()
        ));
    }
    for (e, f) in expected.fields().iter().zip(found.fields()) {
        if e.name() != f.name() || e.data_type() != f.data_type() {
            return wrong(format!(
                "expected `{}` of type {}, found `{}` of type {}",
                e.name(),
                e.data_type(),
                f.name(),
                f.data_type()
            ));
        }
        if !e.is_nullable() && batch.column_by_name(e.name()).is_some_and(|c| c.null_count() > 0) {
            return wrong(format!("`{}` must not be null", e.name()));
        }
    }
    Ok(())
}

//! Threads that decode columns of the same row group at the same time.

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema};
use bytes::{Bytes, BytesMut};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

/// Least number of columns per thread: handing over batches costs time.
const LEAST_COLUMNS: usize = 2;
/// Maximum number of threads, including the caller.
const MOST_THREADS: usize = 4;
/// Decoded batches of a thread that may wait.
const AHEAD: usize = 4;

type Decoded = Result<RecordBatch, ArrowError>;

/// A row group to decode, and where its batches go; `None` is its end.
struct Job {
    reader: ParquetRecordBatchReader,
    to: SyncSender<Option<Decoded>>,
}

/// Threads that decode beside the caller. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Decoders {
    threads: Vec<SyncSender<Job>>,
    /// Bytes of a row group that was decoded.
    spare: Mutex<Bytes>,
}

impl Decoders {
    /// Starts the threads for this number of columns. The caller and the threads are at most as
    /// many as there are processors.
    pub(crate) fn start(columns: usize) -> Decoders {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Decoders::beside_caller((columns / LEAST_COLUMNS).min(processors.min(MOST_THREADS)).saturating_sub(1))
    }

    /// Starts this number of threads, or fewer if the system refuses more.
    pub(crate) fn beside_caller(threads: usize) -> Decoders {
        Decoders { threads: (0..threads).map_while(|_| start().ok()).collect(), spare: Mutex::default() }
    }

    /// Keeps the bytes of a row group that was decoded. Their memory is for the next one, because
    /// new pages cost time.
    pub(crate) fn keep(&self, bytes: Bytes) {
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
    }

    /// Returns kept memory, which nobody else refers to.
    pub(crate) fn spare(&self) -> BytesMut {
        let spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        spare.try_into_mut().unwrap_or_default()
    }

    /// Divides columns between the caller, who gets the first share, and the threads; no share
    /// without threads. Each column has a cost, and the caller has some other work. The most
    /// expensive column goes first, each to the share that costs least until then (Graham, "Bounds
    /// on multiprocessing timing anomalies", 1969).
    pub(crate) fn shares<'a>(&self, mut columns: Vec<(&'a str, u64)>, other_work: u64) -> Vec<Vec<&'a str>> {
        if self.threads.is_empty() {
            return Vec::new();
        }
        let mut shares = vec![(other_work, Vec::new())];
        shares.resize(self.threads.len() + 1, (0, Vec::new()));
        columns.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        for (column, cost) in columns {
            if let Some((load, share)) = shares.iter_mut().min_by_key(|(load, _)| *load) {
                *load = load.saturating_add(cost);
                share.push(column);
            }
        }
        shares.into_iter().map(|(_, share)| share).collect()
    }

    /// Decodes a row group by the readers of its [shares](Self::shares).
    pub(crate) fn decode(
        &self,
        own: ParquetRecordBatchReader,
        others: Vec<ParquetRecordBatchReader>,
    ) -> Group {
        let hand_over = |(thread, reader): (&SyncSender<Job>, _)| {
            let (to, batches) = sync_channel(AHEAD);
            // A thread that is gone has panicked, which the group detects.
            let _ = thread.send(Job { reader, to });
            batches
        };
        Group { own, others: self.threads.iter().zip(others).map(hand_over).collect() }
    }
}

fn start() -> io::Result<SyncSender<Job>> {
    let (sender, jobs) = sync_channel::<Job>(1);
    let decode = move || jobs.into_iter().for_each(decode);
    thread::Builder::new().name("miot-decode".into()).spawn(decode)?;
    Ok(sender)
}

fn decode(job: Job) {
    let Job { mut reader, to } = job;
    for batch in reader.by_ref() {
        if to.send(Some(batch)).is_err() {
            return;
        }
    }
    // First, so that the memory of the row group is free when the caller sees the end.
    drop(reader);
    let _ = to.send(None);
}

/// Batches of a row group with the columns of all shares; ends after an error.
#[derive(Debug)]
pub(crate) struct Group {
    own: ParquetRecordBatchReader,
    others: Vec<Receiver<Option<Decoded>>>,
}

impl From<ParquetRecordBatchReader> for Group {
    fn from(own: ParquetRecordBatchReader) -> Group {
        Group { own, others: Vec::new() }
    }
}

impl Iterator for Group {
    type Item = Decoded;

    /// # Panics
    /// If a thread that decodes has panicked.
    fn next(&mut self) -> Option<Decoded> {
        let own = self.own.next();
        if self.others.is_empty() {
            return own;
        }
        let received = |batches: &Receiver<Option<Decoded>>| match batches.recv() {
            Ok(next) => next,
            Err(_) => panic!("a thread that decodes columns has panicked"),
        };
        join(own, self.others.iter().map(received).collect()).transpose()
    }
}

/// Joins the columns of batches with the same rows. All or none of the shares have ended.
fn join(own: Option<Decoded>, others: Vec<Option<Decoded>>) -> Result<Option<RecordBatch>, ArrowError> {
    let Some(own) = own.transpose()? else {
        return match others.into_iter().flatten().next() {
            Some(batch) => batch.and(Err(differ())),
            None => Ok(None),
        };
    };
    let rows = own.num_rows();
    let (mut fields, mut columns) = (own.schema().fields().to_vec(), own.columns().to_vec());
    for other in others {
        let other = other.ok_or_else(differ)??;
        if other.num_rows() != rows {
            return Err(differ());
        }
        fields.extend(other.schema().fields().iter().cloned());
        columns.extend_from_slice(other.columns());
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).map(Some)
}

fn differ() -> ArrowError {
    ArrowError::ParquetError("columns of a row group have different numbers of rows".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use arrow_array::{ArrayRef, Int64Array};
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::arrow::{ArrowWriter, ProjectionMask};

    const ROWS: i64 = 1000;
    const NAMES: [&str; 3] = ["a", "b", "c"];

    /// Returns a file with one row group.
    fn file() -> Bytes {
        let column =
            |nth: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values((0..ROWS).map(|n| n * nth))) };
        let batch = RecordBatch::try_from_iter(NAMES.into_iter().zip((1..).map(column))).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        file.into()
    }

    fn reader(file: &Bytes, columns: &[&str], batch: usize) -> ParquetRecordBatchReader {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap().with_batch_size(batch);
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
        builder.with_projection(mask).build().unwrap()
    }

    fn group(decoders: &Decoders, file: &Bytes, sizes: &[usize]) -> Group {
        let shares = decoders.shares(NAMES.map(|name| (name, 1)).to_vec(), 0);
        let mut readers =
            shares.iter().zip(sizes.iter().cycle()).map(|(share, size)| reader(file, share, *size));
        let own = readers.next().unwrap();
        decoders.decode(own, readers.collect())
    }

    #[test]
    fn rows_are_those_of_one_thread() {
        let file = file();
        let expected: Vec<RecordBatch> = reader(&file, &NAMES, 64).map(Result::unwrap).collect();
        // With four threads a share has no column.
        for threads in 1..=3 {
            let decoders = Decoders::beside_caller(threads);
            // The second row group is decoded after the first one was abandoned.
            assert_eq!(group(&decoders, &file, &[64]).next().unwrap().unwrap().num_columns(), 3);
            let found: Vec<RecordBatch> = group(&decoders, &file, &[64]).map(Result::unwrap).collect();
            let rows = |batches: &[RecordBatch], name: &str| -> Vec<ArrayRef> {
                batches.iter().map(|batch| Arc::clone(batch.column_by_name(name).unwrap())).collect()
            };
            for name in NAMES {
                assert_eq!(rows(&found, name), rows(&expected, name), "{name} with {threads} threads");
            }
        }
    }

    #[test]
    fn different_numbers_of_rows_are_an_error() {
        let decoders = Decoders::beside_caller(1);
        let mut group = group(&decoders, &file(), &[64, 65]);
        assert!(group.next().unwrap().unwrap_err().to_string().contains("different numbers"));
    }

    #[test]
    #[should_panic(expected = "has panicked")]
    fn lost_thread_is_no_end() {
        let (sender, _) = sync_channel(1);
        let decoders = Decoders { threads: vec![sender], spare: Mutex::default() };
        let _ = group(&decoders, &file(), &[64]).next();
    }

    #[test]
    fn shares_cost_about_the_same() {
        let columns = vec![("a", 3), ("b", 8), ("c", 2), ("d", 4)];
        let shares = Decoders::beside_caller(1).shares(columns, 5);
        assert_eq!(shares, [["d", "c"], ["b", "a"]]);
    }

    #[test]
    fn few_columns_are_decoded_by_the_caller() {
        assert!(Decoders::start(3).shares(vec![("a", 1)], 0).is_empty());
    }
}

//! The rows of one table of one part.

use crate::error::Error;
use crate::live_rows::LiveRows;
use crate::parquet_file::Batches;
use arrow_array::RecordBatch;

/// The rows of one table of one part; ends after an error.
pub(crate) enum PartRows {
    Sealed(Box<Batches>),
    Live(LiveRows),
    Nothing,
}

impl PartRows {
    /// Begins to decode the first row group in other threads, if there are any.
    pub(crate) fn begin_ahead(&mut self) {
        if let PartRows::Sealed(batches) = self {
            batches.begin_ahead();
        }
    }

    /// Returns true if these rows need the threads that decode only for what they decode now.
    pub(crate) fn have_begun(&self) -> bool {
        match self {
            PartRows::Sealed(batches) => batches.has_begun_all(),
            PartRows::Live(_) | PartRows::Nothing => true,
        }
    }
}

impl Iterator for PartRows {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            PartRows::Sealed(batches) => batches.next(),
            PartRows::Live(rows) => rows.next(),
            PartRows::Nothing => None,
        }
    }
}

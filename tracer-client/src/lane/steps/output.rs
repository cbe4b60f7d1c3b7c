//! Reports of a consumer.

use super::{Record, slots_of};
use miot_proto::batch::Columns;
use miot_proto::event::{RecordKind, flag};
use miot_proto::wire;

/// A report of the consumer. The reports of a stream are in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamOutput {
    /// A stream starts.
    Stream {
        /// Number of the stream.
        stream: u32,
        /// Index of the lane.
        lane: u32,
        /// Incarnation of the lane.
        incarnation: u32,
    },
    /// A record.
    Record {
        /// Number of the stream.
        stream: u32,
        /// The record.
        record: Record,
    },
    /// A stream ends.
    End {
        /// Number of the stream.
        stream: u32,
        /// Its totals.
        totals: Totals,
    },
}

/// Totals of a stream at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records that the lane has accepted or dropped.
    pub attempts: u64,
    /// Records dropped because the lane was full.
    pub lost_full: u64,
    /// Requests that the filter has excluded.
    pub filtered: u64,
}

impl From<&wire::Stream> for StreamOutput {
    fn from(of: &wire::Stream) -> StreamOutput {
        StreamOutput::Stream { stream: of.number, lane: of.key.lane, incarnation: of.key.incarnation }
    }
}

impl From<&wire::StreamEnd> for StreamOutput {
    fn from(end: &wire::StreamEnd) -> StreamOutput {
        let (attempts, lost_full, filtered) = (end.attempts, end.lost_full, end.filtered);
        StreamOutput::End { stream: end.stream, totals: Totals { attempts, lost_full, filtered } }
    }
}

/// Returns the records of a batch.
///
/// # Panics
/// If a record is torn.
#[must_use]
pub fn records(stream: u32, columns: &Columns) -> Vec<StreamOutput> {
    let mut ext = columns.ext.iter().peekable();
    let record = |row: usize| {
        let of_row = ext.next_if(|ext| ext.row as usize == row);
        let paths = of_row.map_or_else(Default::default, |ext| columns.paths(ext));
        let Some(kind) = RecordKind::from_number(columns.kind[row]) else { panic!("record of unknown kind") };
        let tag = if kind == RecordKind::File { columns.handle[row] } else { columns.offset[row] };
        let Some(slots) = slots_of(paths, tag) else { panic!("record {tag} is torn") };
        StreamOutput::Record {
            stream,
            record: Record {
                attempt: columns.attempt[row],
                tag,
                request: columns.request[row],
                enclosing: columns.enclosing[row],
                kind,
                slots,
                interrupted: columns.flags[row] & flag::INTERRUPTED != 0,
            },
        }
    };
    (0..columns.len()).map(record).collect()
}

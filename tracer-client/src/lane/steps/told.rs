//! What a consumer tells.

use super::{Record, slots_of};
use miot_proto::batch::Columns;
use miot_proto::event::{RecordKind, flag};
use miot_proto::wire;

/// What the consumer tells, stream by stream in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A stream appears.
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

/// What is known of a stream when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records that the lane was asked to take.
    pub attempts: u64,
    /// Records dropped because it was full.
    pub lost_full: u64,
    /// Requests that the filter left out.
    pub filtered: u64,
}

impl From<&wire::Stream> for Told {
    fn from(of: &wire::Stream) -> Told {
        Told::Stream { stream: of.number, lane: of.key.lane, incarnation: of.key.incarnation }
    }
}

impl From<&wire::StreamEnd> for Told {
    fn from(end: &wire::StreamEnd) -> Told {
        let (attempts, lost_full, filtered) = (end.attempts, end.lost_full, end.filtered);
        Told::End { stream: end.stream, totals: Totals { attempts, lost_full, filtered } }
    }
}

/// The records of a batch.
///
/// # Panics
/// If one is torn.
#[must_use]
pub fn records(stream: u32, columns: &Columns) -> Vec<Told> {
    let mut ext = columns.ext.iter().peekable();
    let record = |row: usize| {
        let of_row = ext.next_if(|ext| ext.row as usize == row);
        let paths = of_row.map_or_else(Default::default, |ext| columns.paths(ext));
        let Some(kind) = RecordKind::from_number(columns.kind[row]) else { panic!("a record of no kind") };
        let tag = if kind == RecordKind::File { columns.handle[row] } else { columns.offset[row] };
        let Some(slots) = slots_of(paths, tag) else { panic!("record {tag} is torn") };
        Told::Record {
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

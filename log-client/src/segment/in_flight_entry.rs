//! Requests in flight, as a lane entry shows them.

use super::memory::word;
use miot_proto::event::NONE;
use miot_proto::op::Op;
use miot_proto::segment::{LaneState, in_flight, lane};

/// Content of a lane entry, unchecked: false data of a producer affects only its own lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlightEntry {
    pub(crate) op: Op,
    pub(crate) number: u32,
    /// Begin, raw ticks.
    pub(crate) begin: u64,
    /// 0 if there is none.
    pub(crate) handle: u64,
    /// Encoded as in an event.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl InFlightEntry {
    /// Reads the request at offset `place` of an entry, if one is in flight there.
    pub(crate) fn read(entry: &[u8], place: usize) -> Option<InFlightEntry> {
        let field = |offset| word(entry, place + offset);
        let (op, number) = in_flight::read(field(in_flight::REQUEST), word(entry, lane::TAIL) >> 1)?;
        let handle = field(in_flight::HANDLE);
        // Without a handle these words belong to an earlier request.
        let of_file = |value| if handle == 0 { NONE } else { value };
        Some(InFlightEntry {
            op,
            number,
            begin: field(in_flight::BEGIN),
            handle,
            offset: of_file(field(in_flight::OFFSET)),
            length: of_file(field(in_flight::LENGTH)),
        })
    }
}

/// The requests that a claimed lane shows, with their thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LaneRequests {
    pub(crate) tid: u32,
    pub(crate) comm: [u8; 16],
    /// The innermost request.
    pub(crate) request: InFlightEntry,
    /// The outermost request, if that is another one.
    pub(crate) parent: Option<InFlightEntry>,
}

impl LaneRequests {
    /// `None` if the lane is not claimed, or shows no request.
    pub(crate) fn read(entry: &[u8]) -> Option<LaneRequests> {
        if word(entry, lane::STATE) as u32 != LaneState::Claimed as u32 {
            return None;
        }
        let inner = InFlightEntry::read(entry, lane::IN_FLIGHT);
        let outer = InFlightEntry::read(entry, lane::ENCLOSING);
        let comm = entry.get(lane::COMM..).and_then(<[u8]>::first_chunk)?;
        Some(LaneRequests {
            tid: u32::try_from(word(entry, lane::TID)).ok()?,
            comm: *comm,
            request: inner.or(outer)?,
            parent: inner.and(outer),
        })
    }
}

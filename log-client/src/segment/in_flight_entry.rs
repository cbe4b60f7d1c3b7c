//! Requests in flight, as a lane entry shows them.

use super::memory::{Memory, word};
use miot_proto::event::NONE;
use miot_proto::op::Op;
use miot_proto::segment::{LaneState, PENDING_BYTES, PENDING_ENTRIES, header, in_flight, lane, pending};

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

/// An asynchronous request in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingRequest {
    /// Thread that began it.
    pub(crate) tid: u32,
    /// Thread that it is for, 0 if unknown.
    pub(crate) caller: u32,
    pub(crate) request: InFlightEntry,
    /// Empty if unknown.
    pub(crate) path: Vec<u8>,
    /// Descriptor of its file, if the process shows that instead of a path.
    pub(crate) fd: Option<u32>,
}

impl PendingRequest {
    /// Reads the asynchronous requests of a segment whose header words are `words`. A request that
    /// begins or ends meanwhile is left out.
    pub(crate) fn read_all(memory: &dyn Memory, words: &[u8]) -> Vec<PendingRequest> {
        let at = word(words, header::PENDING);
        let used = usize::try_from(word(words, header::PENDING_USED))
            .map_or(PENDING_ENTRIES, |used| used.min(PENDING_ENTRIES));
        if at == 0 || used == 0 {
            return Vec::new();
        }
        let copy = || {
            let mut table = vec![0; used * PENDING_BYTES];
            memory.read(at, &mut table).ok().map(|()| table)
        };
        let (Some(first), Some(second)) = (copy(), copy()) else { return Vec::new() };
        let copies = first.chunks_exact(PENDING_BYTES).zip(second.chunks_exact(PENDING_BYTES));
        copies
            .filter(|(before, entry)| before == entry)
            .filter_map(|(_, entry)| PendingRequest::read(entry))
            .collect()
    }

    fn read(entry: &[u8]) -> Option<PendingRequest> {
        let (op, number) = pending::read(word(entry, pending::REQUEST))?;
        let threads = word(entry, pending::THREADS);
        let path = entry.get(pending::PATH..)?;
        Some(PendingRequest {
            tid: threads as u32,
            caller: (threads >> 32) as u32,
            request: InFlightEntry {
                op,
                number,
                begin: word(entry, pending::BEGIN),
                handle: word(entry, pending::HANDLE),
                offset: word(entry, pending::OFFSET),
                length: word(entry, pending::LENGTH),
            },
            path: path.split(|byte| *byte == 0).next().unwrap_or_default().to_vec(),
            fd: pending::descriptor(word(entry, pending::PATH)),
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

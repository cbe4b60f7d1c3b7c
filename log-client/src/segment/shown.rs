//! A request in flight, as its lane shows it.

use super::memory::word;
use miot_proto::event::NONE;
use miot_proto::op::Op;
use miot_proto::segment::{in_flight, lane};

/// What stands in the entry of a lane. Nothing of it is checked: a producer that lies does so about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) op: Op,
    pub(crate) number: u32,
    /// Begin, raw ticks.
    pub(crate) begin: u64,
    /// 0 if there is none.
    pub(crate) handle: u64,
    /// As in an event.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Shown {
    /// The request at this place of an entry, if one is in flight there.
    pub(crate) fn read(entry: &[u8], place: usize) -> Option<Shown> {
        let field = |offset| word(entry, place + offset);
        let (op, number) = in_flight::read(field(in_flight::REQUEST), word(entry, lane::TAIL) >> 1)?;
        let handle = field(in_flight::HANDLE);
        // Without a handle they are what an earlier request left.
        let of_file = |value| if handle == 0 { NONE } else { value };
        Some(Shown {
            op,
            number,
            begin: field(in_flight::BEGIN),
            handle,
            offset: of_file(field(in_flight::OFFSET)),
            length: of_file(field(in_flight::LENGTH)),
        })
    }
}

//! A pass over the events of a trace, with what follows from earlier events.

use crate::source::Source;
use arrow_array::RecordBatch;
use miot_proto::op::Layer;
use miot_trace_analysis::{Place, Places};
use miot_trace_events::events::FILE_COLUMNS;
use miot_trace_events::{Event, EventNames, Events, Outermost};
use miot_trace_store::{FileNames, Reader};

/// A pass over a trace.
pub(super) struct Pass<'a> {
    /// Receives each batch.
    pub(super) batches: &'a mut dyn FnMut(&RecordBatch),
    /// Returns true if the events of a file are needed. Events of MPI-IO always are, because their
    /// places depend on earlier ones.
    pub(super) is_needed: &'a dyn Fn(Option<u64>) -> bool,
}

impl Pass<'_> {
    /// Passes each needed event to a closure, with its place and whether it is an outermost
    /// request.
    pub(super) fn read(
        self,
        source: &Source,
        reader: &Reader,
        paths: &FileNames,
        to: &mut dyn FnMut(&Event, &Place, bool),
    ) -> anyhow::Result<()> {
        let (mut names, mut outermost) = (EventNames::default(), Outermost::default());
        let mut places = Places::default();
        for batch in source.scan(reader, FILE_COLUMNS)? {
            let batch = batch?;
            (self.batches)(&batch);
            let Some(mut events) = Events::of(&batch, &mut names) else { continue };
            for row in 0..events.rows() {
                if !(self.is_needed)(events.file(row)) && events.layer(row) != Some(Layer::MpiIo) {
                    outermost.see(&events, row);
                    continue;
                }
                let event = events.get(row);
                let place = places.of(&event, paths);
                to(&event, &place, outermost.is(&event));
            }
        }
        Ok(())
    }
}

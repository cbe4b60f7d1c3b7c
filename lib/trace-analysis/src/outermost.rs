//! Which requests are made by a program itself, and not within another request.

use crate::by_id::ById;
use crate::events::Event;
use std::collections::HashSet;

/// Tells outermost requests from those that were made within them: in the same thread, or by a file-system client that
/// serves a thread which is traced itself. Each byte of the outermost ones was asked for once.
#[derive(Debug, Default)]
pub struct Outermost {
    /// Streams seen, so that the threads below are looked up once a stream.
    streams: ById<bool>,
    /// Node and thread.
    traced: HashSet<(u32, u32)>,
}

impl Outermost {
    /// True for an outermost request. Events have to come in order.
    pub fn is(&mut self, event: &Event) -> bool {
        if !std::mem::replace(self.streams.get(event.stream), true) {
            self.traced.insert((event.node, event.tid));
        }
        let is_served = || event.caller.is_some_and(|caller| self.traced.contains(&(event.node, caller)));
        event.enclosing.is_none() && !is_served()
    }
}

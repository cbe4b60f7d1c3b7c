//! Requests without a parent: those that a program made itself, not during another request.

use crate::by_id::ById;
use crate::events::{Event, EventNames, Events};
use arrow_array::RecordBatch;
use miot_trace_store::IdSet;

/// Distinguishes outermost requests from their children: requests made during them in the same
/// thread, or by a file-system client that serves a traced thread. Each byte that a program
/// requested is in exactly one outermost request.
#[derive(Debug, Default)]
pub struct Outermost {
    /// Streams seen, so that `traced` is changed once per stream.
    streams: ById<bool>,
    /// Pairs of node and thread.
    traced: IdSet<(u32, u32)>,
}

impl Outermost {
    /// Returns true if `event` is an outermost request. Events must come in the order of the trace.
    #[inline]
    pub fn is(&mut self, event: &Event) -> bool {
        self.see_thread(event.stream, event.node, event.tid);
        let is_served = || event.caller.is_some_and(|caller| self.traced.contains(&(event.node, caller)));
        event.enclosing.is_none() && !is_served()
    }

    /// Adds the event of a row, for which it is not needed whether it is an outermost request.
    #[inline]
    pub fn see(&mut self, events: &Events<'_>, row: usize) {
        let (stream, node, tid) = events.thread(row);
        self.see_thread(stream, node, tid);
    }

    #[inline]
    fn see_thread(&mut self, stream: u64, node: u32, tid: u32) {
        if !std::mem::replace(self.streams.get(stream), true) {
            self.traced.insert((node, tid));
        }
    }
}

/// State that an analysis of outermost requests keeps between batches.
#[derive(Debug, Default)]
pub struct OutermostEvents {
    /// Names of the numbers in the events so far.
    pub names: EventNames,
    outermost: Outermost,
}

/// Calls `f` with the analysis, each event of a batch and whether the event is an outermost
/// request. `state` returns the state between batches; it is moved out of the analysis while `f`
/// runs. Batches must come in the order of the trace. A batch without
/// [`crate::events::FEWEST_COLUMNS`] has no events.
pub fn each_event<A>(
    analysis: &mut A,
    state: fn(&mut A) -> &mut OutermostEvents,
    batch: &RecordBatch,
    mut f: impl FnMut(&mut A, &Event, bool),
) {
    let OutermostEvents { mut names, mut outermost } = std::mem::take(state(analysis));
    if let Some(mut events) = Events::of(batch, &mut names) {
        for row in 0..events.rows() {
            let event = events.get(row);
            let is_outermost = outermost.is(&event);
            f(analysis, &event, is_outermost);
        }
    }
    *state(analysis) = OutermostEvents { names, outermost };
}

/// Calls `f` with the analysis and each outermost request of a batch; see [`each_event`].
pub fn each_outermost<A>(
    analysis: &mut A,
    state: fn(&mut A) -> &mut OutermostEvents,
    batch: &RecordBatch,
    mut f: impl FnMut(&mut A, &Event),
) {
    each_event(analysis, state, batch, |analysis, event, is_outermost| {
        if is_outermost {
            f(analysis, event);
        }
    });
}

//! From a message of a node to an input of the store, with the server's times.

use super::limits::MAX_AHEAD_NS;
use crate::clock::{Correction, NodeClock};
use crate::ids::Seq;
use crate::store::input::NodeInput;
use crate::store::merge::{GivenUp, MAX_ATTEMPT};
use miot_proto::batch::Columns;
use miot_proto::wire::{Message, Resume};
use std::sync::Arc;

/// An input of the store.
#[derive(Debug)]
pub(crate) struct Converted {
    pub(crate) input: NodeInput,
    /// Pieces of the correction that the store must have before it.
    pub(crate) pieces: Vec<Correction>,
    /// Number of its events with times that are too far in the future.
    pub(crate) future_events: usize,
}

/// Converts a message and the rows of its batch. `None` for a message that is not for the store.
/// `now`: the server's time, nanoseconds since 1970.
pub(crate) fn input_of(
    message: Message,
    rows: Option<Arc<Columns>>,
    clock: &mut NodeClock,
    now: i64,
) -> Option<Converted> {
    let latest = now.saturating_add(MAX_AHEAD_NS);
    let mut future_events = 0;
    let mut merged = |time: i64| clock.time(time, latest);
    let input = match message {
        Message::Process { seq, mut process } => {
            process.started = merged(process.started);
            NodeInput::Process { seq: Seq(seq), process }
        }
        Message::Stream { seq, stream } => NodeInput::Stream { seq: Seq(seq), stream },
        Message::Batch { seq, stream: number, after, .. } => {
            let mut columns = rows.unwrap_or_default();
            future_events = clock.convert(Arc::make_mut(&mut columns), latest);
            NodeInput::Batch { seq: Seq(seq), number, after, columns }
        }
        Message::GivenUp { seq, stream: number, after, mut ranges, time } => {
            // A hostile process can write any number into its segment.
            ranges.retain(|(first, _)| *first < MAX_ATTEMPT);
            ranges.iter_mut().for_each(|(_, last)| *last = (*last).min(MAX_ATTEMPT - 1));
            let given_up = GivenUp { after, ranges, time: merged(time) };
            NodeInput::GivenUp { seq: Seq(seq), number, given_up }
        }
        Message::StreamEnd { seq, mut end } => {
            end.time = merged(end.time);
            (end.attempts, end.after) = (end.attempts.min(MAX_ATTEMPT), end.after.min(MAX_ATTEMPT));
            NodeInput::StreamEnd { seq: Seq(seq), end }
        }
        Message::ProcessEnd { seq, key, time, lost } => {
            NodeInput::ProcessEnd { seq: Seq(seq), key, time: merged(time), lost }
        }
        Message::Resume { seq, resume } => {
            let resume = match resume {
                Resume::Stream { stream, from, lost_nested, filtered, time } => {
                    let (from, time) = (from.min(MAX_ATTEMPT), merged(time));
                    Resume::Stream { stream, from, lost_nested, filtered, time }
                }
                Resume::Process { key, no_lane, time } => {
                    Resume::Process { key, no_lane, time: merged(time) }
                }
            };
            NodeInput::Resume { seq: Seq(seq), resume }
        }
        Message::Devices { seq, mut sample } => {
            sample.time = merged(sample.time);
            NodeInput::Devices { seq: Seq(seq), sample }
        }
        Message::Heartbeat { watermark } => NodeInput::Heartbeat { watermark: merged(watermark) },
        Message::SuspendWatermark => NodeInput::Aside,
        Message::AckAtOnce => NodeInput::AckAtOnce,
        Message::Bye => NodeInput::Bye,
        _ => return None,
    };
    Some(Converted { input, pieces: clock.take_restated(), future_events })
}

//! Attempt numbers of each stream: they increase, and every gap has rows of `losses` or records.

use super::report::{CheckReport, ProblemKind};
use crate::ledger::Span;
use crate::ranges::{Range, merged, without};
use std::collections::HashMap;

#[derive(Default)]
struct Stream {
    /// Number after the last event; 0 without events.
    next: u64,
    time: i64,
    /// Earlier numbers were in parts that were removed.
    begin: u64,
    /// Range of numbers that the ledger has: the first one, and the one after the last.
    known: Range,
    gaps: Vec<Range>,
    accounted: Vec<Range>,
}

/// All streams of a trace.
#[derive(Default)]
pub(super) struct Streams {
    streams: HashMap<u64, Stream>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.streams.values().filter(|s| s.next > s.begin || !s.accounted.is_empty()).count()
    }

    /// Sets the number with which the events of a stream begin, after removed parts.
    pub(super) fn set_begin(&mut self, stream: u64, next: u64) {
        let stream = self.streams.entry(stream).or_default();
        (stream.begin, stream.next) = (next, next);
    }

    /// Adds the range of numbers that the ledger has of a stream.
    pub(super) fn add_ledger_span(&mut self, stream: u64, span: &Span) {
        let known = &mut self.streams.entry(stream).or_default().known;
        let first = if known.1 == 0 { span.first } else { known.0.min(span.first) };
        *known = (first, known.1.max(span.next));
    }

    /// Adds the next event of a stream, in the order of the trace.
    pub(super) fn add_event(
        &mut self,
        stream: u64,
        seq: u64,
        time: i64,
    ) -> Result<(), (ProblemKind, String)> {
        let stream = self.streams.entry(stream).or_default();
        if seq < stream.next {
            return Err((
                ProblemKind::Duplicate,
                format!("number {} of the stream comes before it", stream.next - 1),
            ));
        }
        if seq > stream.next {
            stream.gaps.push((stream.next, seq - 1));
        }
        let before = std::mem::replace(&mut stream.time, time);
        let first = std::mem::replace(&mut stream.next, seq.saturating_add(1)) == 0;
        if !first && time < before {
            return Err((
                ProblemKind::Disorder,
                format!("{} ns earlier than the previous event of its stream", before - time),
            ));
        }
        Ok(())
    }

    /// Adds numbers of a stream that are not events: losses and records.
    pub(super) fn add_accounted(&mut self, stream: u64, first: u64, last: u64) {
        self.streams.entry(stream).or_default().accounted.push((first, last));
    }

    /// Reports gaps without losses or records, and losses and records of numbers that are events.
    /// `from_start`: the first number of each stream is known.
    pub(super) fn report_gaps(&mut self, from_start: bool, report: &mut CheckReport) {
        let mut ids: Vec<u64> = self.streams.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if !from_start && stream.gaps.first().is_some_and(|gap| gap.0 == 0) {
                stream.gaps.remove(0);
            }
            let end = stream.next.max(stream.known.0);
            if end < stream.known.1 {
                stream.gaps.push((end, stream.known.1 - 1));
            }
            let mut accounted = merged(std::mem::take(&mut stream.accounted));
            accounted.retain(|range| range.1 >= stream.begin);
            accounted.iter_mut().for_each(|range| range.0 = range.0.max(stream.begin));
            for (first, last) in without(&stream.gaps, &accounted) {
                let known = if last < stream.known.1 { ", which the ledger has" } else { "" };
                let text =
                    format!("stream {id}: {} missing, numbers {first} to {last}{known}", last - first + 1);
                report.known_gaps |= last < stream.known.1;
                report.gaps.push((id, first, last));
                report.add(ProblemKind::Gap, None, text);
            }
            if from_start {
                // Numbers after the last event may be lost.
                let end = stream.next;
                let before_end = accounted.iter().filter(|r| r.0 < end).map(|r| (r.0, r.1.min(end - 1)));
                let inner: Vec<Range> = before_end.collect();
                for (first, last) in without(&inner, &stream.gaps) {
                    let text = format!(
                        "stream {id}: numbers {first} to {last} are recorded as losses or records, but are events"
                    );
                    report.add(ProblemKind::Loss, None, text);
                }
            }
        }
    }
}

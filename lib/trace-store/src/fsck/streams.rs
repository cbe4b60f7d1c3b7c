//! Numbers of each stream: increasing, and every gap accounted for.

use super::report::{Kind, Report};
use crate::ledger::Span;
use crate::ranges::{Range, merged, without};
use std::collections::HashMap;

#[derive(Default)]
struct Stream {
    /// Number after the last event; 0: none yet.
    next: u64,
    time: i64,
    /// What came before stood in parts that were removed.
    begin: u64,
    /// Numbers that the trace has had, as the ledger tells: from which one on, and the one after.
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

    /// The events of a stream go on with this number.
    pub(super) fn begin(&mut self, stream: u64, next: u64) {
        let stream = self.streams.entry(stream).or_default();
        (stream.begin, stream.next) = (next, next);
    }

    /// The ledger says that the trace has had these numbers of a stream.
    pub(super) fn known(&mut self, stream: u64, span: &Span) {
        let known = &mut self.streams.entry(stream).or_default().known;
        let first = if known.1 == 0 { span.first } else { known.0.min(span.first) };
        *known = (first, known.1.max(span.next));
    }

    /// The next event of a stream, in the order of the trace.
    pub(super) fn event(&mut self, stream: u64, seq: u64, time: i64) -> Result<(), (Kind, String)> {
        let stream = self.streams.entry(stream).or_default();
        if seq < stream.next {
            return Err((Kind::Duplicate, format!("number {} of the stream was before it", stream.next - 1)));
        }
        if seq > stream.next {
            stream.gaps.push((stream.next, seq - 1));
        }
        let before = std::mem::replace(&mut stream.time, time);
        let first = std::mem::replace(&mut stream.next, seq.saturating_add(1)) == 0;
        if !first && time < before {
            return Err((
                Kind::Disorder,
                format!("{} ns before the event before it in its stream", before - time),
            ));
        }
        Ok(())
    }

    /// Numbers of a stream that are not events: lost, or records.
    pub(super) fn accounted(&mut self, stream: u64, first: u64, last: u64) {
        self.streams.entry(stream).or_default().accounted.push((first, last));
    }

    /// Reports gaps that nothing accounts for, and what is accounted for and is there.
    /// `from_start`: it is known with which number each stream begins.
    pub(super) fn account(&mut self, from_start: bool, report: &mut Report) {
        let mut ids: Vec<u64> = self.streams.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if !from_start && stream.gaps.first().is_some_and(|gap| gap.0 == 0) {
                stream.gaps.remove(0);
            }
            let end = stream.next.max(stream.known.0);
            let behind = end < stream.known.1;
            if behind {
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
                report.add(Kind::Gap, None, text);
            }
            if from_start {
                // After the last event anything may be lost.
                let end = stream.next;
                let before_end = accounted.iter().filter(|r| r.0 < end).map(|r| (r.0, r.1.min(end - 1)));
                let inner: Vec<Range> = before_end.collect();
                for (first, last) in without(&inner, &stream.gaps) {
                    let text = format!(
                        "stream {id}: numbers {first} to {last} are told as lost or as records, and are events"
                    );
                    report.add(Kind::Loss, None, text);
                }
            }
        }
    }
}

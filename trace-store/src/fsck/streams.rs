//! Numbers of each stream: increasing, and every gap accounted for.

use super::report::{Kind, Report};
use std::collections::HashMap;

/// First and last number, both included.
type Range = (u64, u64);

#[derive(Default)]
struct Stream {
    /// Number after the last event; 0: none yet.
    next: u64,
    time: i64,
    /// What came before stood in parts that were removed.
    begin: u64,
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
    pub(super) fn account(&mut self, from_start: bool, report: &mut Report) {
        let mut ids: Vec<u64> = self.streams.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if !from_start && stream.gaps.first().is_some_and(|gap| gap.0 == 0) {
                stream.gaps.remove(0);
            }
            let mut accounted = merged(std::mem::take(&mut stream.accounted));
            accounted.retain(|range| range.1 >= stream.begin);
            accounted.iter_mut().for_each(|range| range.0 = range.0.max(stream.begin));
            for (first, last) in without(&stream.gaps, &accounted) {
                let text = format!("stream {id}: {} missing, numbers {first} to {last}", last - first + 1);
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

/// Sorted, overlapping and touching ranges joined.
fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out
}

/// What is in `ranges` and not in `others`; both sorted and without overlap.
fn without(ranges: &[Range], others: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    let mut skip = 0;
    for (first, last) in ranges {
        let mut first = *first;
        while others.get(skip).is_some_and(|o| o.1 < first) {
            skip += 1;
        }
        let mut covered = false;
        for other in &others[skip..] {
            if other.0 > *last {
                break;
            }
            if other.0 > first {
                out.push((first, other.0 - 1));
            }
            match other.1.checked_add(1) {
                Some(next) if next <= *last => first = next,
                _ => {
                    covered = true;
                    break;
                }
            }
        }
        if !covered {
            out.push((first, *last));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{merged, without};

    #[test]
    fn ranges_are_joined_and_taken_away() {
        assert_eq!(merged(vec![(5, 6), (0, 1), (2, 3), (5, 9)]), [(0, 3), (5, 9)]);
        assert_eq!(without(&[(0, 9), (20, 29)], &[]), [(0, 9), (20, 29)]);
        assert_eq!(without(&[(0, 9), (20, 29)], &[(0, 9), (20, 40)]), []);
        assert_eq!(
            without(&[(0, 9), (20, 29)], &[(3, 4), (9, 21), (25, 25)]),
            [(0, 2), (5, 8), (22, 24), (26, 29)]
        );
        assert_eq!(without(&[(3, 5)], &[(0, u64::MAX)]), []);
        assert_eq!(without(&[(3, 5), (7, 7)], &[(0, 2), (6, 6)]), [(3, 5), (7, 7)]);
    }
}

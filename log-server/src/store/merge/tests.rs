//! Tests of the merge against an oracle that sorts all rows at the end.

use super::*;
use miot_proto::event::Event;
use miot_proto::op;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

/// Attempt number and time of a row.
type AttemptAndTime = (u64, i64);

fn batch(rows: &[AttemptAndTime]) -> Columns {
    let mut columns = Columns::default();
    for &(attempt, time) in rows {
        columns.push(1, attempt, time, 0, &event(attempt), None);
    }
    columns
}

fn event(attempt: u64) -> Event {
    Event {
        op: op::posix::READ,
        request: attempt as u32,
        enclosing: 0,
        end: 0,
        duration: 0,
        flags: 0,
        handle: 0,
        offset: 0,
        length: 0,
        result: 0,
    }
}

/// Collects the output of steps.
#[derive(Default)]
struct Output {
    keys: Vec<(RowKey, bool)>,
    gaps: Vec<Gap>,
    ended: Vec<EndedStream>,
    tickets: Vec<u32>,
}

impl Output {
    fn take(&mut self, step: MergeStep<u32>) {
        for (i, at) in step.order.iter().enumerate() {
            let source = &step.sources[at.source as usize];
            let attempt = source.columns.attempt[at.row as usize];
            assert_eq!(at.time, source.columns.time[at.row as usize]);
            self.keys.push((RowKey { time: at.time, stream: source.stream, attempt }, i < step.late));
        }
        self.gaps.extend(step.gaps);
        self.ended.extend(step.ended);
        self.tickets.extend(step.tickets);
    }

    fn drain(&mut self, merge: &mut Merge<u32>, bound: Option<i64>, limit: usize) {
        loop {
            let step = merge.step(bound, limit);
            let more = step.more;
            self.take(step);
            if !more {
                return;
            }
        }
    }

    fn rows(&self) -> Vec<RowKey> {
        self.keys.iter().map(|(key, _)| *key).collect()
    }
}

fn end(attempts: u64) -> StreamEnd {
    StreamEnd { stream: 0, attempts, after: 0, lost_full: 0, lost_nested: 0, filtered: 0, time: 1_000_000 }
}

/// Generates rows of one stream from differences of attempt number and time: there are gaps and
/// equal times.
fn stream_rows() -> impl Strategy<Value = Vec<AttemptAndTime>> {
    prop::collection::vec(
        (prop_oneof![6 => Just(1u64), 1 => 2u64..5], prop_oneof![3 => 0i64..3, 1 => -20i64..40]),
        0..60,
    )
    .prop_map(|steps| {
        let (mut attempt, mut time) = (0, 0);
        steps
            .into_iter()
            .map(|(step, dt)| {
                attempt += step;
                time += dt;
                (attempt - 1, time)
            })
            .collect()
    })
}

/// Keys that the trace must have for a stream: times do not decrease.
fn expected(stream: StreamId, rows: &[AttemptAndTime]) -> Vec<RowKey> {
    let mut last = i64::MIN;
    rows.iter()
        .map(|&(attempt, time)| {
            last = last.max(time);
            RowKey { time: last, stream, attempt }
        })
        .collect()
}

fn missing(keys: &[RowKey], attempts: u64) -> BTreeSet<u64> {
    let seen: BTreeSet<u64> = keys.iter().map(|k| k.attempt).collect();
    (0..attempts).filter(|n| !seen.contains(n)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Batches of any size arrive in any interleaving, with repeated rows. The bounds are correct
    /// watermarks of the rows that arrived. No row is late and all rows are sorted.
    #[test]
    fn correct_watermarks_give_all_rows_sorted(
        streams in prop::collection::vec(stream_rows(), 1..6),
        choices in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, 0usize..6, any::<bool>()), 0..120),
        limit in 1usize..50,
        ends in any::<bool>(),
    ) {
        let want: Vec<Vec<RowKey>> = streams.iter().zip(1..).map(|(rows, id)| expected(StreamId(id), rows)).collect();
        let mut merge = Merge::new(None);
        (1..=streams.len() as u64).for_each(|id| merge.add_stream(StreamId(id), 0));
        let mut sent = vec![0usize; streams.len()];
        let mut out = Output::default();
        let mut tickets = 0;
        // Last row of the stream that each ticket covers.
        let mut covers: HashMap<u32, RowKey> = HashMap::new();
        for (which, count, back, step) in choices {
            let i = which.index(streams.len());
            let from = sent[i].min(sent[i].saturating_sub(back));
            let to = (sent[i] + count).min(streams[i].len());
            let added = merge.push(StreamId(i as u64 + 1), 0, batch(&streams[i][from..to]), tickets);
            prop_assert_eq!(added, to - sent[i]);
            if let Some(key) = to.checked_sub(1).and_then(|last| want[i].get(last)) {
                covers.insert(tickets, *key);
            }
            tickets += 1;
            sent[i] = to;
            if step {
                // No unsent row is before this bound.
                let bound = want.iter().zip(&sent).filter_map(|(keys, sent)| keys.get(*sent)).map(|k| k.time).min();
                let taken = out.tickets.len();
                let one = merge.step(bound, limit);
                for key in one.order.iter() {
                    prop_assert!(bound.is_none_or(|b| key.time < b));
                }
                out.take(one);
                let given: BTreeSet<RowKey> = out.rows().into_iter().collect();
                for ticket in &out.tickets[taken..] {
                    prop_assert!(covers.get(ticket).is_none_or(|key| given.contains(key)), "ticket returned before its rows");
                }
            }
        }
        for (i, rows) in streams.iter().enumerate() {
            merge.push(StreamId(i as u64 + 1), 0, batch(&rows[sent[i]..]), tickets);
            tickets += 1;
            if ends {
                let attempts = rows.last().map_or(0, |r| r.0 + 1) + i as u64;
                merge.end(StreamId(i as u64 + 1), end(attempts), tickets);
                tickets += 1;
            }
        }
        out.drain(&mut merge, None, limit);

        prop_assert!(merge.is_idle() && merge.rows() == 0);
        prop_assert!(out.keys.iter().all(|(_, late)| !late));
        let mut all: Vec<RowKey> = want.iter().flatten().copied().collect();
        all.sort();
        prop_assert_eq!(out.rows(), all);
        let mut given = out.tickets.clone();
        given.sort_unstable();
        prop_assert_eq!(given, (0..tickets).collect::<Vec<_>>());
        prop_assert_eq!(out.ended.len(), if ends { streams.len() } else { 0 });
        for (i, keys) in want.iter().enumerate() {
            let stream = StreamId(i as u64 + 1);
            let attempts = keys.last().map_or(0, |k| k.attempt + 1) + if ends { i as u64 } else { 0 };
            let mut reported = BTreeSet::new();
            for gap in out.gaps.iter().filter(|g| g.stream == stream) {
                for number in gap.first..=gap.last {
                    prop_assert!(reported.insert(number), "{number} is reported twice");
                }
                if let Some(after) = keys.iter().find(|k| k.attempt == gap.last + 1) {
                    prop_assert_eq!(gap.time, after.time);
                }
            }
            prop_assert_eq!(reported, missing(keys, attempts));
        }
    }

    /// With wrong watermarks, each row still comes once and in stream order, late rows are marked,
    /// and all other rows are sorted.
    #[test]
    fn wrong_watermarks_give_marked_late_rows(
        streams in prop::collection::vec(stream_rows(), 1..6),
        choices in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, -50i64..100), 0..80),
        limit in 1usize..50,
    ) {
        let mut merge = Merge::new(None);
        let mut sent = vec![0usize; streams.len()];
        let mut out = Output::default();
        (1..=streams.len() as u64).for_each(|id| merge.add_stream(StreamId(id), 0));
        for (which, count, bound) in choices {
            let i = which.index(streams.len());
            let to = (sent[i] + count).min(streams[i].len());
            merge.push(StreamId(i as u64 + 1), 0, batch(&streams[i][sent[i]..to]), 0);
            sent[i] = to;
            out.take(merge.step(Some(bound), limit));
        }
        for (i, rows) in streams.iter().enumerate() {
            merge.push(StreamId(i as u64 + 1), 0, batch(&rows[sent[i]..]), 0);
        }
        out.drain(&mut merge, None, limit);

        let mut last = None;
        for (key, late) in &out.keys {
            if *late {
                prop_assert!(last > Some(*key), "marked late, but in order");
            } else {
                prop_assert!(last < Some(*key), "{key:?} after {last:?} and not marked");
                last = Some(*key);
            }
        }
        for (rows, stream) in streams.iter().zip((1..).map(StreamId)) {
            let got: Vec<RowKey> = out.rows().into_iter().filter(|k| k.stream == stream).collect();
            prop_assert_eq!(got, expected(stream, rows));
        }
    }
}

#[test]
fn rows_without_increasing_attempts_are_dropped() {
    let mut merge = Merge::new(None);
    merge.add_stream(StreamId(1), 0);
    assert_eq!(merge.push(StreamId(1), 0, batch(&[(0, 1), (2, 2), (1, 3), (2, 4), (3, 5)]), 0), 3);
    let mut out = Output::default();
    out.drain(&mut merge, None, 100);
    let keys: Vec<_> = out.rows().iter().map(|k| (k.attempt, k.time)).collect();
    assert_eq!(keys, [(0, 1), (2, 2), (3, 5)]);
    assert_eq!(out.gaps, [Gap { stream: StreamId(1), place: LANE_FULL, time: 2, first: 1, last: 1 }]);
}

#[test]
fn extensions_stay_with_their_rows() {
    let mut columns = batch(&[(0, 1), (0, 2), (1, 3)]);
    columns.text = b"/dropped/kept".to_vec();
    let ext = |row, text, len1| miot_proto::batch::ExtRow {
        row,
        words: [None; miot_proto::event::EXT_WORDS],
        text,
        len1,
        len2: 0,
    };
    columns.ext = vec![ext(1, 0, 8), ext(2, 8, 5)];
    assert_eq!(drop_seen(&mut columns, 0), 0);
    assert_eq!(columns.attempt, [0, 1]);
    assert_eq!(columns.ext.len(), 1);
    assert_eq!((columns.ext[0].row, columns.paths(&columns.ext[0]).0), (1, &b"/kept"[..]));
}

#[test]
fn row_whose_time_goes_back_is_moved_and_marked() {
    let mut merge = Merge::new(None);
    let mut columns = batch(&[(0, 10), (1, 7), (2, 12)]);
    columns.op[1] = op::app::DEBUG;
    merge.push(StreamId(1), 0, columns, 1);
    merge.push(StreamId(1), 3, batch(&[(3, 11), (4, 13)]), 2);
    let step: MergeStep<u32> = merge.step(None, 100);
    let rows = step.order.iter().map(|at| {
        let columns = &step.sources[at.source as usize].columns;
        (at.time, columns.flags[at.row as usize])
    });
    let marked = [(10, 0), (10, flag::OFFSET_QUERIED), (12, 0), (12, flag::MOVED), (13, 0)];
    assert_eq!(rows.collect::<Vec<_>>(), marked);
}

/// A node with a damaged spool repeats its report.
#[test]
fn missing_events_are_lost_exactly_once() {
    let mut merge = Merge::new(None);
    let mut out = Output::default();
    let taken = |after, time| GivenUp { after, ranges: Vec::new(), time };
    merge.push(StreamId(1), 0, batch(&[(0, 10), (1, 11)]), 1);
    for ticket in 2..4 {
        merge.give_up(StreamId(1), taken(5, 20), ticket);
    }
    merge.push(StreamId(1), 5, batch(&[(5, 30)]), 4);
    // An earlier report is repeated later.
    merge.give_up(StreamId(1), taken(4, 20), 5);
    out.drain(&mut merge, None, 100);
    let lost = Gap { stream: StreamId(1), place: SPOOL_DAMAGED, time: 20, first: 2, last: 4 };
    assert_eq!((out.gaps, out.tickets.len()), (vec![lost], 5));
    assert_eq!(out.keys.len(), 3);
}

#[test]
fn step_lists_emptied_streams() {
    let mut merge = Merge::new(None);
    merge.push(StreamId(1), 0, batch(&[(0, 10)]), 1);
    merge.push(StreamId(2), 0, batch(&[(0, 10), (1, 20)]), 2);
    merge.add_stream(StreamId(3), 0);
    assert_eq!(merge.step(Some(15), 100).emptied, [StreamId(1)]);
    assert!(merge.is_waiting(StreamId(2)) && !merge.is_waiting(StreamId(1)));
    merge.end(StreamId(2), end(2), 3);
    assert_eq!(merge.step(Some(15), 100).emptied, [StreamId(0); 0]);
    assert_eq!(merge.step(None, 100).emptied, [StreamId(2)]);
}

#[test]
fn merge_continues_where_the_trace_ends() {
    let mut merge = Merge::new(Some(RowKey { time: 10, stream: StreamId(2), attempt: 5 }));
    merge.add_stream(StreamId(1), 3);
    merge.add_stream(StreamId(2), 6);
    // 0..3 are in the trace already; at time 10, stream 1 sorts before stream 2.
    assert_eq!(merge.push(StreamId(1), 0, batch(&[(1, 8), (2, 9), (3, 10)]), 0), 1);
    assert_eq!(merge.push(StreamId(2), 0, batch(&[(6, 10)]), 0), 1);
    let mut out = Output::default();
    out.drain(&mut merge, None, 100);
    let got: Vec<_> = out.keys.iter().map(|(k, late)| (k.stream.0, k.attempt, *late)).collect();
    assert_eq!(got, [(1, 3, true), (2, 6, false)]);
}

#[test]
fn largest_attempt_number_is_dropped() {
    let mut merge = Merge::new(None);
    merge.add_stream(StreamId(1), 0);
    merge.push(StreamId(1), 0, batch(&[(MAX_ATTEMPT - 1, 1), (MAX_ATTEMPT, 2)]), 0);
    merge.push(StreamId(1), 0, batch(&[(u64::MAX, 3)]), 1);
    let mut out = Output::default();
    out.drain(&mut merge, None, 10);
    assert_eq!(out.rows(), [RowKey { time: 1, stream: StreamId(1), attempt: MAX_ATTEMPT - 1 }]);
    assert_eq!(out.gaps.len(), 1);
    assert_eq!(out.tickets, [0, 1]);
}

/// Each number is lost once, at the place that follows from the node's reports.
#[test]
fn gaps_have_the_place_that_the_node_reports() {
    let mut merge = Merge::new(None);
    merge.add_stream(StreamId(1), 0);
    merge.push(StreamId(1), 0, batch(&[(0, 1), (1, 2)]), 0);
    // 2..=4 were lost on the way, 5 was lost in the lane.
    merge.push(StreamId(1), 5, batch(&[(6, 3), (7, 4)]), 1);
    // 6 and 7 had arrived; 8 and 12 were lost in the lane.
    let given_up = GivenUp { after: 4, ranges: vec![(4, 7), (9, 11), (13, 13)], time: 5 };
    merge.give_up(StreamId(1), given_up.clone(), 2);
    merge.push(StreamId(1), 14, batch(&[(14, 6)]), 3);
    // The report is repeated, and events that were given up arrive too late.
    merge.give_up(StreamId(1), given_up, 4);
    assert_eq!(merge.push(StreamId(1), 4, batch(&[(9, 5), (14, 6)]), 5), 0);
    merge.end(StreamId(1), StreamEnd { after: 18, ..end(20) }, 6);
    let mut out = Output::default();
    out.drain(&mut merge, Some(4), 100);
    out.drain(&mut merge, None, 1);
    let gap = |place, time, first, last| Gap { stream: StreamId(1), place, time, first, last };
    assert_eq!(
        out.gaps,
        [
            gap(SPOOL_DAMAGED, 3, 2, 4),
            gap(LANE_FULL, 3, 5, 5),
            gap(LANE_FULL, 5, 8, 8),
            gap(SPOOL_FULL, 5, 9, 11),
            gap(LANE_FULL, 5, 12, 12),
            gap(SPOOL_FULL, 5, 13, 13),
            gap(SPOOL_DAMAGED, 1_000_000, 15, 17),
            gap(LANE_FULL, 1_000_000, 18, 19),
        ]
    );
    assert_eq!(out.tickets, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(out.rows().len(), 5);
}

/// What the node refused is no row, and its numbers are lost once, wherever batches and bounds end.
#[test]
fn refused_records_are_gaps_with_their_own_place() {
    let mut merge = Merge::new(None);
    merge.add_stream(StreamId(1), 0);
    let mut columns = batch(&[(0, 10)]);
    columns.push_refused(1, 1, 11);
    columns.push_refused(2, 3, 12);
    columns.push(1, 5, 20, 0, &event(5), None);
    // 6 was lost in the lane.
    columns.push_refused(7, 7, 30);
    assert_eq!(merge.push(StreamId(1), 0, columns.clone(), 0), 2);
    // Sent again, with a batch that has nothing else.
    assert_eq!(merge.push(StreamId(1), 0, columns, 1), 0);
    let mut last = Columns::default();
    last.push_refused(9, 12, 40);
    // 8 was lost on the way.
    assert_eq!(merge.push(StreamId(1), 9, last, 2), 0);
    merge.end(StreamId(1), StreamEnd { after: 13, ..end(13) }, 3);
    let mut out = Output::default();
    [Some(15), Some(25), None].into_iter().for_each(|bound| out.drain(&mut merge, bound, 100));
    let gap = |place, time, first, last| Gap { stream: StreamId(1), place, time, first, last };
    assert_eq!(
        out.gaps,
        [
            gap(ABI_VIOLATION, 12, 1, 3),
            gap(LANE_FULL, 20, 4, 4),
            gap(LANE_FULL, 30, 6, 6),
            gap(ABI_VIOLATION, 30, 7, 7),
            gap(SPOOL_DAMAGED, 40, 8, 8),
            gap(ABI_VIOLATION, 40, 9, 12),
        ]
    );
    assert_eq!(out.rows().iter().map(|key| key.attempt).collect::<Vec<_>>(), [0, 5]);
    assert_eq!((out.tickets, out.ended[0].next), (vec![0, 1, 2, 3], 13));
}

#[test]
fn invalid_ranges_are_not_lost_twice() {
    let mut merge = Merge::new(None);
    merge.add_stream(StreamId(1), 10);
    merge.push(StreamId(1), u64::MAX, batch(&[(10, 1)]), 0);
    merge.give_up(StreamId(1), GivenUp { after: 9, ranges: vec![(20, 11), (0, u64::MAX)], time: 2 }, 1);
    merge.push(StreamId(1), u64::MAX, batch(&[(11, 3)]), 2);
    merge.end(StreamId(1), StreamEnd { after: u64::MAX, ..end(5) }, 3);
    let mut out = Output::default();
    out.drain(&mut merge, None, 100);
    let mut next = 11;
    for gap in &out.gaps {
        assert_eq!(gap.first, next);
        assert!(gap.last >= gap.first);
        next = gap.last.saturating_add(1);
    }
    assert_eq!((out.rows().len(), out.tickets.len()), (1, 4));
}

/// Also if one stream has most of the rows.
#[test]
fn steps_have_about_as_many_rows_as_the_limit() {
    let rows = |count: u64, distance: i64| (0..count).map(|n| (n, n as i64 * distance)).collect::<Vec<_>>();
    let mut merge = Merge::new(None);
    merge.push(StreamId(1), 0, batch(&rows(60_000, 1)), 0);
    for id in 2..300 {
        merge.push(StreamId(id), 0, batch(&rows(20, 3000)), 0);
    }
    let (mut expected, mut last) = (merge.rows(), i64::MIN);
    loop {
        let step = merge.step(None, 1000);
        let found = step.order.len();
        assert!(found <= 2000 && (found >= 250 || !step.more), "{found} rows");
        assert!(step.late == 0 && step.order.iter().all(|row| row.time >= last));
        last = step.order.last().unwrap().time;
        expected -= found;
        if !step.more {
            break;
        }
    }
    assert_eq!((expected, merge.rows()), (0, 0));
}

#[test]
fn rows_after_the_bound_do_not_split_a_step() {
    let rows = |count: u64, from: i64| (0..count).map(|n| (n, from + n as i64)).collect::<Vec<_>>();
    let mut merge = Merge::new(None);
    merge.push(StreamId(1), 0, batch(&rows(50, 0)), 0);
    for id in 2..=100 {
        merge.push(StreamId(id), 0, batch(&rows(20, 1000)), 0);
    }
    let step = merge.step(Some(50), 100);
    assert_eq!((step.order.len(), step.more, merge.rows()), (50, false, 99 * 20));
}

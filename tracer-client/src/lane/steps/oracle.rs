//! The oracle: models lanes as simple queues and derives the outcome of each step.

use super::{DEPTH, Filter, LANE_SLOTS, Record, Step, StreamOutput, Subject, THREADS, Totals};
use miot_proto::control::WhenFull;
use miot_proto::event::RecordKind;
use std::collections::{HashMap, VecDeque};

/// Expected state of all lanes, compared with the consumer's reports.
#[derive(Debug, Default)]
pub struct Oracle {
    threads: [Thread; THREADS],
    lanes: Vec<Lane>,
    /// Index of the lane of each stream, by stream number.
    streams: HashMap<u32, usize>,
    when_full: Option<WhenFull>,
    filter: Filter,
    tag: u64,
}

#[derive(Debug, Default)]
struct Thread {
    /// Index of the thread's lane.
    lane: Option<usize>,
    request: u32,
    begun: Vec<Begun>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    request: u32,
    tag: u64,
    encloses: bool,
    enclosing: u32,
}

/// The current incarnation of a lane.
#[derive(Debug, Default)]
struct Lane {
    incarnation: u32,
    stream: Option<u32>,
    /// Records that the consumer has not read yet.
    queue: VecDeque<Record>,
    totals: Totals,
    /// Slots committed.
    tail: u64,
    /// The request shown in `in_flight`, and the tail at its start.
    shown: Option<(Begun, u64)>,
    /// The request shown in `enclosing`.
    outer: Option<Begun>,
    /// The thread has ended: no more records will be added.
    over: bool,
    /// The consumer has reported the end of the stream.
    ended: bool,
    /// Records reported since the current step began.
    reported: usize,
}

impl Lane {
    fn used(&self) -> u64 {
        self.queue.iter().map(|record| record.slots).sum()
    }

    /// The thread or the process ends: the requests shown are interrupted, the inner one first.
    fn cut_off(&mut self) {
        self.over = true;
        let outer = self.outer.take();
        let inner = self.shown.take().filter(|(_, tail)| *tail == self.tail).map(|(begun, _)| begun);
        let enclosing = outer.map_or(0, |outer| outer.request);
        for (begun, enclosing) in [(inner, enclosing), (outer, 0)] {
            let Some(begun) = begun else { continue };
            self.queue.push_back(Record {
                attempt: self.totals.attempts,
                tag: begun.tag,
                request: begun.request,
                enclosing,
                kind: RecordKind::Request,
                slots: 1,
                interrupted: true,
            });
            self.totals.attempts += 1;
        }
    }
}

impl Oracle {
    /// Executes a step, unless it is not possible in the current state.
    pub(super) fn step(&mut self, step: Step, subject: &mut impl Subject) {
        self.lanes.iter_mut().for_each(|lane| lane.reported = 0);
        match step {
            Step::Begin { thread, encloses } => self.begin(thread, encloses, subject),
            Step::End { thread, slots } => self.end(thread, slots, subject),
            Step::Cancel { thread } => self.cancel(thread, subject),
            Step::File { thread, slots } => self.file(thread, slots, subject),
            Step::Exit { thread } => {
                let Some(index) = self.threads[thread].lane else { return };
                subject.exit(thread);
                self.lanes[index].cut_off();
                self.threads[thread] = Thread::default();
            }
            Step::Drain { max_records } => return self.drain(max_records, subject),
            Step::WhenFull(when_full) => {
                self.when_full = Some(when_full);
                subject.set(when_full, self.filter);
            }
            // The effect of a filter on requests that have already begun is unspecified.
            Step::Filter(_) if self.threads.iter().any(|thread| !thread.begun.is_empty()) => return,
            Step::Filter(filter) => {
                self.filter = filter;
                subject.set(self.when_full(), filter);
            }
        }
        self.check_output(subject);
    }

    /// Kills the threads. The consumer must report all remaining records and nothing else.
    pub(super) fn kill(&mut self, subject: &mut impl Subject) {
        for thread in &mut self.threads {
            if let Some(index) = thread.lane.take() {
                self.lanes[index].cut_off();
            }
        }
        subject.kill();
        self.check_output(subject);
        for (index, lane) in self.lanes.iter().enumerate() {
            assert!(lane.queue.is_empty(), "records of lane {index} were not reported: {:?}", lane.queue);
            assert!(lane.ended, "the stream of lane {index} has not ended");
        }
    }

    fn when_full(&self) -> WhenFull {
        self.when_full.unwrap_or(WhenFull::DropNewest)
    }

    fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    /// Returns the lane of a thread, after claiming one if it has none: the first one that was
    /// drained to its end, or a new one.
    fn lane(&mut self, thread: usize) -> &mut Lane {
        let lanes = &mut self.lanes;
        let index = *self.threads[thread].lane.get_or_insert_with(|| {
            let found = lanes.iter().position(|lane| lane.ended);
            let index = found.unwrap_or(lanes.len());
            lanes.resize_with(lanes.len().max(index + 1), Lane::default);
            let Lane { incarnation, tail, .. } = lanes[index];
            lanes[index] = Lane { incarnation: incarnation + 1, tail, ..Lane::default() };
            index
        });
        &mut self.lanes[index]
    }

    fn begin(&mut self, thread: usize, encloses: bool, subject: &mut impl Subject) {
        if self.threads[thread].begun.len() == DEPTH {
            return;
        }
        let tag = self.next_tag();
        subject.begin(thread, encloses, tag);
        let state = &mut self.threads[thread];
        state.request += 1;
        let enclosing =
            state.begun.iter().rev().find(|begun| begun.encloses).map_or(0, |begun| begun.request);
        let begun = Begun { request: state.request, tag, encloses, enclosing };
        state.begun.push(begun);
        let lane = self.lane(thread);
        if encloses && enclosing == 0 {
            lane.shown = None;
            lane.outer = Some(begun);
        } else {
            lane.shown = Some((begun, lane.tail));
        }
    }

    fn cancel(&mut self, thread: usize, subject: &mut impl Subject) {
        let Some(begun) = self.threads[thread].begun.pop() else { return };
        subject.cancel(thread);
        let lane = self.lane(thread);
        if begun.encloses && begun.enclosing == 0 {
            lane.outer = None;
        } else {
            lane.shown = None;
        }
    }

    fn end(&mut self, thread: usize, slots: u64, subject: &mut impl Subject) {
        let Some(begun) = self.threads[thread].begun.pop() else { return };
        let kept = subject.end(thread, slots, begun.tag);
        if self.filter == Filter::TooShort {
            assert!(!kept, "{begun:?} must be filtered");
            let lane = self.lane(thread);
            lane.totals.filtered += 1;
            lane.shown = None;
        } else {
            let record = Record {
                attempt: 0,
                tag: begun.tag,
                request: begun.request,
                enclosing: begun.enclosing,
                kind: RecordKind::Request,
                slots,
                interrupted: false,
            };
            self.expect_record(thread, record, kept);
        }
        if begun.encloses && begun.enclosing == 0 {
            self.lane(thread).outer = None;
        }
    }

    fn file(&mut self, thread: usize, slots: u64, subject: &mut impl Subject) {
        let tag = self.next_tag();
        let kept = subject.file(thread, slots, tag);
        let within = self.threads[thread].begun.iter().rev().find(|begun| begun.encloses);
        let enclosing = within.map_or(0, |begun| begun.request);
        let record = Record {
            attempt: 0,
            tag,
            request: 0,
            enclosing,
            kind: RecordKind::File,
            slots,
            interrupted: false,
        };
        self.expect_record(thread, record, kept);
    }

    /// Expects that the record is accepted if it fits, or if the policy frees space for it.
    fn expect_record(&mut self, thread: usize, record: Record, kept: bool) {
        let when_full = self.when_full();
        let lane = self.lane(thread);
        let mut fits = lane.used() + record.slots <= LANE_SLOTS;
        if !fits && when_full == WhenFull::OverwriteOldest {
            let wanted = record.slots.max(LANE_SLOTS / 8);
            while lane.used() + wanted > LANE_SLOTS {
                lane.queue.pop_front();
            }
            fits = true;
        }
        // A waiting thread succeeds after the consumer has freed slots. The consumer's reports are
        // checked after this.
        fits |= when_full == WhenFull::Wait;
        assert_eq!(kept, fits, "{record:?} with {} of {LANE_SLOTS} slots in use", lane.used());
        if fits {
            lane.queue.push_back(Record { attempt: lane.totals.attempts, ..record });
            lane.tail += record.slots;
        } else {
            lane.totals.lost_full += 1;
            lane.shown = None;
        }
        lane.totals.attempts += 1;
    }

    fn drain(&mut self, max_records: usize, subject: &mut impl Subject) {
        let queued: Vec<_> = self.lanes.iter().map(|lane| lane.queue.len()).collect();
        subject.drain(max_records);
        self.check_output(subject);
        for (index, (lane, queued)) in self.lanes.iter().zip(queued).enumerate() {
            assert!(
                lane.reported >= max_records.min(queued),
                "lane {index}: {} of {queued} records reported",
                lane.reported
            );
            assert!(
                !lane.over || !lane.queue.is_empty() || lane.ended,
                "lane {index} was drained, but its stream has not ended"
            );
        }
    }

    /// Checks that each report is the next expected one.
    fn check_output(&mut self, subject: &mut impl Subject) {
        for output in subject.take_output() {
            match output {
                StreamOutput::Stream { stream, lane, incarnation } => {
                    let index = lane as usize;
                    let lane = self.lanes.get_mut(index).filter(|lane| lane.incarnation == incarnation);
                    let Some(lane) = lane else {
                        panic!("unknown incarnation {incarnation} of lane {index}")
                    };
                    assert_eq!(lane.stream.replace(stream), None, "lane {index} was reported twice");
                    assert_eq!(self.streams.insert(stream, index), None);
                }
                StreamOutput::Record { stream, record } => {
                    let lane = self.of(stream);
                    lane.reported += 1;
                    assert_eq!(lane.queue.pop_front(), Some(record), "in stream {stream}");
                }
                StreamOutput::End { stream, totals } => {
                    let lane = self.of(stream);
                    assert!(lane.over && !lane.ended, "the end of stream {stream}");
                    assert_eq!(lane.queue.front(), None, "after the end of stream {stream}");
                    assert_eq!(lane.totals, totals, "at the end of stream {stream}");
                    lane.ended = true;
                }
            }
        }
    }

    fn of(&mut self, stream: u32) -> &mut Lane {
        let Some(index) = self.streams.get(&stream) else { panic!("stream {stream} was not reported") };
        let lane = &mut self.lanes[*index];
        assert_eq!(lane.stream, Some(stream), "stream of an earlier incarnation");
        lane
    }
}

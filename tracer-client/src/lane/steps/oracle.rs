//! What must come of the steps: lanes as queues that cannot be wrong.

use super::{DEPTH, Filter, LANE_SLOTS, Record, Step, Subject, THREADS, Told, Totals};
use miot_proto::control::WhenFull;
use miot_proto::event::RecordKind;
use std::collections::{HashMap, VecDeque};

/// Knows what there is to be told, and compares.
#[derive(Debug, Default)]
pub struct Oracle {
    threads: [Thread; THREADS],
    lanes: Vec<Lane>,
    /// Streams by number: lanes.
    streams: HashMap<u32, usize>,
    when_full: Option<WhenFull>,
    filter: Filter,
    tag: u64,
}

#[derive(Debug, Default)]
struct Thread {
    /// Index of its lane.
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

/// The present incarnation of a lane.
#[derive(Debug, Default)]
struct Lane {
    incarnation: u32,
    stream: Option<u32>,
    /// What is to be read.
    queue: VecDeque<Record>,
    totals: Totals,
    /// Slots committed.
    tail: u64,
    /// The last request shown, and the tail at its begin.
    shown: Option<(Begun, u64)>,
    /// The outermost request that encloses others.
    outer: Option<Begun>,
    /// Nothing more will be added.
    over: bool,
    /// The stream's end was told.
    ended: bool,
    /// Records told since the step began.
    told: usize,
}

impl Lane {
    fn used(&self) -> u64 {
        self.queue.iter().map(|record| record.slots).sum()
    }

    /// The thread or the process ends: what is shown is cut off, the inner request first.
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
    /// Does a step, unless it makes no sense here.
    pub(super) fn step(&mut self, step: Step, subject: &mut impl Subject) {
        self.lanes.iter_mut().for_each(|lane| lane.told = 0);
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
            Step::Drain { most } => return self.drain(most, subject),
            Step::WhenFull(when_full) => {
                self.when_full = Some(when_full);
                subject.set(when_full, self.filter);
            }
            // What a filter makes of requests that have begun is left open.
            Step::Filter(_) if self.threads.iter().any(|thread| !thread.begun.is_empty()) => return,
            Step::Filter(filter) => {
                self.filter = filter;
                subject.set(self.when_full(), filter);
            }
        }
        self.listen(subject);
    }

    /// The end: everything that is left must be told, and nothing else.
    pub(super) fn kill(&mut self, subject: &mut impl Subject) {
        for thread in &mut self.threads {
            if let Some(index) = thread.lane.take() {
                self.lanes[index].cut_off();
            }
        }
        subject.kill();
        self.listen(subject);
        for (index, lane) in self.lanes.iter().enumerate() {
            assert!(lane.queue.is_empty(), "lane {index} is not told to its end: {:?}", lane.queue);
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

    /// The lane of a thread, claimed if it has none: the first that is over and was read to its end, or a new one.
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
            assert!(!kept, "{begun:?} is to be left out");
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
            self.put(thread, record, kept);
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
        self.put(thread, record, kept);
    }

    /// A record that is to be taken if there is room, or room can be had.
    fn put(&mut self, thread: usize, record: Record, kept: bool) {
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
        // Who waits is served, once the consumer has made room: what it told is heard after this.
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

    fn drain(&mut self, most: usize, subject: &mut impl Subject) {
        let there: Vec<_> = self.lanes.iter().map(|lane| lane.queue.len()).collect();
        subject.drain(most);
        self.listen(subject);
        for (index, (lane, there)) in self.lanes.iter().zip(there).enumerate() {
            assert!(lane.told >= most.min(there), "lane {index}: {} of {there} records told", lane.told);
            assert!(!lane.over || !lane.queue.is_empty() || lane.ended, "lane {index} is over");
        }
    }

    /// What is told must be what is next.
    fn listen(&mut self, subject: &mut impl Subject) {
        for told in subject.told() {
            match told {
                Told::Stream { stream, lane, incarnation } => {
                    let index = lane as usize;
                    let lane = self.lanes.get_mut(index).filter(|lane| lane.incarnation == incarnation);
                    let Some(lane) = lane else {
                        panic!("there is no incarnation {incarnation} of lane {index}")
                    };
                    assert_eq!(lane.stream.replace(stream), None, "lane {index} is told twice");
                    assert_eq!(self.streams.insert(stream, index), None);
                }
                Told::Record { stream, record } => {
                    let lane = self.of(stream);
                    lane.told += 1;
                    assert_eq!(lane.queue.pop_front(), Some(record), "in stream {stream}");
                }
                Told::End { stream, totals } => {
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
        let Some(index) = self.streams.get(&stream) else { panic!("stream {stream} was not told") };
        let lane = &mut self.lanes[*index];
        assert_eq!(lane.stream, Some(stream), "an incarnation that is past");
        lane
    }
}

//! Converts the events of a trace to programs, one for each thread.

use super::workload::{Program, Request, Workload};
use arrow_array::RecordBatch;
use miot_proto::event::flag;
use miot_proto::op::{OpClass, ResultMeaning};
use miot_trace_events::ById;
use miot_trace_events::Outermost;
use miot_trace_events::place::{Place, Places, UnknownPlaces};
use miot_trace_events::view::Range;
use miot_trace_events::{Event, EventNames, Events};
use miot_trace_store::FileNames;
use std::collections::HashMap;

/// Maximum plausible length of a request: 64 GiB.
const LONGEST: u64 = 1 << 36;
/// Maximum plausible end of a request: 4 EiB.
const FARTHEST: u64 = 1 << 62;
/// Maximum plausible time between two requests: 10 years.
const LONGEST_PAUSE: u64 = 10 * 365 * 86_400 * 1_000_000_000;

/// Requests that did not become requests of a program, and the source of the computation times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Number of data requests that were used; each piece of a request through a file view counts.
    pub taken: u64,
    /// Number of requests through a file view that has several pieces.
    pub in_pieces: u64,
    /// Number of pieces of these requests.
    pub pieces: u64,
    /// MPI-IO requests with unknown pieces.
    pub unknown_places: UnknownPlaces,
    /// Number of requests that moved data, but whose file or offset is unknown: pipes, sockets,
    /// terminals.
    pub without_place: u64,
    /// Number of requests with an impossible size or offset.
    pub absurd: u64,
    /// Number of requests of threads whose processor time was recorded, which is then their
    /// computation time. Other threads are assumed to compute from the end of a request to the
    /// begin of the next.
    pub with_cpu_time: u64,
}

/// An outermost request of a thread; `length` is 0 if it moves no data of a file.
#[derive(Clone, Copy, Debug)]
struct Item {
    begin: i64,
    end: i64,
    cpu: Option<i64>,
    offset: u64,
    length: u64,
    file: u32,
    write: bool,
    is_async: bool,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    process: u64,
    pid: u32,
    tid: u32,
    items: Vec<Item>,
}

/// Collects programs from the events of a trace. Memory grows with the outermost requests, by 64
/// bytes each: a simulation needs to know the next request of each program.
#[derive(Debug, Default)]
pub struct FromTrace {
    names: EventNames,
    outermost: Outermost,
    places: Places,
    streams: ById<Option<usize>>,
    /// Threads by process and thread id, because a thread may have had several streams.
    by_id: HashMap<(u64, u32), usize>,
    threads: Vec<Thread>,
    files: HashMap<u64, u32>,
    /// End of the last copy from a file, by thread and file.
    copied: HashMap<(usize, u32), u64>,
    notes: Notes,
}

impl FromTrace {
    /// Adds events, which must be in order. `paths` contains the texts of file views as well.
    pub fn add(&mut self, batch: &RecordBatch, paths: &FileNames) {
        let mut names = std::mem::take(&mut self.names);
        if let Some(events) = Events::of(batch, &mut names) {
            events.for_each(|event| self.event(&event, paths));
        }
        self.names = names;
    }

    fn event(&mut self, event: &Event, paths: &FileNames) {
        if !self.outermost.is(event) {
            // Opens and views count wherever they are made.
            self.places.learn(event, paths);
            return;
        }
        let place = self.places.of(event, paths);
        let thread = self.thread(event);
        let item = Item {
            begin: event.begin,
            end: event.end,
            cpu: event.cpu_time,
            offset: 0,
            length: 0,
            file: 0,
            write: false,
            is_async: event.flags & flag::ASYNC != 0,
        };
        let moved = event.moved();
        let class = event.class();
        let moves = class.is_data()
            && event.info.is_some_and(|info| info.result == ResultMeaning::Bytes)
            && moved > 0;
        if !moves {
            self.threads[thread].items.push(item);
            return;
        }
        let (pieces, file) = match (place, event.file) {
            (Place::Unknown(why), _) => {
                self.notes.unknown_places.add(why);
                self.threads[thread].items.push(item);
                return;
            }
            (Place::Pieces(pieces), Some(file)) => (pieces, file),
            (Place::Whole, Some(file)) if event.offset.is_some() => {
                let offset = event.offset.and_then(|offset| u64::try_from(offset).ok());
                (vec![Range { offset: offset.unwrap_or(u64::MAX), bytes: moved }], file)
            }
            _ => {
                self.notes.without_place += 1;
                self.threads[thread].items.push(item);
                return;
            }
        };
        if moved > LONGEST || pieces.iter().any(|piece| piece.offset > FARTHEST - LONGEST) {
            self.notes.absurd += 1;
            self.threads[thread].items.push(item);
            return;
        }
        let file = self.file(file);
        if class == OpClass::Copy
            && let Some(source) = event.file2
        {
            // The trace has only the begin of a copy's source range. The read is assumed to
            // continue where the last copy ended.
            let source = self.file(source);
            let next = self.copied.entry((thread, source)).or_default();
            let read = Item { offset: *next, length: moved, file: source, end: event.begin, ..item };
            *next = next.saturating_add(moved).min(FARTHEST - LONGEST);
            self.threads[thread].items.push(read);
        }
        let count = pieces.len() as u64;
        self.notes.taken += count;
        if count > 1 {
            self.notes.in_pieces += 1;
            self.notes.pieces += count;
        }
        let write = class != OpClass::Read;
        // All have the times of the request: the program computes nothing between them.
        let items = pieces.into_iter().map(|Range { offset, bytes }| Item {
            offset,
            length: bytes,
            file,
            write,
            ..item
        });
        self.threads[thread].items.extend(items);
    }

    fn thread(&mut self, event: &Event) -> usize {
        let known = self.streams.get(event.stream);
        *known.get_or_insert_with(|| {
            *self.by_id.entry((event.process, event.tid)).or_insert_with(|| {
                let Event { process, pid, tid, .. } = *event;
                self.threads.push(Thread { process, pid, tid, items: Vec::new() });
                self.threads.len() - 1
            })
        })
    }

    fn file(&mut self, file: u64) -> u32 {
        let next = self.files.len() as u32;
        *self.files.entry(file).or_insert(next)
    }

    /// Returns the programs, named by `name` (process of the trace, process id, thread id), without
    /// threads that have no data request. With `together` all programs start at once, otherwise
    /// each at its first request.
    #[must_use]
    pub fn finish(mut self, together: bool, name: impl Fn(u64, u32, u32) -> String) -> (Workload, Notes) {
        let mut files = vec![0u64; self.files.len()];
        let mut programs = Vec::new();
        let first = self.threads.iter().flat_map(|thread| &thread.items).map(|item| item.begin).min();
        let first = first.unwrap_or(0);
        for mut thread in self.threads {
            if thread.items.iter().all(|item| item.length == 0) {
                continue;
            }
            // Asynchronous requests arrive when they complete.
            thread.items.sort_by_key(|item| item.begin);
            let takes_cpu = thread.items.iter().any(|item| item.cpu.is_some());
            let mut clock = Clock { takes_cpu, ..Clock::default() };
            let mut requests = Vec::new();
            let mut ends = HashMap::new();
            for item in &thread.items {
                clock.advance(item);
                if item.length == 0 {
                    continue;
                }
                self.notes.with_cpu_time += u64::from(takes_cpu);
                let end = item.offset + item.length;
                let before = ends.insert((item.file, item.write), end);
                files[item.file as usize] = end.max(files[item.file as usize]);
                requests.push(Request {
                    cpu: std::mem::take(&mut clock.computed),
                    offset: item.offset,
                    length: item.length,
                    file: item.file,
                    write: item.write,
                    is_async: item.is_async,
                    sequential: before == Some(item.offset),
                });
            }
            let begin = thread.items.first().map_or(first, |item| item.begin);
            programs.push(Program {
                name: name(thread.process, thread.pid, thread.tid),
                start: if together { 0 } else { begin.abs_diff(first).min(LONGEST_PAUSE) },
                requests: requests.into(),
                rest: clock.computed,
                first_file: 0,
            });
        }
        programs.sort_by_key(|program| program.start);
        (Workload { programs, files }, self.notes)
    }
}

/// Computation time of a thread since its last data request.
#[derive(Debug, Default)]
struct Clock {
    computed: u64,
    /// True if processor time was recorded. The share of a request without it, such as an
    /// asynchronous one, is added to the next request with it.
    takes_cpu: bool,
    cpu: Option<i64>,
    end: Option<i64>,
}

impl Clock {
    fn advance(&mut self, item: &Item) {
        let since = self.end.map_or(0, |end| u64::try_from(item.begin.saturating_sub(end)).unwrap_or(0));
        let before = self.cpu.unwrap_or(0);
        let cpu = item.cpu.map_or(0, |cpu| u64::try_from(cpu.saturating_sub(before)).unwrap_or(0));
        let computed = if self.takes_cpu { cpu } else { since }.min(LONGEST_PAUSE);
        self.computed = self.computed.saturating_add(computed).min(LONGEST_PAUSE);
        self.cpu = self.cpu.max(item.cpu);
        let end = if item.is_async { item.begin } else { item.end };
        self.end = Some(self.end.map_or(end, |before| before.max(end)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::op::{Layer, by_name};
    use miot_trace_events::testing::event;

    fn mpi(op: &str, begin: i64, result: i64) -> Event {
        let (layer, info) = (Some(Layer::MpiIo), by_name("mpi-io", op));
        Event { layer, info, handle: Some(7), ..event("write", begin, 10, result) }
    }

    fn write(begin: i64, etypes: i64, offset: i64, bytes: i64) -> Event {
        let bounds = (Some(etypes), Some(offset), Some(bytes));
        let (etypes, offset, length) = bounds;
        Event { etypes, offset, length, ..mpi("write_at_all", begin, bytes) }
    }

    /// What rank 1 of 2 does that writes every other 100 bytes.
    fn set_view(text: u64) -> Event {
        let (offset, length, type_extent) = (Some(100), Some(1), Some(19_900));
        Event { offset, length, type_extent, file2: Some(text), ..mpi("set_view", 10, 0) }
    }

    fn paths() -> FileNames {
        let mut paths = FileNames::default();
        paths.put(2, "native 0:100*100+200");
        paths.put(3, "native ");
        paths
    }

    fn simulated(events: &[Event]) -> (Workload, Notes) {
        let (mut from, paths) = (FromTrace::default(), paths());
        events.iter().for_each(|event| from.event(event, &paths));
        from.finish(true, |_, _, _| String::new())
    }

    #[test]
    fn request_through_a_view_is_a_request_for_each_piece() {
        let events =
            [mpi("open", 0, 0), set_view(2), write(50, 0, 100, 10_000), write(80, 10_000, 20_000, 50)];
        let (workload, notes) = simulated(&events);
        let requests = &workload.programs[0].requests;
        assert_eq!(requests.len(), 101);
        let expected = (0..100).map(|piece| (100 + piece * 200, 100)).chain([(20_000, 50)]);
        assert!(requests.iter().map(|r| (r.offset, r.length)).eq(expected), "{requests:?}");
        // From the end of the view to the write, and from there to the next: nothing between
        // pieces.
        let computed: Vec<_> = requests.iter().map(|r| r.cpu).filter(|cpu| *cpu > 0).collect();
        assert_eq!(computed, [30, 20]);
        assert_eq!(workload.files, [20_050]);
        assert_eq!((notes.taken, notes.in_pieces, notes.pieces), (101, 1, 100));
        assert_eq!(notes.unknown_places.total(), 0);
    }

    #[test]
    fn requests_through_unknown_views_are_left_out_and_counted() {
        let events = [
            mpi("open", 0, 0),
            write(20, 0, 0, 100),
            set_view(3),
            write(50, 0, 100, 10_000),
            set_view(2),
            write(90, 0, 100, 100 * (1 << 17)),
        ];
        let (workload, notes) = simulated(&events);
        assert_eq!(workload.requests(), 1);
        assert_eq!(notes.unknown_places.total(), 2);
        let said = notes.unknown_places.to_string();
        assert!(said.contains("1: the trace does not contain the whole file type"), "{said}");
        assert!(said.contains("1: a request has more than 65536 pieces"), "{said}");
    }
}

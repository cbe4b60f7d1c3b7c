//! The producer's own lanes, and the log-client's own reader, one step at a time.
//!
//! The bytes are steps ([`miot_tracer::steps`]); the oracle says what must be told of them.

use crate::Seed;
use miot_log_client::testing::{Reader, SegmentBytes, Sweep};
use miot_proto::control::WhenFull;
use miot_tracer::steps::{
    Filter, SimulatedProcess, Step, StreamOutput, Subject, THREADS, records, run_steps,
};
use std::cell::RefCell;

/// Steps of a program: what comes behind them is not done.
const STEPS: usize = 1_000;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let shared = Shared(RefCell::new(SimulatedProcess::default()));
    let Some(mut reader) = Reader::attach(&shared) else { panic!("the header is sound") };
    reader.overwrites();
    let mut both = Both { shared: &shared, reader };
    run_steps(Step::decode_all(bytes).take(STEPS), &mut both);
}

struct Shared(RefCell<SimulatedProcess>);

impl SegmentBytes for Shared {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        let stage = self.0.borrow();
        for (index, part) in buffer.chunks_mut(8).enumerate() {
            let word = stage.word(usize::try_from(at).ok()? + 8 * index)?;
            part.copy_from_slice(word.to_le_bytes().get(..part.len())?);
        }
        Some(())
    }

    fn write_word(&self, at: u64, value: u64) -> Option<()> {
        self.0.borrow().store(usize::try_from(at).ok()?, value)
    }

    fn size(&self) -> u64 {
        self.0.borrow().bytes() as u64
    }
}

/// Threads in memory, and a reader of their segment.
struct Both<'a> {
    shared: &'a Shared,
    reader: Reader<'a>,
}

impl Both<'_> {
    fn sweep(&mut self, dead: bool) {
        loop {
            let t0 = self.shared.0.borrow().now();
            let found = self.reader.sweep(Sweep { t0, dead, max_batches: usize::MAX });
            assert_eq!((found.violations, found.clamped), (0, 0), "{found:?}");
            if !found.unfinished {
                break;
            }
        }
    }

    /// Does what may have to wait, with a sweep before the second try.
    fn served(&mut self, act: impl Fn(&mut SimulatedProcess) -> Option<bool>) -> bool {
        let kept = act(&mut self.shared.0.borrow_mut());
        kept.unwrap_or_else(|| {
            self.sweep(false);
            let kept = act(&mut self.shared.0.borrow_mut());
            kept.unwrap_or_else(|| panic!("an empty lane has room"))
        })
    }
}

impl Subject for Both<'_> {
    fn begin(&mut self, thread: usize, encloses: bool, tag: u64) {
        self.shared.0.borrow_mut().begin(thread, encloses, tag);
    }

    fn end(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.served(|stage| stage.end(thread, slots, tag).ok())
    }

    fn cancel(&mut self, thread: usize) {
        self.shared.0.borrow_mut().cancel(thread);
    }

    fn file(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.served(|stage| stage.file(thread, slots, tag).ok())
    }

    fn exit(&mut self, thread: usize) {
        self.shared.0.borrow_mut().exit(thread);
    }

    fn set(&mut self, when_full: WhenFull, filter: Filter) {
        self.shared.0.borrow_mut().set(when_full, filter);
    }

    fn drain(&mut self, _most: usize) {
        self.sweep(false);
    }

    fn kill(&mut self) {
        self.sweep(true);
        let t0 = self.shared.0.borrow().now();
        self.reader.end(t0);
    }

    fn take_output(&mut self) -> Vec<StreamOutput> {
        let told = self.reader.take_facts();
        let records = told.batches.iter().flat_map(|(stream, columns)| records(*stream, columns));
        let streams = told.streams.iter().map(StreamOutput::from);
        streams.chain(records).chain(told.ends.iter().map(StreamOutput::from)).collect()
    }
}

/// Each policy, filters, and lives of threads.
pub fn seeds() -> Vec<Seed> {
    const BEGIN: u8 = 0;
    const END: u8 = 22;
    const FILE: u8 = 44;
    const EXIT: u8 = 59;
    const DRAIN: u8 = 60;
    const WHEN_FULL: u8 = 62;
    const FILTER: u8 = 63;
    let requests: Vec<u8> = (0..12).flat_map(|n| [BEGIN, n, 1, END, n, n * 20, FILE, n, 130 + n]).collect();
    let nested = [BEGIN, 0, 0, BEGIN, 0, 4, BEGIN, 0, 1, END, 0, 140, END, 0, 1];
    let lives: Vec<u8> = (0..THREADS as u8)
        .flat_map(|thread| {
            [&nested[..], &[EXIT, thread, 0, DRAIN, 0, 255, BEGIN, thread, 1, END, thread, 1]].concat()
        })
        .collect();
    let with = |before: [u8; 3]| [&before[..], &requests, &requests, &[DRAIN, 0, 255], &requests].concat();
    vec![
        ("drop-newest", with([WHEN_FULL, 0, 0])),
        ("wait", with([WHEN_FULL, 0, 1])),
        ("overwrite-oldest", with([WHEN_FULL, 0, 2])),
        ("too-short", with([FILTER, 0, 255])),
        ("lives", [&lives[..], &requests, &lives].concat()),
        ("nested", nested.to_vec()),
    ]
}

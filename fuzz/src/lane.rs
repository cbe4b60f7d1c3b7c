//! Lanes of the producer and reader of the log-client, one step at a time.
//!
//! The bytes are steps ([`miot_tracer::steps`]). The oracle computes the expected output of the
//! reader.

use crate::Seed;
use miot_log_client::testing::{Reader, SegmentBytes, Sweep};
use miot_proto::control::WhenFull;
use miot_tracer::steps::{
    Filter, SimulatedProcess, Step, StreamOutput, Subject, THREADS, records, run_steps,
};
use std::cell::RefCell;

/// Maximum number of steps; further ones are ignored.
const STEPS: usize = 1_000;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let shared = SharedProcess(RefCell::new(SimulatedProcess::default()));
    let Some(mut reader) = Reader::attach(&shared) else { panic!("the header is invalid") };
    reader.overwrites();
    let mut subject = SweptProcess { shared: &shared, reader };
    run_steps(Step::decode_all(bytes).take(STEPS), &mut subject);
}

struct SharedProcess(RefCell<SimulatedProcess>);

impl SegmentBytes for SharedProcess {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let process = self.0.borrow();
        for (index, part) in buffer.chunks_mut(8).enumerate() {
            let word = process.word(usize::try_from(offset).ok()? + 8 * index)?;
            part.copy_from_slice(word.to_le_bytes().get(..part.len())?);
        }
        Some(())
    }

    fn write_word(&self, offset: u64, value: u64) -> Option<()> {
        self.0.borrow().store(usize::try_from(offset).ok()?, value)
    }

    fn size(&self) -> u64 {
        self.0.borrow().bytes() as u64
    }
}

/// Simulated process, and a reader of its segment.
struct SweptProcess<'a> {
    shared: &'a SharedProcess,
    reader: Reader<'a>,
}

impl SweptProcess<'_> {
    fn sweep(&mut self, dead: bool) {
        loop {
            let t0 = self.shared.0.borrow().now();
            let counts = self.reader.sweep(Sweep { t0, dead, max_batches: usize::MAX });
            assert_eq!((counts.violations, counts.clamped), (0, 0), "{counts:?}");
            if !counts.unfinished {
                break;
            }
        }
    }

    /// Runs an action that may have to wait; in that case it sweeps and runs the action again.
    fn run_with_sweep(&mut self, action: impl Fn(&mut SimulatedProcess) -> Option<bool>) -> bool {
        let kept = action(&mut self.shared.0.borrow_mut());
        kept.unwrap_or_else(|| {
            self.sweep(false);
            let kept = action(&mut self.shared.0.borrow_mut());
            kept.unwrap_or_else(|| panic!("an empty lane has no space"))
        })
    }
}

impl Subject for SweptProcess<'_> {
    fn begin(&mut self, thread: usize, encloses: bool, tag: u64) {
        self.shared.0.borrow_mut().begin(thread, encloses, tag);
    }

    fn end(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.run_with_sweep(|process| process.end(thread, slots, tag).ok())
    }

    fn cancel(&mut self, thread: usize) {
        self.shared.0.borrow_mut().cancel(thread);
    }

    fn file(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.run_with_sweep(|process| process.file(thread, slots, tag).ok())
    }

    fn exit(&mut self, thread: usize) {
        self.shared.0.borrow_mut().exit(thread);
    }

    fn set(&mut self, when_full: WhenFull, filter: Filter) {
        self.shared.0.borrow_mut().set(when_full, filter);
    }

    fn drain(&mut self, _limit: usize) {
        self.sweep(false);
    }

    fn kill(&mut self) {
        self.sweep(true);
        let t0 = self.shared.0.borrow().now();
        self.reader.end(t0);
    }

    fn take_output(&mut self) -> Vec<StreamOutput> {
        let facts = self.reader.take_facts();
        let records = facts.batches.iter().flat_map(|(stream, columns)| records(*stream, columns));
        let streams = facts.streams.iter().map(StreamOutput::from);
        streams.chain(records).chain(facts.ends.iter().map(StreamOutput::from)).collect()
    }
}

/// Returns sequences for each policy, filters, and starts and ends of threads.
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

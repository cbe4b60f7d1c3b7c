//! Steps of threads on their lanes, and the oracle for their outcome.
//!
//! One generator ([`Step::decode`]) and one [`Oracle`] serve all tests of a lane: unit and property
//! tests in this crate, a fuzz target with the log-client's own reader, and a test with real
//! processes. They differ in the [`Subject`] that executes the steps.
//!
//! Steps are executed one after the other, so the oracle knows for each record whether it is
//! recorded, dropped, overwritten or filtered. The loom models cover interleavings of single
//! stores.

mod oracle;
mod output;
mod simulated;

pub use oracle::Oracle;
pub use output::{StreamOutput, Totals, records};
pub use simulated::SimulatedProcess;

use miot_proto::control::WhenFull;
use miot_proto::event::{MAX_PATH, RecordKind, SLOT_BYTES};

/// Number of concurrent threads.
pub const THREADS: usize = 3;
/// Slots of each lane: the minimum that a reader accepts.
pub const LANE_SLOTS: u64 = miot_proto::segment::MIN_LANE_SLOTS;
/// Maximum number of nested requests of a thread.
const DEPTH: usize = 4;
/// Bytes that encode a step.
pub const STEP_BYTES: usize = 3;

/// One action of a thread, of the consumer, or of the control page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request begins. If `encloses`, it is the parent of the requests that begin before its end.
    Begin {
        /// Index of the thread.
        thread: usize,
        /// Whether it makes requests of its own.
        encloses: bool,
    },
    /// The thread's latest request ends with a record of `slots` slots.
    End {
        /// Index of the thread.
        thread: usize,
        /// Slots of the record.
        slots: u64,
    },
    /// The thread's latest request is cancelled.
    Cancel {
        /// Index of the thread.
        thread: usize,
    },
    /// A thread names a file, independently of the filter.
    File {
        /// Index of the thread.
        thread: usize,
        /// Slots of the record.
        slots: u64,
    },
    /// A thread ends, with requests possibly in progress. Another thread gets its index.
    Exit {
        /// Index of the thread.
        thread: usize,
    },
    /// The consumer reads at least `max_records` records of each lane, or all if there are fewer.
    Drain {
        /// Records of a lane.
        max_records: usize,
    },
    /// Sets the policy for full lanes.
    WhenFull(WhenFull),
    /// Sets the filter.
    Filter(Filter),
}

/// Which requests are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All.
    #[default]
    All,
    /// None: all are too short.
    TooShort,
}

impl Step {
    /// Decodes a step. Every value of the bytes is a valid step.
    #[must_use]
    pub fn decode([action, thread, number]: [u8; STEP_BYTES]) -> Step {
        let thread = usize::from(thread) % THREADS;
        // Half of the records are short; the longest take half a lane.
        let slots = match number {
            0..128 => 1,
            _ => u64::from(number) - 126,
        };
        // The consumer reads seldom and often few records, so that lanes fill.
        match action % 64 {
            0..22 => Step::Begin { thread, encloses: number.is_multiple_of(4) },
            22..44 => Step::End { thread, slots },
            // A file has one path only.
            44..58 => Step::File { thread, slots: slots.min(1 + (MAX_PATH / SLOT_BYTES) as u64) },
            58 => Step::Cancel { thread },
            59 => Step::Exit { thread },
            60 | 61 => {
                Step::Drain { max_records: usize::from(if number < 128 { number % 8 } else { number }) }
            }
            62 => Step::WhenFull(WhenFull::from_number(u64::from(number) % 3)),
            _ => Step::Filter(if number < 192 { Filter::All } else { Filter::TooShort }),
        }
    }

    /// Decodes all complete steps in these bytes.
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Step> {
        bytes.as_chunks::<STEP_BYTES>().0.iter().copied().map(Step::decode)
    }
}

/// A record as written by the producer and as reported by the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Attempt number.
    pub attempt: u64,
    /// Unique number, from which its paths are generated. It is also the record's offset, or its
    /// handle if it names a file.
    pub tag: u64,
    /// Request number, 0 for a record that names a file.
    pub request: u32,
    /// Number of the parent, 0 if none.
    pub enclosing: u32,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Slots that it occupies.
    pub slots: u64,
    /// True if its thread ended during the request.
    pub interrupted: bool,
}

/// Returns paths that make a record of `slots` slots, at max_records 129. Their contents depend on
/// `tag`.
#[must_use]
pub fn paths(slots: u64, tag: u64) -> (Vec<u8>, Vec<u8>) {
    // The second slot has 8 bytes before the paths.
    let bytes = (slots.saturating_sub(1) as usize * SLOT_BYTES).saturating_sub(8);
    let mut first = tag.to_be_bytes().repeat(bytes.div_ceil(8));
    first.truncate(bytes);
    let second = first.split_off(bytes.min(MAX_PATH));
    (first, second)
}

/// Returns the slots of a record with these paths; `None` if they are not [`paths`] of this tag.
#[must_use]
pub fn slots_of(paths: (&[u8], &[u8]), tag: u64) -> Option<u64> {
    let bytes = paths.0.len() + paths.1.len();
    let slots = if bytes == 0 { 1 } else { 1 + (bytes + 8) as u64 / SLOT_BYTES as u64 };
    let (first, second) = self::paths(slots, tag);
    (paths == (&first, &second)).then_some(slots)
}

/// The system under test: threads with their lanes, and a consumer.
pub trait Subject {
    /// Begins a request.
    fn begin(&mut self, thread: usize, encloses: bool, tag: u64);
    /// Ends the thread's latest request. Returns true if it is recorded.
    fn end(&mut self, thread: usize, slots: u64, tag: u64) -> bool;
    /// Cancels the thread's latest request.
    fn cancel(&mut self, thread: usize);
    /// Names a file. Returns true if that is recorded.
    fn file(&mut self, thread: usize, slots: u64, tag: u64) -> bool;
    /// Ends the thread.
    fn exit(&mut self, thread: usize);
    /// Sets the policy for full lanes, and the filter.
    fn set(&mut self, when_full: WhenFull, filter: Filter);
    /// Makes the consumer read at least `max_records` records of each lane, or all if there are
    /// fewer.
    fn drain(&mut self, max_records: usize);
    /// Kills all threads. The consumer reads the remaining records and ends all streams.
    fn kill(&mut self);
    /// Returns and clears the consumer's reports since the last call.
    fn take_output(&mut self) -> Vec<StreamOutput>;
}

/// Executes the steps, kills the threads and checks the outcome.
///
/// # Panics
/// If the subject deviates from the oracle.
pub fn run_steps(steps: impl IntoIterator<Item = Step>, subject: &mut impl Subject) {
    let mut oracle = Oracle::default();
    for step in steps {
        oracle.step(step, subject);
    }
    oracle.kill(subject);
}

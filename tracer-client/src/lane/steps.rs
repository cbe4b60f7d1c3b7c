//! What threads do with their lanes, one step at a time, and what must come of it.
//!
//! One generator ([`Step::decode`]) and one [`Oracle`] for all who test a lane: unit and property tests in this crate, a
//! fuzz target with the log-client's own reader, and a test with real processes. They differ in the
//! [`Subject`] that the steps are done to.
//!
//! Steps are done one after the other, so the oracle knows of every record whether it is taken, dropped, overwritten
//! or filtered. What happens between two stores is for the models of loom.

mod oracle;
mod stage;
mod told;

pub use oracle::Oracle;
pub use stage::Stage;
pub use told::{Told, Totals, records};

use miot_proto::control::WhenFull;
use miot_proto::event::{MAX_PATH, RecordKind, SLOT_BYTES};

/// Threads at a time.
pub const THREADS: usize = 3;
/// Slots of each lane: the fewest that a reader accepts.
pub const LANE_SLOTS: u64 = miot_proto::segment::MIN_LANE_SLOTS;
/// Requests of a thread at a time.
const DEPTH: usize = 4;
/// Bytes of a step.
pub const STEP_BYTES: usize = 3;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request begins; if it encloses, those that begin before its end are part of it.
    Begin {
        /// Which thread.
        thread: usize,
        /// Whether it makes requests of its own.
        encloses: bool,
    },
    /// The thread's last request ends, and takes so many slots.
    End {
        /// Which thread.
        thread: usize,
        /// Slots of the record.
        slots: u64,
    },
    /// The thread's last request was none to record.
    Cancel {
        /// Which thread.
        thread: usize,
    },
    /// A thread names a file, whatever the filter.
    File {
        /// Which thread.
        thread: usize,
        /// Slots of the record.
        slots: u64,
    },
    /// A thread ends, with whatever it has begun. Another one takes its number.
    Exit {
        /// Which thread.
        thread: usize,
    },
    /// The consumer reads at least so many records of each lane, if there are as many.
    Drain {
        /// Records of a lane.
        most: usize,
    },
    /// From now on lanes that are full do this.
    WhenFull(WhenFull),
    /// From now on this is recorded.
    Filter(Filter),
}

/// Which requests are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All.
    #[default]
    All,
    /// None: they are all too short.
    TooShort,
}

impl Step {
    /// The step that these bytes stand for; all bytes are one.
    #[must_use]
    pub fn decode([what, thread, number]: [u8; STEP_BYTES]) -> Step {
        let thread = usize::from(thread) % THREADS;
        // Mostly short records; a long one is half a lane.
        let slots = match number {
            0..128 => 1,
            _ => u64::from(number) - 126,
        };
        // The consumer comes seldom and often takes little, so that lanes fill.
        match what % 64 {
            0..22 => Step::Begin { thread, encloses: number.is_multiple_of(4) },
            22..44 => Step::End { thread, slots },
            // It has one path.
            44..58 => Step::File { thread, slots: slots.min(1 + (MAX_PATH / SLOT_BYTES) as u64) },
            58 => Step::Cancel { thread },
            59 => Step::Exit { thread },
            60 | 61 => Step::Drain { most: usize::from(if number < 128 { number % 8 } else { number }) },
            62 => Step::WhenFull(WhenFull::from_number(u64::from(number) % 3)),
            _ => Step::Filter(if number < 192 { Filter::All } else { Filter::TooShort }),
        }
    }

    /// As many steps as there are in these bytes.
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Step> {
        bytes.as_chunks::<STEP_BYTES>().0.iter().copied().map(Step::decode)
    }
}

/// A record as it is written and as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Attempt number.
    pub attempt: u64,
    /// Number of its own, which stands in its paths and in its offset, or, if it names a file, for the handle.
    pub tag: u64,
    /// Request number, 0 of a file.
    pub request: u32,
    /// Number of the request that encloses it, 0 if none.
    pub enclosing: u32,
    /// What it is.
    pub kind: RecordKind,
    /// Slots that it takes.
    pub slots: u64,
    /// It was cut off: its thread ended in it.
    pub interrupted: bool,
}

/// The paths that make a record of so many slots, at most 129, which say whose they are.
#[must_use]
pub fn paths(slots: u64, tag: u64) -> (Vec<u8>, Vec<u8>) {
    // After the first slot there are 8 bytes before the paths.
    let bytes = (slots.saturating_sub(1) as usize * SLOT_BYTES).saturating_sub(8);
    let mut first = tag.to_be_bytes().repeat(bytes.div_ceil(8));
    first.truncate(bytes);
    let second = first.split_off(bytes.min(MAX_PATH));
    (first, second)
}

/// Slots of a record with these paths; `None` if they are not [`paths`] of this tag.
#[must_use]
pub fn slots_of(paths: (&[u8], &[u8]), tag: u64) -> Option<u64> {
    let bytes = paths.0.len() + paths.1.len();
    let slots = if bytes == 0 { 1 } else { 1 + (bytes + 8) as u64 / SLOT_BYTES as u64 };
    let (first, second) = self::paths(slots, tag);
    (paths == (&first, &second)).then_some(slots)
}

/// What the steps are done to: threads with their lanes, and a consumer.
pub trait Subject {
    /// A request begins.
    fn begin(&mut self, thread: usize, encloses: bool, tag: u64);
    /// The last request of the thread ends. True if it is recorded.
    fn end(&mut self, thread: usize, slots: u64, tag: u64) -> bool;
    /// The last request of the thread is forgotten.
    fn cancel(&mut self, thread: usize);
    /// A file is named. True if it is recorded.
    fn file(&mut self, thread: usize, slots: u64, tag: u64) -> bool;
    /// The thread ends.
    fn exit(&mut self, thread: usize);
    /// What to do with lanes that are full, and what to record.
    fn set(&mut self, when_full: WhenFull, filter: Filter);
    /// The consumer reads at least so many records of each lane, if there are as many.
    fn drain(&mut self, most: usize);
    /// All threads are killed; the consumer reads what is left and ends all streams.
    fn kill(&mut self);
    /// What the consumer has told since it was last asked.
    fn told(&mut self) -> Vec<Told>;
}

/// Does the steps, and then kills.
///
/// # Panics
/// If the subject does not do what the oracle says.
pub fn play(steps: impl IntoIterator<Item = Step>, subject: &mut impl Subject) {
    let mut oracle = Oracle::default();
    for step in steps {
        oracle.step(step, subject);
    }
    oracle.kill(subject);
}

//! A simulated log-client that only reads lanes. To producers it looks like a real one, so that the
//! producer's cost is measured alone. It counts the records, so that a benchmark can check that
//! what it measured has happened.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use anyhow::{Context, Result, ensure};
use miot_proto::control::{self, STALE_SECONDS, Settings, word};
use miot_proto::event::{RecordKind, SLOT_BYTES};
use miot_proto::segment::{self, header, lane};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Interval of the updates of the control page's modification time, as of a log-client. Programs
/// that start take a log-client for dead after [`STALE_SECONDS`].
const HEARTBEAT: Duration = Duration::from_secs(1);
const _: () = assert!(STALE_SECONDS as u64 > 10 * HEARTBEAT.as_secs());

/// How the reader handles records in the lanes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Copies them, like a log-client.
    Copies,
    /// Advances its position without reading, so that the producer's cache lines stay exclusive.
    Skips,
    /// Does nothing, so that the lanes fill.
    Nothing,
}

/// A MIOT directory with a control page and a thread that reads.
pub(crate) struct Played {
    dir: PathBuf,
    reads: Reads,
    shared: Arc<Shared>,
    heart: Option<JoinHandle<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Records that programs have offered to the lanes of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Slots written: one per request without a path.
    pub(crate) slots: u64,
    /// Requests written. Counted only where the reader [copies](Reads::Copies).
    pub(crate) requests: u64,
    /// Records lost for any reason.
    pub(crate) lost: u64,
    /// Requests that a filter left out.
    pub(crate) filtered: u64,
}

impl std::ops::Sub for Recorded {
    type Output = Recorded;

    fn sub(self, before: Recorded) -> Recorded {
        Recorded {
            slots: self.slots - before.slots,
            requests: self.requests - before.requests,
            lost: self.lost - before.lost,
            filtered: self.filtered - before.filtered,
        }
    }
}

/// State shared between the driver and the reading thread.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    asleep: AtomicBool,
    slots: AtomicU64,
    requests: AtomicU64,
    lost: AtomicU64,
    filtered: AtomicU64,
    /// Number of sweeps that found nothing.
    empty_sweeps: AtomicU64,
}

impl Played {
    /// Settings with lanes of the default maximum size from the start.
    pub(crate) fn ample() -> Settings {
        let slots = Settings::default().lane_slots_max;
        Settings { lane_slots: slots, process_bytes: 1 << 30, ..Settings::default() }
    }

    /// Creates the directory and starts the reader. The control page has these settings.
    pub(crate) fn start(dir: &Path, reads: Reads, settings: &Settings) -> Result<Played> {
        std::fs::create_dir_all(dir)?;
        let page = File::create(dir.join(control::FILE))?;
        page.set_len(control::BYTES as u64)?;
        let reader = (word::READER_PID, u64::from(std::process::id()));
        let tsc_hz = (crate::machine::tsc_ghz() * 1e9) as u64;
        for (at, value) in settings.words(tsc_hz).chain([reader, (word::MAGIC, control::MAGIC)]) {
            page.write_all_at(&value.to_le_bytes(), at as u64).context("the control page")?;
        }
        let shared = Arc::new(Shared::default());
        let heart = {
            let shared = shared.clone();
            std::thread::spawn(move || {
                while !shared.stop.load(SeqCst) {
                    if let Err(error) = page.set_modified(SystemTime::now()) {
                        eprintln!("the control page keeps its time: {error}");
                    }
                    std::thread::park_timeout(HEARTBEAT);
                }
            })
        };
        let thread = (reads != Reads::Nothing).then(|| {
            let mut reader = Reader::new(dir, reads);
            let shared = shared.clone();
            std::thread::spawn(move || {
                while !shared.stop.load(SeqCst) {
                    if shared.asleep.load(SeqCst) {
                        std::thread::park();
                        continue;
                    }
                    let moved = reader.sweep();
                    shared.store(reader.recorded());
                    if !moved {
                        shared.empty_sweeps.fetch_add(1, SeqCst);
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            })
        });
        Ok(Played { dir: dir.into(), reads, shared, heart: Some(heart), thread })
    }

    /// Excludes programs of this name from recording.
    pub(crate) fn leave_out(&self, program: &str) -> Result<()> {
        let list = control::exclusion_list(&[program], &[]).context("a name that fits")?;
        let page = File::options().write(true).open(self.dir.join(control::FILE))?;
        page.write_all_at(&list, word::LEFT_OUT as u64)?;
        Ok(page.write_all_at(&(list.len() as u64).to_le_bytes(), word::LEFT_OUT_BYTES as u64)?)
    }

    /// Stops reading, so that the reader uses no processor time.
    pub(crate) fn sleep(&self) {
        self.shared.asleep.store(true, SeqCst);
    }

    /// Resumes reading.
    pub(crate) fn wake(&self) {
        self.shared.asleep.store(false, SeqCst);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Waits until all earlier records have been read, so that the next run starts with empty
    /// lanes.
    pub(crate) fn catch_up(&self) -> Result<()> {
        if self.thread.is_none() {
            return Ok(());
        }
        // The present sweep may have started earlier; the one after it has not.
        let (before, started) = (self.shared.empty_sweeps.load(SeqCst), Instant::now());
        while self.shared.empty_sweeps.load(SeqCst) < before + 2 {
            ensure!(started.elapsed() < Duration::from_secs(30), "the reader does not catch up");
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Value of `MIOT_DIR`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Records so far. A reader that is awake must have [caught up](Self::catch_up).
    pub(crate) fn recorded(&self) -> Recorded {
        match self.reads {
            Reads::Nothing => recorded_in(&self.dir),
            _ => self.shared.recorded(),
        }
    }
}

impl Shared {
    fn store(&self, recorded: Recorded) {
        let Recorded { slots, requests, lost, filtered } = recorded;
        for (word, value) in
            [(&self.slots, slots), (&self.requests, requests), (&self.lost, lost), (&self.filtered, filtered)]
        {
            word.store(value, SeqCst);
        }
    }

    fn recorded(&self) -> Recorded {
        let [slots, requests, lost, filtered] =
            [&self.slots, &self.requests, &self.lost, &self.filtered].map(|word| word.load(SeqCst));
        Recorded { slots, requests, lost, filtered }
    }
}

/// Returns what programs have recorded in a directory for which there is no log-client: normally
/// nothing.
pub(crate) fn recorded_in(dir: &Path) -> Recorded {
    let mut reader = Reader::new(dir, Reads::Nothing);
    reader.sweep();
    reader.recorded()
}

impl Drop for Played {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.wake();
        for thread in [self.heart.take(), self.thread.take()].into_iter().flatten() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Reader {
    dir: PathBuf,
    reads: Reads,
    segments: HashMap<PathBuf, Segment>,
    buffer: Vec<u8>,
}

struct Segment {
    file: File,
    lanes: HashMap<u64, LaneRead>,
    lost_no_lane: u64,
}

/// What was read of a lane.
#[derive(Default)]
struct LaneRead {
    tail: u64,
    requests: u64,
    /// Slots of the record that was read last which have not been read yet.
    rest: u64,
    drained: u64,
    /// Records lost and left out, by incarnation.
    lost: HashMap<u64, [u64; 2]>,
}

impl Reader {
    fn new(dir: &Path, reads: Reads) -> Reader {
        let buffer = vec![0; if reads == Reads::Copies { 1 << 20 } else { 0 }];
        Reader { dir: dir.into(), reads, segments: HashMap::new(), buffer }
    }

    /// Reads all lanes. Returns true if there was something new.
    fn sweep(&mut self) -> bool {
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|suffix| suffix == &segment::SUFFIX[1..])
                && !self.segments.contains_key(&path)
                && let Ok(file) = File::options().read(true).write(true).open(&path)
            {
                self.segments.insert(path, Segment { file, lanes: HashMap::new(), lost_no_lane: 0 });
            }
        }
        let mut moved = false;
        for segment in self.segments.values_mut() {
            moved |= segment.sweep(self.reads, &mut self.buffer);
        }
        moved
    }

    fn recorded(&self) -> Recorded {
        let mut all = Recorded::default();
        for segment in self.segments.values() {
            all.lost += segment.lost_no_lane;
            for lane in segment.lanes.values() {
                all.slots += lane.tail;
                all.requests += lane.requests;
                all.lost += lane.lost.values().map(|[lost, _]| lost).sum::<u64>();
                all.filtered += lane.lost.values().map(|[_, filtered]| filtered).sum::<u64>();
            }
        }
        all
    }
}

impl Segment {
    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    fn sweep(&mut self, reads: Reads, buffer: &mut [u8]) -> bool {
        let mut moved = false;
        self.lost_no_lane = self.word(header::LOST_NO_LANE as u64);
        for index in 0..self.word(header::LANES as u64) {
            let at = (segment::HEADER_BYTES + index as usize * segment::LANE_BYTES) as u64;
            let mut entry = [0; segment::LANE_BYTES];
            if self.file.read_exact_at(&mut entry, at).is_err() {
                continue;
            }
            let word = |at: usize| {
                entry[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte))
            };
            let (state, tail, mut head) = (word(lane::STATE), word(lane::TAIL) >> 1, word(lane::HEAD));
            let read = self.lanes.entry(index).or_default();
            let lost = word(lane::LOST_FULL) + word(lane::LOST_NESTED);
            read.lost.insert(state >> 32, [lost, word(lane::FILTERED)]);
            read.tail = tail;
            if reads != Reads::Nothing && head < tail {
                moved = true;
                let (slots_at, slots) = (word(lane::SLOTS_AT), word(lane::SLOTS));
                while reads == Reads::Copies && head < tail {
                    let run = (tail - head).min(slots - head % slots).min((buffer.len() / SLOT_BYTES) as u64);
                    let bytes = &mut buffer[..run as usize * SLOT_BYTES];
                    let _ = self.file.read_exact_at(bytes, slots_at + head % slots * SLOT_BYTES as u64);
                    read.count(bytes);
                    head += run;
                }
                let _ = self.file.write_all_at(&tail.to_le_bytes(), at + lane::HEAD as u64);
            }
            // The state was read with or before the tail, so a retired lane's tail is final.
            if reads != Reads::Nothing
                && state as u32 == segment::LaneState::Retired as u32
                && read.drained != state >> 32
            {
                let _ = self.file.write_all_at(&(state >> 32).to_le_bytes(), at + lane::DRAINED as u64);
                read.drained = state >> 32;
            }
        }
        moved
    }
}

impl LaneRead {
    /// Counts the requests in consecutive slots, by the first bytes of each record: its kind and
    /// its number of slots.
    fn count(&mut self, slots: &[u8]) {
        let end = (slots.len() / SLOT_BYTES) as u64;
        let mut at = self.rest;
        while at < end {
            let record = &slots[at as usize * SLOT_BYTES..];
            self.requests += u64::from(record[0] == RecordKind::Request as u8);
            at += u64::from(record[1]).max(1);
        }
        self.rest = at - end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_across_the_end_of_a_run() {
        let slot = |kind: RecordKind, slots: u8| {
            let mut slot = [0; SLOT_BYTES];
            (slot[0], slot[1]) = (kind as u8, slots);
            slot
        };
        let rest = [1; SLOT_BYTES];
        let mut lane = LaneRead::default();
        lane.count(
            &[slot(RecordKind::Request, 1), slot(RecordKind::File, 2), rest, slot(RecordKind::Request, 3)]
                .concat(),
        );
        assert_eq!((lane.requests, lane.rest), (2, 2));
        lane.count(&[rest, rest, slot(RecordKind::Request, 1)].concat());
        assert_eq!((lane.requests, lane.rest), (3, 0));
    }
}

//! A simulated log-client that only reads lanes. To producers it looks like a real one, so that the
//! producer's cost is measured alone.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use anyhow::{Context, Result, ensure};
use miot_proto::control::{self, Settings, word};
use miot_proto::segment::{self, header, lane};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared between the driver and the reading thread.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    asleep: AtomicBool,
    losses: AtomicU64,
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
        let thread = (reads != Reads::Nothing).then(|| {
            let mut reader = Reader {
                dir: dir.into(),
                copies: reads == Reads::Copies,
                segments: HashMap::new(),
                buffer: vec![0; 1 << 20],
            };
            let shared = shared.clone();
            std::thread::spawn(move || {
                while !shared.stop.load(SeqCst) {
                    if shared.asleep.load(SeqCst) {
                        std::thread::park();
                        continue;
                    }
                    let moved = reader.sweep();
                    shared.losses.store(reader.losses(), SeqCst);
                    if !moved {
                        shared.empty_sweeps.fetch_add(1, SeqCst);
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            })
        });
        Ok(Played { dir: dir.into(), shared, thread })
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

    /// Records lost because a lane was full.
    pub(crate) fn losses(&self) -> u64 {
        self.shared.losses.load(SeqCst)
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Reader {
    dir: PathBuf,
    copies: bool,
    segments: HashMap<PathBuf, Segment>,
    buffer: Vec<u8>,
}

struct Segment {
    file: File,
    lost: HashMap<(u64, u64), u64>,
    drained: HashMap<u64, u64>,
}

impl Reader {
    fn sweep(&mut self) -> bool {
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|suffix| suffix == &segment::SUFFIX[1..])
                && !self.segments.contains_key(&path)
                && let Ok(file) = File::options().read(true).write(true).open(&path)
            {
                self.segments.insert(path, Segment { file, lost: HashMap::new(), drained: HashMap::new() });
            }
        }
        let mut moved = false;
        for segment in self.segments.values_mut() {
            moved |= segment.sweep(self.copies, &mut self.buffer);
        }
        moved
    }

    fn losses(&self) -> u64 {
        self.segments.values().flat_map(|segment| segment.lost.values()).sum()
    }
}

impl Segment {
    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    fn sweep(&mut self, copies: bool, buffer: &mut [u8]) -> bool {
        let mut moved = false;
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
            self.lost.insert((index, state >> 32), word(lane::LOST_FULL));
            if head < tail {
                moved = true;
                if copies {
                    let (slots_at, slots) = (word(lane::SLOTS_AT), word(lane::SLOTS));
                    while head < tail {
                        let run = (tail - head).min(slots - head % slots).min(buffer.len() as u64 / 64);
                        let _ = self
                            .file
                            .read_exact_at(&mut buffer[..run as usize * 64], slots_at + head % slots * 64);
                        head += run;
                    }
                }
                let _ = self.file.write_all_at(&tail.to_le_bytes(), at + lane::HEAD as u64);
            }
            // The state was read with or before the tail, so a retired lane's tail is final.
            if state as u32 == segment::LaneState::Retired as u32
                && self.drained.get(&index) != Some(&(state >> 32))
            {
                let _ = self.file.write_all_at(&(state >> 32).to_le_bytes(), at + lane::DRAINED as u64);
                self.drained.insert(index, state >> 32);
            }
        }
        moved
    }
}

//! A log-client that only reads: it plays the part of the reader of the lanes, as far as a producer can
//! see it, so that the producer's cost is measured alone.

use anyhow::{Context, Result};
use miot_proto::control::{self, WhenFull, word};
use miot_proto::segment::{self, header, lane};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the reader does with what is in the lanes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Copies it, as a log-client does.
    Copies,
    /// Moves its position on without reading: the producer's cache lines stay its own.
    Skips,
    /// Nothing: the lanes fill.
    Nothing,
}

/// A MIOT directory with a control page and a thread that reads.
pub(crate) struct Played {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    losses: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Played {
    /// Makes the directory and starts the reader. `recording`: whether producers shall record.
    pub(crate) fn start(dir: &Path, reads: Reads, recording: bool) -> Result<Played> {
        std::fs::create_dir_all(dir)?;
        let page = File::create(dir.join(control::FILE))?;
        page.set_len(control::BYTES as u64)?;
        // As large as a log-client lets lanes grow by default, from the start; or full at once.
        let slots = if reads == Reads::Nothing { 256 } else { 32_768 };
        for (at, value) in [
            (word::ENABLED, u64::from(recording)),
            (word::LAYERS, u64::MAX),
            (word::WHEN_FULL, WhenFull::DropNewest as u64),
            (word::LANE_SLOTS, slots),
            (word::LANE_SLOTS_MAX, slots),
            (word::PROCESS_BYTES, 1 << 30),
            (word::READER_PID, u64::from(std::process::id())),
            (word::MAGIC, control::MAGIC),
        ] {
            page.write_all_at(&value.to_le_bytes(), at as u64).context("the control page")?;
        }
        let (stop, losses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = (reads != Reads::Nothing).then(|| {
            let mut reader = Reader {
                dir: dir.into(),
                copies: reads == Reads::Copies,
                segments: HashMap::new(),
                buffer: vec![0; 1 << 20],
            };
            let (stop, losses) = (stop.clone(), losses.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    let moved = reader.sweep();
                    losses.store(reader.losses(), Relaxed);
                    if !moved {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            })
        });
        Ok(Played { dir: dir.into(), stop, losses, thread })
    }

    /// For `MIOT_DIR`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Records lost because a lane was full.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Relaxed)
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
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

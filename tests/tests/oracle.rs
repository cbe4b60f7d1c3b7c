//! The steps and the oracle of the lane's own tests, with a real process that records and the
//! log-client's reader on its segment file. The requests of each thread are delivered in order,
//! once and undamaged, and missing ones are counted.
//!
//! `MIOT_SEED=7` repeats a run. `MIOT_ORACLE_PROGRAMS=1000` runs for longer.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_log_client::testing::{Reader, SegmentBytes, Sweep};
use miot_proto::control::{BYTES, FILE, MAGIC, Settings, WhenFull, word};
use miot_proto::segment::{Clock, SUFFIX, header};
use miot_tests::process::WATCHDOG;
use miot_tracer::steps::{
    Filter, LANE_SLOTS, STEP_BYTES, Step, StreamOutput, Subject, THREADS, records, run_steps,
};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Steps of a program.
const STEPS: usize = 400;

/// A segment file, read as the log-client reads it.
struct Segment(File);

impl Segment {
    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, at as u64).unwrap();
        u64::from_le_bytes(word)
    }

    /// Present time of the clock of its process.
    fn now(&self) -> u64 {
        if self.word(header::CLOCK) == Clock::Tsc as u64 {
            return miot_tracer::ticks();
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

impl SegmentBytes for Segment {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(buffer, at).ok()
    }

    fn write_word(&self, at: u64, value: u64) -> Option<()> {
        self.0.write_all_at(&value.to_le_bytes(), at).ok()
    }

    fn size(&self) -> u64 {
        self.0.metadata().map_or(0, |data| data.len())
    }
}

/// A process that executes commands, the control page that controls it, and a reader of its
/// segment.
struct Real<'a> {
    player: Child,
    orders: ChildStdin,
    answers: Receiver<bool>,
    folder: &'a Path,
    control: File,
    settings: Settings,
    /// Threads that have a lane.
    running: [bool; THREADS],
    /// Segment and reader, once a segment exists.
    reading: Option<(&'static Segment, Reader<'static>)>,
}

impl Real<'_> {
    fn start(folder: &Path) -> Real<'_> {
        let control = File::create_new(folder.join(FILE)).unwrap();
        control.set_len(BYTES as u64).unwrap();
        let settings = Settings {
            lane_slots: LANE_SLOTS,
            lane_slots_max: LANE_SLOTS,
            wait_ns: WATCHDOG.as_nanos() as u64,
            ..Settings::default()
        };
        let mut player = Command::new(env!("CARGO_BIN_EXE_player"))
            .env("MIOT_DIR", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, answers) = channel();
        let lines = BufReader::new(player.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = said.send(line == "1");
            }
        });
        let orders = player.stdin.take().unwrap();
        let running = [false; THREADS];
        let real = Real { player, orders, answers, folder, control, settings, running, reading: None };
        real.write_settings();
        real.control.write_all_at(&MAGIC.to_le_bytes(), word::MAGIC as u64).unwrap();
        real
    }

    fn write_settings(&self) {
        for (at, value) in self.settings.words(1_000_000_000) {
            self.control.write_all_at(&value.to_le_bytes(), at as u64).unwrap();
        }
    }

    /// Sends a command. If a thread may be waiting for a free slot, the reader frees some. If a
    /// thread may be about to claim a lane, the reader does not, because the choice of the lane
    /// depends on the records read so far.
    fn order(&mut self, word: &str, thread: usize, more: &str) -> bool {
        let order = format!("{word} {thread}{more}");
        writeln!(self.orders, "{order}").unwrap();
        let waits = self.settings.when_full == WhenFull::Wait && self.running[thread];
        self.running[thread] = word != "exit";
        let start = Instant::now();
        loop {
            if let Ok(answer) = self.answers.recv_timeout(Duration::from_millis(2)) {
                return answer;
            }
            assert!(start.elapsed() < WATCHDOG, "no answer to {order:?}");
            if waits {
                self.sweep(false);
            }
        }
    }

    fn sweep(&mut self, dead: bool) {
        if self.reading.is_none() {
            self.reading = segment(self.folder).map(|segment| {
                let mut reader = Reader::attach(segment).unwrap();
                reader.overwrites();
                (segment, reader)
            });
        }
        let Some((segment, reader)) = &mut self.reading else { return };
        loop {
            let found = reader.sweep(Sweep { t0: segment.now(), dead, max_batches: usize::MAX });
            assert_eq!((found.violations, found.clamped), (0, 0), "{found:?}");
            if !found.unfinished {
                break;
            }
        }
    }
}

/// Segment in a folder, if there is one. It is kept to the end of the test.
fn segment(folder: &Path) -> Option<&'static Segment> {
    let mut found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let path = found.find(|path| path.to_string_lossy().ends_with(SUFFIX))?;
    let file = File::options().read(true).write(true).open(path).unwrap();
    Some(Box::leak(Box::new(Segment(file))))
}

impl Subject for Real<'_> {
    fn begin(&mut self, thread: usize, encloses: bool, tag: u64) {
        let word = if encloses { "enclose" } else { "begin" };
        self.order(word, thread, &format!(" {tag}"));
    }

    fn end(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.order("end", thread, &format!(" {tag} {slots}"))
    }

    fn cancel(&mut self, thread: usize) {
        self.order("cancel", thread, "");
    }

    fn file(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.order("file", thread, &format!(" {tag} {slots}"))
    }

    fn exit(&mut self, thread: usize) {
        self.order("exit", thread, "");
    }

    fn set(&mut self, when_full: WhenFull, filter: Filter) {
        self.settings.when_full = when_full;
        self.settings.min_duration_ns = if filter == Filter::TooShort { u64::MAX } else { 0 };
        self.write_settings();
    }

    fn drain(&mut self, _most: usize) {
        self.sweep(false);
    }

    fn kill(&mut self) {
        self.player.kill().unwrap();
        self.player.wait().unwrap();
        self.sweep(true);
        if let Some((segment, reader)) = &mut self.reading {
            reader.end(segment.now());
        }
    }

    fn take_output(&mut self) -> Vec<StreamOutput> {
        let Some((_, reader)) = &mut self.reading else { return Vec::new() };
        let told = reader.take_facts();
        let records = told.batches.iter().flat_map(|(stream, columns)| records(*stream, columns));
        let streams = told.streams.iter().map(StreamOutput::from);
        streams.chain(records).chain(told.ends.iter().map(StreamOutput::from)).collect()
    }
}

impl Drop for Real<'_> {
    fn drop(&mut self) {
        let _ = self.player.kill();
        let _ = self.player.wait();
    }
}

fn number(name: &str, otherwise: impl FnOnce() -> u64) -> u64 {
    std::env::var(name).map_or_else(|_| otherwise(), |text| text.parse().expect(name))
}

#[test]
fn real_threads_agree_with_the_oracle() {
    let folder = tempfile::Builder::new().prefix("miot-oracle-").tempdir_in("/dev/shm").unwrap();
    let mut seed =
        number("MIOT_SEED", || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into());
    for program in 0..number("MIOT_ORACLE_PROGRAMS", || 25) {
        println!("program {program}: MIOT_SEED={seed}");
        let place = folder.path().join(program.to_string());
        std::fs::create_dir(&place).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let steps: Vec<Step> = (0..STEPS).map(|_| Step::decode(random_bytes(&mut random))).collect();
        seed = random.u64(..);
        run_steps(steps, &mut Real::start(&place));
    }
}

fn random_bytes(random: &mut fastrand::Rng) -> [u8; STEP_BYTES] {
    std::array::from_fn(|_| random.u8(..))
}

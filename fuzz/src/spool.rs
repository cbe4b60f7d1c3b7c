//! Spool of a log-client that is killed and restarted, and whose files are damaged.
//!
//! The bytes are steps: a log-client writes messages, connects, receives acknowledgments, is
//! killed; a file is truncated, overwritten or removed. Checks for any damage:
//!
//! * the log-client sends only messages that were written, under their own stream, and once per
//!   connection;
//! * it sends every batch before the damage of its file, and all batches of an undamaged file;
//! * missing events are counted: it sends the end of every remaining stream, which contains the
//!   number of attempts;
//! * the log-client can shut down.
//!
//! If the first byte is odd, the rest are the frames of a file, with correct checksums. The only
//! check is then that nothing panics.

use crate::Seed;
use crate::input::Input;
use crate::scratch::Scratch;
use miot_log_client::testing::samples;
use miot_log_client::testing::spool::{FilePosition, Spooled};
use miot_proto::batch::Columns;
use miot_proto::event::{Event, Ext, RecordKind};
use miot_proto::wire::{
    FRAME_HEADER, GREETING, MAX_FRAME, Message, ProcessKey, ProcessLoss, Role, VERSION, frame_header,
    frame_header_of,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Limit of the spool, bytes: small, so that there are several files.
const LIMIT: u64 = 4 << 20;
/// Maximum number of steps; further ones are ignored.
const STEPS: usize = 200;
/// Size of a spool file's header, bytes.
const HEADER: usize = 72;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let dir = Scratch::new("spool");
    if mode & 1 == 0 {
        Scenario::new(dir.path(), mode & 2 != 0).run(&mut Input(bytes));
    } else {
        open_forged(dir.path(), &mut Input(bytes));
    }
}

/// Identity of the only process.
const KEY: ProcessKey = ProcessKey { boot: 1, nonce: 7, pid: 3 };

/// Expected state of a lane.
#[derive(Default)]
struct Lane {
    /// Number of its stream in this run of the log-client.
    stream: Option<u32>,
    attempts: u64,
    ended: bool,
}

/// Batch that was written.
#[derive(Clone, Copy)]
struct Batch {
    lane: u32,
    first: u64,
    last: u64,
    position: Option<FilePosition>,
}

struct Scenario<'a> {
    dir: &'a Path,
    keeps_newest: bool,
    boot: u128,
    /// Whether this run of the log-client has defined the process.
    defined: bool,
    next_stream: u32,
    lanes: Vec<Lane>,
    /// Frames of all written messages, with sequence number 0.
    written: HashSet<Vec<u8>>,
    batches: Vec<Batch>,
    /// End of the undamaged part of each file, bytes; a file without an entry is undamaged.
    undamaged: HashMap<u64, u64>,
    /// End of the last message that was ever sent.
    sent_end: FilePosition,
    /// Sent messages were removed from the end of the spool. The log-client cannot detect this and
    /// assigns sequence numbers twice.
    undetectable: bool,
    /// Last acknowledged sequence number, by session.
    through: HashMap<u64, u64>,
    /// Attempt numbers that the server has received, by lane.
    received: BTreeMap<u32, BTreeSet<u64>>,
    given_up: BTreeMap<u32, BTreeSet<u64>>,
    ends: HashSet<u32>,
    random: u64,
}

impl<'a> Scenario<'a> {
    fn new(dir: &'a Path, keeps_newest: bool) -> Scenario<'a> {
        Scenario {
            dir,
            keeps_newest,
            boot: 1,
            defined: false,
            next_stream: 0,
            lanes: Vec::new(),
            written: HashSet::new(),
            batches: Vec::new(),
            undamaged: HashMap::new(),
            sent_end: FilePosition { file: 0, end: 0 },
            undetectable: false,
            through: HashMap::new(),
            received: BTreeMap::new(),
            given_up: BTreeMap::new(),
            ends: HashSet::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn run(mut self, input: &mut Input<'_>) {
        let mut spooled = self.open();
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            match input.byte() % 16 {
                0 => self.lane(&mut spooled),
                1..=5 => {
                    let (lane, rows, text) = (input.byte(), input.byte(), input.number(2));
                    self.batch(&mut spooled, lane, u64::from(rows % 8) + 1, text as usize);
                }
                6 => self.lost_in_lane(input.byte()),
                7 => self.lane_end(&mut spooled, usize::from(input.byte())),
                8 => spooled.set_watermark(input.number(4) as i64),
                9 | 10 => self.connect(&mut spooled, input.byte()),
                11 => {
                    drop(spooled);
                    spooled = self.open();
                }
                // Killed, and then a file is damaged.
                12 | 13 => {
                    drop(spooled);
                    self.damage_file(input);
                    spooled = self.open();
                }
                14 => {
                    drop(spooled);
                    self.boot += 1;
                    spooled = self.open();
                }
                _ => self.damage_file(input),
            }
        }
        self.close(spooled);
    }

    fn open(&mut self) -> Spooled {
        let spooled = Spooled::open(self.dir, LIMIT, self.keeps_newest, self.boot);
        let spooled = spooled.unwrap_or_else(|error| panic!("the spool does not open: {error}"));
        // It discovers the same process and the same lanes again.
        self.defined = false;
        self.next_stream = spooled.recovered().next_stream;
        self.lanes.iter_mut().for_each(|lane| lane.stream = None);
        spooled
    }

    fn write(&mut self, spooled: &mut Spooled, message: Message) -> Option<FilePosition> {
        self.written.insert(message.frame());
        spooled.write(message).1
    }

    fn lane(&mut self, spooled: &mut Spooled) {
        if self.lanes.len() < 40 {
            self.lanes.push(Lane::default());
            self.stream(spooled, self.lanes.len() - 1);
        }
    }

    /// Returns the number of a lane's stream. Defines the stream first if necessary.
    fn stream(&mut self, spooled: &mut Spooled, lane: usize) -> u32 {
        if let Some(stream) = self.lanes[lane].stream {
            return stream;
        }
        if !std::mem::replace(&mut self.defined, true) {
            self.write(spooled, Message::Process { seq: 0, process: samples::process(KEY) });
        }
        let number = self.next_stream;
        self.next_stream += 1;
        self.write(spooled, Message::Stream { seq: 0, stream: samples::stream(number, KEY, lane as u32) });
        self.lanes[lane].stream = Some(number);
        number
    }

    fn batch(&mut self, spooled: &mut Spooled, lane: u8, rows: u64, text: usize) {
        let Some(lane) = usize::from(lane).checked_rem(self.lanes.len()) else { return };
        if self.lanes[lane].ended || !spooled.has_space() {
            return;
        }
        let stream = self.stream(spooled, lane);
        let first = self.lanes[lane].attempts;
        self.lanes[lane].attempts += rows;
        let after = self.next_attempt(lane);
        let columns = self.columns(lane, first..first + rows, text);
        let position = self.write(spooled, Message::Batch { seq: 0, stream, after, columns });
        self.batches.push(Batch { lane: lane as u32, first, last: first + rows - 1, position });
    }

    /// Returns the attempt number after the last record that was taken from a lane.
    fn next_attempt(&self, lane: usize) -> u64 {
        let of_lane = |batch: &&Batch| batch.lane as usize == lane;
        self.batches.iter().rfind(of_lane).map_or(0, |batch| batch.last + 1)
    }

    /// Returns encoded rows that contain their lane and attempt number, and text that cannot be
    /// compressed.
    fn columns(&mut self, lane: usize, attempts: std::ops::Range<u64>, text: usize) -> Vec<u8> {
        let mut columns = Columns::default();
        for attempt in attempts {
            let event = Event { offset: event_id(lane as u32, attempt), ..samples::read(attempt) };
            let path: Vec<u8> = (0..text.min(4000)).map(|_| self.random_byte()).collect();
            let ext = Ext { path1: &path, ..Ext::default() };
            let ext = (text > 0).then_some(&ext);
            columns.push(RecordKind::Request as u8, attempt, attempt as i64, 1, &event, ext);
        }
        samples::packed(&columns)
    }

    fn random_byte(&mut self) -> u8 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u8
    }

    fn lost_in_lane(&mut self, lane: u8) {
        let Some(lane) = usize::from(lane).checked_rem(self.lanes.len()) else { return };
        self.lanes[lane].attempts += u64::from(!self.lanes[lane].ended);
    }

    fn lane_end(&mut self, spooled: &mut Spooled, lane: usize) {
        let Some(lane) = lane.checked_rem(self.lanes.len()) else { return };
        if self.lanes[lane].ended {
            return;
        }
        let stream = self.stream(spooled, lane);
        let (attempts, after) = (self.lanes[lane].attempts, self.next_attempt(lane));
        self.write(spooled, Message::StreamEnd { seq: 0, end: samples::stream_end(stream, attempts, after) });
        self.lanes[lane].ended = true;
    }

    /// Sends everything on one connection. The server acknowledges this many eighths of it.
    fn connect(&mut self, spooled: &mut Spooled, eighths: u8) {
        let through = self.through.get(&spooled.session()).copied().unwrap_or(0);
        let Some(bytes) = spooled.connect(through) else { return };
        let last = self.check_sent(&bytes);
        if let Some(end) = self.batches.iter().rev().find_map(|batch| batch.position) {
            self.sent_end = end;
        }
        self.sent_end = self.newest().map_or(self.sent_end, |(file, end)| FilePosition { file, end });
        let through = last * u64::from(eighths.min(8)) / 8;
        if through > 0 {
            let known = self.through.entry(spooled.session()).or_default();
            *known = (*known).max(through);
            spooled.acknowledge(through);
        }
    }

    /// Checks the bytes of a connection against the protocol. Returns the last sequence number.
    fn check_sent(&mut self, mut bytes: &[u8]) -> u64 {
        let (mut streams, mut seen, mut last) = (HashMap::new(), HashSet::new(), 0);
        let mut processes = HashSet::new();
        while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
            let Ok((length, crc)) = frame_header(*header, MAX_FRAME) else { panic!("a damaged frame") };
            let (payload, rest) = rest.split_at(length);
            bytes = rest;
            let Ok(mut message) = Message::from_payload(payload, crc) else {
                panic!("the payload is not a message")
            };
            let number = take_number(&mut message);
            assert!(number == 0 || number > last, "{number} after {last}");
            last = last.max(number);
            let is_given_up = matches!(message, Message::GivenUp { .. });
            if !matches!(message, Message::Heartbeat { .. } | Message::SuspendWatermark) && !is_given_up {
                assert!(
                    self.written.contains(&message.frame()),
                    "the message was never written: {message:?}"
                );
            }
            match message {
                Message::Process { process, .. } => {
                    processes.insert(process.key);
                }
                Message::Stream { stream, .. } => {
                    assert!(processes.contains(&stream.key.process), "a stream before its process");
                    streams.insert(stream.number, stream.key.lane);
                }
                Message::Batch { stream, columns, .. } => {
                    let Some(lane) = streams.get(&stream) else { panic!("a batch before its stream") };
                    let Ok(columns) = Columns::decode(&columns) else { panic!("a batch does not decode") };
                    for (attempt, offset) in columns.attempt.iter().zip(&columns.offset) {
                        assert_eq!(*offset, event_id(*lane, *attempt), "an event of another stream");
                        assert!(seen.insert(*offset), "sent twice on one connection");
                        self.received.entry(*lane).or_default().insert(*attempt);
                    }
                }
                Message::GivenUp { stream, ranges, .. } => {
                    let Some(lane) = streams.get(&stream) else { panic!("given up before its stream") };
                    assert!(self.keeps_newest || ranges.is_empty(), "no record may be given up");
                    let attempts = self.lanes[*lane as usize].attempts;
                    for (first, last) in ranges {
                        assert!(first <= last && last < attempts, "given up but never recorded");
                        self.given_up.entry(*lane).or_default().extend(first..=last);
                    }
                }
                Message::StreamEnd { end, .. } => {
                    let Some(lane) = streams.remove(&end.stream) else { panic!("an end before its stream") };
                    self.ends.insert(lane);
                }
                _ => {}
            }
        }
        last
    }

    fn files(&self) -> Vec<(u64, PathBuf)> {
        let entries = std::fs::read_dir(self.dir).into_iter().flatten().flatten();
        let number = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".spool")?.parse().ok();
        let mut files: Vec<_> =
            entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect();
        files.sort_unstable();
        files
    }

    /// Returns number and length of the last file, bytes.
    fn newest(&self) -> Option<(u64, u64)> {
        let (file, path) = self.files().pop()?;
        Some((file, std::fs::metadata(path).ok()?.len()))
    }

    /// Damages a file.
    fn damage_file(&mut self, input: &mut Input<'_>) {
        let (mode, index, at) = (input.byte(), input.byte(), input.number(4));
        let mut files = self.files();
        let Some(index) = usize::from(index).checked_rem(files.len()) else { return };
        let is_newest = index + 1 == files.len();
        let (number, path) = files.swap_remove(index);
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let at = at % (length + 1);
        let from = match mode % 4 {
            0 => {
                assert!(file.set_len(at).is_ok());
                // An end that was not sent yet counts as not written.
                let was_sent = (number, at) < (self.sent_end.file, self.sent_end.end);
                self.undetectable |= is_newest && was_sent;
                at
            }
            1 => {
                assert!(std::fs::remove_file(&path).is_ok());
                self.undetectable |= is_newest;
                0
            }
            _ => overwrite(&file, at, length, input),
        };
        let undamaged = self.undamaged.entry(number).or_insert(u64::MAX);
        *undamaged = (*undamaged).min(from);
    }

    /// Shuts the log-client down and checks that everything undamaged has been sent.
    fn close(mut self, mut spooled: Spooled) {
        drop(spooled);
        spooled = self.open();
        let alive: Vec<u32> =
            (0..self.lanes.len()).filter(|lane| !self.lanes[*lane].ended).map(|lane| lane as u32).collect();
        for lane in &alive {
            self.lane_end(&mut spooled, *lane as usize);
        }
        if self.defined {
            self.write(
                &mut spooled,
                Message::ProcessEnd { seq: 0, key: KEY, time: 9, lost: ProcessLoss::default() },
            );
        }
        spooled.has_space();
        spooled.end();
        for _ in 0..4 {
            self.connect(&mut spooled, 8);
        }
        assert!(spooled.is_done(), "a log-client shuts down with any damage");
        if self.undetectable {
            return;
        }
        for lane in alive {
            assert!(
                self.ends.contains(&lane),
                "the end of stream {lane} is missing, and the number of its attempts"
            );
        }
        for batch in &self.batches {
            let Some(position) = batch.position else { continue };
            let undamaged =
                self.undamaged.get(&position.file).is_none_or(|undamaged| position.end <= *undamaged);
            let has = |sets: &BTreeMap<u32, BTreeSet<u64>>, attempt: u64| {
                sets.get(&batch.lane).is_some_and(|set| set.contains(&attempt))
            };
            let missing = (batch.first..=batch.last)
                .find(|attempt| !has(&self.received, *attempt) && !has(&self.given_up, *attempt));
            // With `keeps_newest`, files are rewritten, and the positions of batches are unknown.
            assert!(
                !undamaged || self.keeps_newest || missing.is_none(),
                "attempt {missing:?} of lane {} is missing, but was before all damage",
                batch.lane
            );
        }
    }
}

/// Overwrites bytes in a file, not beyond its end. Returns the position of the first one,
/// `u64::MAX` if there is none.
fn overwrite(file: &File, at: u64, length: u64, input: &mut Input<'_>) -> u64 {
    let most = (length - at).min(300) as usize;
    let kind = input.byte();
    let mut bytes = vec![0; most.min(usize::from(input.byte()) + 1)];
    if bytes.is_empty() || file.read_exact_at(&mut bytes, at).is_err() {
        return u64::MAX;
    }
    match kind % 3 {
        0 => bytes[0] ^= 1 << (kind >> 3 & 7),
        1 => bytes.fill(0),
        _ => {
            let other = input.bytes(bytes.len());
            bytes[..other.len()].copy_from_slice(other);
        }
    }
    assert!(file.write_all_at(&bytes, at).is_ok());
    at
}

/// Returns a number that identifies an event.
fn event_id(lane: u32, attempt: u64) -> u64 {
    u64::from(lane) << 32 | attempt
}

/// Returns the sequence number of a message and sets it to 0.
fn take_number(message: &mut Message) -> u64 {
    message.seq_mut().map_or(0, std::mem::take)
}

/// Opens spool files of arbitrary frames with correct checksums.
fn open_forged(dir: &Path, input: &mut Input<'_>) {
    let mut files: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut file = file_header(1);
    for _ in 0..STEPS {
        let length = input.number(2) as usize;
        if input.is_empty() {
            break;
        }
        match length {
            // Start of another file.
            0xffff => {
                let first = input.word();
                let next = files.len() as u64 + 1;
                files.insert(next, std::mem::replace(&mut file, file_header(first)));
            }
            0xfffe => file.extend_from_slice(input.bytes(100)),
            _ => {
                let payload = input.bytes(length % 2000);
                file.extend_from_slice(&frame_header_of(payload));
                file.extend_from_slice(payload);
            }
        }
    }
    files.insert(files.len() as u64 + 1, file);
    assert!(std::fs::create_dir_all(dir).is_ok());
    for (number, bytes) in files {
        assert!(std::fs::write(dir.join(format!("{number:020}.spool")), bytes).is_ok());
    }
    // The log-client may refuse to start, e.g. because of the name of another node.
    let Ok(mut spooled) = Spooled::open(dir, LIMIT, true, 1) else { return };
    let _ = spooled.connect(0);
    spooled.has_space();
    spooled.write(Message::Process { seq: 0, process: samples::process(KEY) });
    let _ = spooled.connect(1);
    spooled.end();
    let _ = spooled.connect(0);
}

/// Returns the header of a spool file, and a `Hello`.
fn file_header(first: u64) -> Vec<u8> {
    let mut header = vec![0xff; HEADER];
    header[..8].copy_from_slice(b"MIOTSPL3");
    header[8..24].copy_from_slice(&1u128.to_le_bytes());
    header[24..32].copy_from_slice(&first.to_le_bytes());
    header[32..48].fill(0x5a);
    let sum = u64::from(crc32c::crc32c(&header[..48]));
    header[48..56].copy_from_slice(&sum.to_le_bytes());
    let hello = Message::Hello {
        greeting: GREETING,
        version: VERSION,
        role: Role::Node,
        node: "fuzz".into(),
        session: 9,
    };
    hello.append_frame(&mut header);
    header
}

/// Returns runs of log-clients with each kind of damage, and forged files.
pub fn seeds() -> Vec<Seed> {
    const LANE: u8 = 0;
    const BATCH: u8 = 1;
    const CONNECT: u8 = 9;
    const KILL: u8 = 11;
    const DAMAGE: u8 = 12;
    const DAMAGE_LIVE: u8 = 15;
    let batches: Vec<u8> = (0..6u8).flat_map(|n| [BATCH, n, n, n, 0]).collect();
    let large: Vec<u8> = (0..20u8).flat_map(|n| [BATCH, n, 7, 0xff, 0xff]).collect();
    let some = [&[LANE, LANE, LANE], &batches[..], &[6, 1, CONNECT, 4]].concat();
    let damage_file = |step: u8, mode: u8, at: u32| {
        [&[step, mode, 0], &at.to_le_bytes()[..], &[8, 4], &batches[..], &[CONNECT, 8]].concat()
    };
    let mut seeds = vec![
        ("killed", [&[0], &some[..], &[KILL], &batches, &[7, 0, KILL, 14], &batches].concat()),
        ("large", [&[0], &some[..], &large, &[KILL, CONNECT, 4], &large].concat()),
        ("newest", [&[2], &some[..], &large, &large, &[KILL, CONNECT, 2], &large, &large].concat()),
    ];
    for (name, mode, at) in
        [("cut", 0, 700), ("removed", 1, 0), ("bit", 2, 300), ("zeros", 2, 500), ("head", 2, 30)]
    {
        seeds.push((name, [&[0], &some[..], &damage_file(DAMAGE, mode, at), &large].concat()));
    }
    seeds.push(("live", [&[0], &some[..], &damage_file(DAMAGE_LIVE, 2, 400), &large].concat()));
    let messages = crate::wire::messages();
    let payloads = messages.iter().flat_map(|(_, message)| {
        let frame = message.frame();
        let payload = frame[FRAME_HEADER..].to_vec();
        [(payload.len() as u16).to_le_bytes().to_vec(), payload].concat()
    });
    let payloads: Vec<u8> = payloads.collect();
    seeds.push(("forged", [&[1], &payloads[..], &[0xff, 0xff, 7, 0, 0, 0, 0, 0, 0, 0], &payloads].concat()));
    seeds
}

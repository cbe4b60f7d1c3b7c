//! The spool of a log-client that is killed, starts again, and finds its files damaged.
//!
//! The bytes are steps: a log-client writes what it has, connects, hears acknowledgements, is killed; a file is cut, gets
//! other bytes, or vanishes. Whatever was done to the files,
//!
//! * nothing goes out that was not written, or under another stream, or twice on one connection;
//! * what stands before the damage of its file, or in a file without any, goes out;
//! * what is missing is counted: the ends of all streams that are still there go out, and say how many attempts there
//!   were;
//! * the log-client can end.
//!
//! If the first byte says so the rest are the frames of a file, with checksums that fit: then nothing but panics counts.

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

/// Small files, so that there are some.
const LIMIT: u64 = 4 << 20;
/// Steps that are done.
const STEPS: usize = 200;
/// Bytes of a spool file before its first frame.
const HEADER: usize = 72;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let dir = Scratch::new("spool");
    if mode & 1 == 0 {
        Play::new(dir.path(), mode & 2 != 0).run(&mut Input(bytes));
    } else {
        forged(dir.path(), &mut Input(bytes));
    }
}

/// The one process.
const KEY: ProcessKey = ProcessKey { boot: 1, nonce: 7, pid: 3 };

/// What is known of a lane.
#[derive(Default)]
struct Lane {
    /// Its number as a stream of this log-client.
    stream: Option<u32>,
    attempts: u64,
    ended: bool,
}

/// A batch that was written.
#[derive(Clone, Copy)]
struct Batch {
    lane: u32,
    first: u64,
    last: u64,
    place: Option<FilePosition>,
}

struct Play<'a> {
    dir: &'a Path,
    keeps_newest: bool,
    boot: u128,
    /// Whether the process is defined by this log-client.
    defined: bool,
    next_stream: u32,
    lanes: Vec<Lane>,
    /// As bytes of their frames, with number 0.
    written: HashSet<Vec<u8>>,
    batches: Vec<Batch>,
    /// Up to which byte a file is as it was written; no entry: all of it.
    sound: HashMap<u64, u64>,
    /// Where the last message that ever was sent ends.
    sent_end: FilePosition,
    /// Something was cut off that had been sent, which no one can notice: numbers are given twice.
    unnoticed: bool,
    /// What the server has acknowledged, by session.
    through: HashMap<u64, u64>,
    /// Attempts that the server has, by lane.
    has: BTreeMap<u32, BTreeSet<u64>>,
    given_up: BTreeMap<u32, BTreeSet<u64>>,
    ends: HashSet<u32>,
    chance: u64,
}

impl<'a> Play<'a> {
    fn new(dir: &'a Path, keeps_newest: bool) -> Play<'a> {
        Play {
            dir,
            keeps_newest,
            boot: 1,
            defined: false,
            next_stream: 0,
            lanes: Vec::new(),
            written: HashSet::new(),
            batches: Vec::new(),
            sound: HashMap::new(),
            sent_end: FilePosition { file: 0, end: 0 },
            unnoticed: false,
            through: HashMap::new(),
            has: BTreeMap::new(),
            given_up: BTreeMap::new(),
            ends: HashSet::new(),
            chance: 0x9e37_79b9_7f4a_7c15,
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
                // Killed, and then something happens to the files.
                12 | 13 => {
                    drop(spooled);
                    self.harm(input);
                    spooled = self.open();
                }
                14 => {
                    drop(spooled);
                    self.boot += 1;
                    spooled = self.open();
                }
                _ => self.harm(input),
            }
        }
        self.close(spooled);
    }

    fn open(&mut self) -> Spooled {
        let spooled = Spooled::open(self.dir, LIMIT, self.keeps_newest, self.boot);
        let spooled = spooled.unwrap_or_else(|error| panic!("whatever is in the files: {error}"));
        // It finds the same process and the same lanes again.
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

    /// The number of a lane's stream, which is defined if it was not.
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
        let after = self.taken(lane);
        let columns = self.columns(lane, first..first + rows, text);
        let place = self.write(spooled, Message::Batch { seq: 0, stream, after, columns });
        self.batches.push(Batch { lane: lane as u32, first, last: first + rows - 1, place });
    }

    /// The attempt number that follows the last record taken from a lane.
    fn taken(&self, lane: usize) -> u64 {
        let of_lane = |batch: &&Batch| batch.lane as usize == lane;
        self.batches.iter().rfind(of_lane).map_or(0, |batch| batch.last + 1)
    }

    /// Rows that say whose they are, and text that cannot be packed.
    fn columns(&mut self, lane: usize, attempts: std::ops::Range<u64>, text: usize) -> Vec<u8> {
        let mut columns = Columns::default();
        for attempt in attempts {
            let event = Event { offset: mark_of(lane as u32, attempt), ..samples::read(attempt) };
            let path: Vec<u8> = (0..text.min(4000)).map(|_| self.draw()).collect();
            let ext = Ext { path1: &path, ..Ext::default() };
            let ext = (text > 0).then_some(&ext);
            columns.push(RecordKind::Request as u8, attempt, attempt as i64, 1, &event, ext);
        }
        samples::packed(&columns)
    }

    fn draw(&mut self) -> u8 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance >> 32) as u8
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
        let (attempts, after) = (self.lanes[lane].attempts, self.taken(lane));
        self.write(spooled, Message::StreamEnd { seq: 0, end: samples::stream_end(stream, attempts, after) });
        self.lanes[lane].ended = true;
    }

    /// A connection takes everything; the server acknowledges so many eighths of it.
    fn connect(&mut self, spooled: &mut Spooled, eighths: u8) {
        let through = self.through.get(&spooled.session()).copied().unwrap_or(0);
        let Some(bytes) = spooled.connect(through) else { return };
        let last = self.judge(&bytes);
        if let Some(end) = self.batches.iter().rev().find_map(|batch| batch.place) {
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

    /// What a connection was sent, by the rules of the protocol. The last number.
    fn judge(&mut self, mut bytes: &[u8]) -> u64 {
        let (mut streams, mut here, mut last) = (HashMap::new(), HashSet::new(), 0);
        let mut processes = HashSet::new();
        while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
            let Ok((length, crc)) = frame_header(*header, MAX_FRAME) else { panic!("a damaged frame") };
            let (payload, rest) = rest.split_at(length);
            bytes = rest;
            let Ok(mut message) = Message::from_payload(payload, crc) else { panic!("no message") };
            let number = take_number(&mut message);
            assert!(number == 0 || number > last, "{number} after {last}");
            last = last.max(number);
            let is_given_up = matches!(message, Message::GivenUp { .. });
            if !matches!(message, Message::Heartbeat { .. } | Message::SuspendWatermark) && !is_given_up {
                assert!(self.written.contains(&message.frame()), "invented: {message:?}");
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
                    let Ok(columns) = Columns::decode(&columns) else { panic!("a batch as it was") };
                    for (attempt, offset) in columns.attempt.iter().zip(&columns.offset) {
                        assert_eq!(*offset, mark_of(*lane, *attempt), "an event of another stream");
                        assert!(here.insert(*offset), "twice on one connection");
                        self.has.entry(*lane).or_default().insert(*attempt);
                    }
                }
                Message::GivenUp { stream, ranges, .. } => {
                    let Some(lane) = streams.get(&stream) else { panic!("given up before its stream") };
                    assert!(self.keeps_newest || ranges.is_empty(), "nothing is given up");
                    let attempts = self.lanes[*lane as usize].attempts;
                    for (first, last) in ranges {
                        assert!(first <= last && last < attempts, "given up and never made");
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

    /// The file that is or was written last, and its length.
    fn newest(&self) -> Option<(u64, u64)> {
        let (file, path) = self.files().pop()?;
        Some((file, std::fs::metadata(path).ok()?.len()))
    }

    /// Something happens to a file.
    fn harm(&mut self, input: &mut Input<'_>) {
        let (how, which, at) = (input.byte(), input.byte(), input.number(4));
        let mut files = self.files();
        let Some(which) = usize::from(which).checked_rem(files.len()) else { return };
        let is_newest = which + 1 == files.len();
        let (number, path) = files.swap_remove(which);
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let at = at % (length + 1);
        let from = match how % 4 {
            0 => {
                assert!(file.set_len(at).is_ok());
                // Cut off before it was sent it is the end of what was written.
                let was_sent = (number, at) < (self.sent_end.file, self.sent_end.end);
                self.unnoticed |= is_newest && was_sent;
                at
            }
            1 => {
                assert!(std::fs::remove_file(&path).is_ok());
                self.unnoticed |= is_newest;
                0
            }
            _ => overwrite(&file, at, length, input),
        };
        let sound = self.sound.entry(number).or_insert(u64::MAX);
        *sound = (*sound).min(from);
    }

    /// The log-client ends in good order, and all that can be there is there.
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
        assert!(spooled.is_done(), "a log-client can end whatever was damaged");
        if self.unnoticed {
            return;
        }
        for lane in alive {
            assert!(self.ends.contains(&lane), "the end of stream {lane} is missing, and with it the count");
        }
        for batch in &self.batches {
            let Some(place) = batch.place else { continue };
            let sound = self.sound.get(&place.file).is_none_or(|sound| place.end <= *sound);
            let has = |sets: &BTreeMap<u32, BTreeSet<u64>>, attempt: u64| {
                sets.get(&batch.lane).is_some_and(|set| set.contains(&attempt))
            };
            let missing = (batch.first..=batch.last)
                .find(|attempt| !has(&self.has, *attempt) && !has(&self.given_up, *attempt));
            // Where files are written anew nobody here knows what stood where.
            assert!(
                !sound || self.keeps_newest || missing.is_none(),
                "attempt {missing:?} of lane {} was before all damage",
                batch.lane
            );
        }
    }
}

/// Other bytes in a file, not beyond its end. From where.
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

/// Says whose an event is.
fn mark_of(lane: u32, attempt: u64) -> u64 {
    u64::from(lane) << 32 | attempt
}

/// The number of a message, which is 0 after that.
fn take_number(message: &mut Message) -> u64 {
    message.seq_mut().map_or(0, std::mem::take)
}

/// A file of frames that nobody wrote, with checksums that fit.
fn forged(dir: &Path, input: &mut Input<'_>) {
    let mut files: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut file = head(1);
    for _ in 0..STEPS {
        let length = input.number(2) as usize;
        if input.is_empty() {
            break;
        }
        match length {
            // Another file.
            0xffff => {
                let first = input.word();
                let next = files.len() as u64 + 1;
                files.insert(next, std::mem::replace(&mut file, head(first)));
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
    // Another node's name, say: it will not start.
    let Ok(mut spooled) = Spooled::open(dir, LIMIT, true, 1) else { return };
    let _ = spooled.connect(0);
    spooled.has_space();
    spooled.write(Message::Process { seq: 0, process: samples::process(KEY) });
    let _ = spooled.connect(1);
    spooled.end();
    let _ = spooled.connect(0);
}

/// The beginning of a spool file, and a greeting.
fn head(first: u64) -> Vec<u8> {
    let mut head = vec![0xff; HEADER];
    head[..8].copy_from_slice(b"MIOTSPL3");
    head[8..24].copy_from_slice(&1u128.to_le_bytes());
    head[24..32].copy_from_slice(&first.to_le_bytes());
    head[32..48].fill(0x5a);
    let sum = u64::from(crc32c::crc32c(&head[..48]));
    head[48..56].copy_from_slice(&sum.to_le_bytes());
    let hello = Message::Hello {
        greeting: GREETING,
        version: VERSION,
        role: Role::Node,
        node: "fuzz".into(),
        session: 9,
    };
    hello.append_frame(&mut head);
    head
}

/// Lives of log-clients, with each kind of damage, and forged files.
pub fn seeds() -> Vec<Seed> {
    const LANE: u8 = 0;
    const BATCH: u8 = 1;
    const CONNECT: u8 = 9;
    const KILL: u8 = 11;
    const HARM: u8 = 12;
    const HARM_LIVE: u8 = 15;
    let batches: Vec<u8> = (0..6u8).flat_map(|n| [BATCH, n, n, n, 0]).collect();
    let large: Vec<u8> = (0..20u8).flat_map(|n| [BATCH, n, 7, 0xff, 0xff]).collect();
    let some = [&[LANE, LANE, LANE], &batches[..], &[6, 1, CONNECT, 4]].concat();
    let harm = |step: u8, how: u8, at: u32| {
        [&[step, how, 0], &at.to_le_bytes()[..], &[8, 4], &batches[..], &[CONNECT, 8]].concat()
    };
    let mut seeds = vec![
        ("killed", [&[0], &some[..], &[KILL], &batches, &[7, 0, KILL, 14], &batches].concat()),
        ("large", [&[0], &some[..], &large, &[KILL, CONNECT, 4], &large].concat()),
        ("newest", [&[2], &some[..], &large, &large, &[KILL, CONNECT, 2], &large, &large].concat()),
    ];
    for (name, how, at) in
        [("cut", 0, 700), ("removed", 1, 0), ("bit", 2, 300), ("zeros", 2, 500), ("head", 2, 30)]
    {
        seeds.push((name, [&[0], &some[..], &harm(HARM, how, at), &large].concat()));
    }
    seeds.push(("live", [&[0], &some[..], &harm(HARM_LIVE, 2, 400), &large].concat()));
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

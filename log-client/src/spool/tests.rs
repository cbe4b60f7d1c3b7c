//! What is found again, whatever happened in between.

use super::format::{self, HEADER};
use super::{Heritage, Reader, Spool, Writer, condense};
use crate::config::SpoolFull;
use crate::error::Error;
use miot_proto::batch::Columns;
use miot_proto::event::{Event, Ext};
use miot_proto::op;
use miot_proto::wire::{
    FRAME_HEADER, MAX_FRAME, Message, Process, ProcessKey, ProcessLoss, Stream, StreamEnd, StreamKey,
    frame_header,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);
const KEY: ProcessKey = ProcessKey { boot: 1, nonce: 2, pid: 3 };
const BOOT: u128 = 1;

fn process() -> Message {
    let text = Vec::new;
    let (exe, cmdline, job, cwd) = (text(), text(), text(), text());
    let process = Process { key: KEY, ppid: 1, uid: 0, started: 0, rank: None, exe, cmdline, job, cwd };
    Message::Process { seq: 0, process }
}

fn stream(number: u32) -> Message {
    stream_of(number, number)
}

fn stream_of(number: u32, lane: u32) -> Message {
    let key = StreamKey { process: KEY, lane, incarnation: 1 };
    Message::Stream { seq: 0, stream: Stream { number, key, tid: 3, comm: Vec::new() } }
}

fn batch(bytes: usize) -> Message {
    Message::Batch { seq: 0, stream: 0, after: 0, columns: vec![7; bytes] }
}

fn batch_of(stream: u32, bytes: usize) -> Message {
    Message::Batch { seq: 0, stream, after: 0, columns: vec![7; bytes] }
}

fn stream_end(stream: u32) -> Message {
    let end = StreamEnd { stream, attempts: 0, after: 0, lost_full: 1, lost_nested: 2, filtered: 0, time: 0 };
    Message::StreamEnd { seq: 0, end }
}

fn process_end() -> Message {
    Message::ProcessEnd { seq: 0, key: KEY, time: 0, lost: ProcessLoss::default() }
}

fn write(writer: &mut Writer, messages: impl IntoIterator<Item = Message>) {
    for mut message in messages {
        writer.write(&mut message);
    }
}

fn open_on(dir: &Path, boot: u128) -> (Writer, Reader, Heritage) {
    let start = Instant::now();
    let (spool, heritage) = loop {
        match Spool::open(dir, MAX_FRAME as u64, SpoolFull::KeepOldest, "test", boot) {
            // A program that another test of this process is just starting has the lock until it runs.
            Err(Error::Running { .. }) if start.elapsed() < WATCHDOG => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let spool = Arc::new(spool);
    (Writer::new(Arc::clone(&spool), heritage.promised), Reader::new(spool), heritage)
}

fn open(dir: &Path) -> (Writer, Reader, Heritage) {
    open_on(dir, BOOT)
}

/// What messages say, in words.
pub(crate) fn names(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
        let (length, crc) = frame_header(*header, MAX_FRAME).unwrap();
        names.push(match Message::from_payload(&rest[..length], crc).unwrap() {
            Message::Process { seq, .. } => format!("process {seq}"),
            Message::Stream { seq, stream } => format!("stream {seq} is {}", stream.number),
            Message::Batch { seq, stream, .. } => format!("batch {seq} of {stream}"),
            Message::StreamEnd { seq, end } => format!("end {seq} of {}", end.stream),
            Message::ProcessEnd { seq, .. } => format!("gone {seq}"),
            Message::Heartbeat { watermark } => format!("all before {watermark}"),
            other => format!("{other:?}"),
        });
        bytes = &rest[length..];
    }
    names
}

/// What a connection is sent on which the server has everything up to `through`.
fn sent(reader: &mut Reader, through: u64) -> Vec<String> {
    let mut bytes = Vec::new();
    reader.restart(through, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    names(&bytes)
}

/// Files of the spool, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// A spool of one file with all kinds of messages, as a log-client leaves it that is killed: the file, and the
/// end of each message in it.
fn left_behind(dir: &Path) -> (PathBuf, Vec<u64>) {
    let (mut writer, reader, heritage) = open(dir);
    assert_eq!((heritage.messages, heritage.sound), (0, true));
    let mut ends = Vec::new();
    for message in [process(), stream(0), stream(1), batch(100), stream_end(0), batch(3)] {
        write(&mut writer, [message]);
        ends.push(reader.spool().state().parts.back().unwrap().end);
    }
    let [file] = &files(dir)[..] else { panic!("one file") };
    (file.clone(), ends)
}

#[test]
fn a_successor_goes_on_with_session_numbers_and_promise() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("spool");
    let (mut writer, reader, _) = open(&dir);
    write(&mut writer, [process(), stream(0), stream(7), batch(10)]);
    writer.promise(50);
    writer.promise(60);
    reader.spool().acknowledge(3);
    let session = reader.spool().session();
    drop((writer, reader));

    let (mut writer, mut reader, heritage) = open(&dir);
    let expected = Heritage { messages: 4, sound: true, next_stream: 8, promised: Some(60) };
    assert_eq!((heritage, reader.spool().session()), (expected, session));
    // It finds the same processes and lanes.
    write(&mut writer, [process(), stream(8)]);
    let again = ["process 0", "stream 0 is 0", "stream 0 is 7", "batch 4 of 0", "all before 50"];
    assert_eq!(sent(&mut reader, 3), [&again[..], &["process 5", "stream 6 is 8"]].concat());
    // Nothing refers to the numbers of the one before any more.
    assert_eq!(sent(&mut reader, 4), ["process 5", "stream 6 is 8"]);
    reader.spool().acknowledge(6);
    writer.end();
    assert!(reader.spool().is_done());
    reader.spool().clear();
    assert_eq!(files(&dir), [""; 0].map(PathBuf::from));
    drop((writer, reader));
    let (_, reader, heritage) = open(&dir);
    assert_eq!((heritage.messages, heritage.promised), (0, None));
    assert_ne!(reader.spool().session(), session);
}

#[test]
fn a_torn_end_is_cut_off_at_whichever_byte() {
    let first = tempfile::tempdir().unwrap();
    let (file, ends) = left_behind(&first.path().join("spool"));
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len() as u64, *ends.last().unwrap(), "claimed space does not count");
    for length in 0..=bytes.len() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file.file_name().unwrap()), &bytes[..length]).unwrap();
        let (mut writer, mut reader, heritage) = open(dir.path());
        let whole = ends.iter().filter(|end| **end <= length as u64).count();
        assert_eq!((heritage.messages, heritage.sound), (whole as u64, true), "{length}");
        // Numbers go on after what is whole.
        write(&mut writer, [process_end()]);
        assert_eq!(sent(&mut reader, 0).last().unwrap(), &format!("gone {}", whole + 1), "{length}");
    }
}

/// What a connection is sent, judged by the rules of the protocol: numbered messages as they were written, in order.
fn judged(reader: &mut Reader, through: u64, written: &[Message]) -> Vec<u64> {
    let mut bytes = Vec::new();
    reader.restart(through, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    let (mut rest, mut numbers, mut streams, mut processes) = (&bytes[..], vec![], vec![], vec![]);
    while let Some((header, after)) = rest.split_first_chunk::<FRAME_HEADER>() {
        let (length, crc) = frame_header(*header, MAX_FRAME).unwrap();
        let message = Message::from_payload(&after[..length], crc).unwrap();
        rest = &after[length..];
        match &message {
            Message::Process { process, .. } => processes.push(process.key),
            Message::Stream { stream, .. } => {
                assert!(processes.contains(&stream.key.process), "{message:?}");
                streams.push(stream.number);
            }
            Message::Batch { stream, .. } => assert!(streams.contains(stream), "{message:?}"),
            Message::StreamEnd { end, .. } => assert!(streams.contains(&end.stream), "{message:?}"),
            _ => {}
        }
        if let Some(original) = message.seq().filter(|seq| *seq > 0).map(|seq| &written[seq as usize - 1]) {
            assert_eq!(&message, original);
            numbers.extend(message.seq());
        }
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    numbers
}

/// Every byte of a spool is flipped in turn: what can be lost is batches of one stretch, and nothing else.
#[test]
fn damage_anywhere_costs_batches_near_it_and_the_session() {
    let first = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(&first.path().join("spool"));
    let session = reader.spool().session();
    let mut written = vec![process(), stream(0), stream(1)];
    written.extend((0..6).map(|_| batch(70)));
    written.extend([
        stream_end(0),
        stream(2),
        batch_of(1, 90),
        batch_of(2, 200),
        stream_end(2),
        stream_end(1),
    ]);
    written.extend([stream(3), batch_of(3, 300), batch_of(3, 10), stream_end(3), process_end()]);
    for message in &mut written {
        writer.write(message);
    }
    writer.end();
    drop((writer, reader));
    let [file] = &files(&first.path().join("spool"))[..] else { panic!("one file") };
    let bytes = std::fs::read(file).unwrap();
    let begins = HEADER
        + FRAME_HEADER as u64
        + u64::from(u32::from_le_bytes(*bytes[HEADER as usize..].first_chunk().unwrap()));
    let all: Vec<u64> = (1..=written.len() as u64).collect();
    for at in 0..bytes.len() {
        let dir = tempfile::tempdir().unwrap();
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        std::fs::write(dir.path().join(file.file_name().unwrap()), &damaged).unwrap();
        let (mut writer, mut reader, heritage) = open(dir.path());
        if (format::PROMISE..HEADER).contains(&(at as u64)) {
            assert_eq!((heritage.messages, heritage.promised), (all.len() as u64, None));
            continue;
        }
        assert!(heritage.sound || reader.spool().session() != session, "{at}");
        assert!(!heritage.sound || (at as u64) < begins, "{at}: damage is never taken for a torn end");
        for through in [0, 7] {
            let got = judged(&mut reader, through, &written);
            if (at as u64) < begins {
                assert_eq!(got, [0; 0], "nothing is understood without the head");
                break;
            }
            let lost: Vec<u64> =
                all.iter().copied().filter(|number| *number > through && !got.contains(number)).collect();
            let is_batch = |number: &u64| matches!(written[*number as usize - 1], Message::Batch { .. });
            assert!(lost.iter().all(is_batch), "{at}: {lost:?}");
            assert!(lost.len() <= 5, "{at}: {lost:?}");
        }
        // It goes on with numbers that were never given.
        let next = reader.spool().last() + 1;
        write(&mut writer, [process()]);
        assert_eq!(sent(&mut reader, 0).last().unwrap(), &format!("process {next}"), "{at}");
        reader.spool().acknowledge(next);
        writer.end();
        assert!(reader.spool().is_done());
    }
}

#[test]
fn a_server_that_has_more_than_the_spool_gets_a_new_session() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0)]);
    let session = reader.spool().session();
    reader.spool().renew_session().unwrap();
    let renewed = reader.spool().session();
    write(&mut writer, [batch(1)]);
    assert_ne!(renewed, session);
    assert_eq!(sent(&mut reader, 0), ["process 1", "stream 2 is 0", "batch 3 of 0"]);
    drop((writer, reader));
    assert_eq!(open(dir.path()).1.spool().session(), renewed);
}

#[test]
fn on_another_boot_everything_is_sent_in_a_new_session() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0), batch(1)]);
    let session = reader.spool().session();
    drop((writer, reader));
    let (_writer, mut reader, heritage) = open_on(dir.path(), BOOT + 1);
    assert_eq!((heritage.messages, heritage.sound), (3, true));
    assert_ne!(reader.spool().session(), session);
    assert_eq!(sent(&mut reader, 0), ["process 1", "stream 2 is 0", "batch 3 of 0"]);
}

#[test]
fn many_files_are_read_as_one_and_removed_as_they_are_acknowledged() {
    const BATCH: usize = 300_000;
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0), stream(1), stream_end(1)]);
    let mut count = 4;
    while writer.has_room() {
        write(&mut writer, [batch(BATCH)]);
        writer.make_room();
        count += 1;
    }
    let held = |dir: &Path| files(dir).iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    let limit = MAX_FRAME as u64;
    assert!((limit * 3 / 4..=limit).contains(&held(dir.path())), "the bound is kept");
    assert!(files(dir.path()).len() > 10);
    let all = sent(&mut reader, 0);
    let expected =
        ["process 1", "stream 2 is 0", "stream 3 is 1", "end 4 of 1"].map(String::from).into_iter();
    let batches = (5..=count).map(|number| format!("batch {number} of 0"));
    assert_eq!(all, expected.chain(batches.clone()).collect::<Vec<_>>());
    // A connection in the middle begins with what is in force there.
    let half = count / 2;
    let rest: Vec<_> = batches.skip(half as usize - 4).collect();
    let definitions = ["process 0", "stream 0 is 0"].map(String::from).to_vec();
    assert_eq!(sent(&mut reader, half), [definitions, rest].concat());
    assert!(held(dir.path()) < limit * 3 / 4 && writer.has_room());
    // The same for the next log-client, which does not know what was acknowledged.
    drop((writer, reader));
    let (writer, mut reader, heritage) = open(dir.path());
    assert!(heritage.sound && (half..count).contains(&(count - heritage.messages + 8)), "{heritage:?}");
    assert_eq!(sent(&mut reader, half)[2..], all[half as usize..]);
    reader.spool().acknowledge(count);
    assert_eq!(files(dir.path()).len(), 1, "but for the one that is written");
    drop(writer);
}

#[test]
fn a_file_that_cannot_be_read_costs_its_messages_and_no_more() {
    for found in ["while it is read", "on a new connection", "by the next log-client"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, mut reader, _) = open(dir.path());
        write(&mut writer, [process(), stream(0)]);
        let mut count = 2;
        while files(dir.path()).len() < 4 {
            write(&mut writer, [batch(300_000)]);
            count += 1;
        }
        let second = files(dir.path())[1].clone();
        let parts: Vec<_> = reader.spool().state().parts.iter().copied().collect();
        let file = File::options().write(true).open(&second).unwrap();
        // In its second message.
        file.write_all_at(b"damage", 400_000).unwrap();
        let whole = parts[1].first;
        if found == "by the next log-client" {
            drop((writer, reader));
            (writer, reader, _) = open(dir.path());
        } else if found == "while it is read" {
            reader.restart(0, &mut Vec::new());
        }
        let mut got = Vec::new();
        if found == "while it is read" {
            let mut bytes = Vec::new();
            reader.take(&mut bytes, usize::MAX);
            got.extend(names(&bytes));
        } else {
            got.extend(sent(&mut reader, 0));
        }
        // Reading goes on at the mark after the damage.
        let batches = (3..=whole).chain(whole + 2..=count).map(|number| format!("batch {number} of 0"));
        let mut expected: Vec<String> = vec!["process 1".into(), "stream 2 is 0".into()];
        expected.extend(batches);
        assert_eq!(got, expected, "{found}");
        reader.spool().acknowledge(count);
        writer.end();
        assert!(reader.spool().is_done(), "{found}");
    }
}

#[test]
fn what_is_left_out_at_the_end_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0), batch(1000)]);
    let file = File::options().write(true).open(&files(dir.path())[0]).unwrap();
    file.write_all_at(b"damage", reader.spool().state().parts[0].end - 500).unwrap();
    assert_eq!(sent(&mut reader, 0), ["process 1", "stream 2 is 0"]);
    reader.spool().acknowledge(2);
    writer.end();
    let mut nothing = Vec::new();
    reader.take(&mut nothing, usize::MAX);
    assert!(nothing.is_empty() && reader.spool().is_done());
}

#[test]
fn a_spool_belongs_to_one_log_client_and_one_node() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(dir.path());
    let again = Spool::open(dir.path(), MAX_FRAME as u64, SpoolFull::KeepOldest, "test", BOOT).map(|_| ());
    assert!(matches!(again, Err(Error::Running { pid: None, .. })), "{again:?}");
    write(&mut writer, [process()]);
    drop((writer, reader));
    let other = Spool::open(dir.path(), MAX_FRAME as u64, SpoolFull::KeepOldest, "other", BOOT)
        .map(|_| ())
        .unwrap_err();
    assert!(other.to_string().contains("`test`"), "{other}");
    assert_eq!(open(dir.path()).2.messages, 1, "nothing was removed");
}

/// A file system of a few megabytes.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: &str) -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(dir.path());
        mount.status().is_ok_and(|status| status.success()).then_some(Small(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_is_noticed_before_a_batch_and_what_cannot_be_written_waits() {
    let Some(small) = Small::mount("8m") else {
        eprintln!("SKIPPED: no right to mount a small file system here");
        return;
    };
    let dir = small.0.path().join("spool");
    let (mut writer, mut reader, _) = open(&dir);
    write(&mut writer, [process(), stream(0)]);
    let mut count = 2;
    while writer.has_room() {
        write(&mut writer, [batch(500_000)]);
        writer.make_room();
        count += 1;
    }
    assert!(count > 5 && reader.spool().state().unwritten == 0, "every batch there was room for was written");
    // Somebody else takes the rest, too.
    let hog = small.0.path().join("hog");
    let _ = std::fs::write(&hog, vec![1; 10 << 20]);
    write(&mut writer, (0..4).map(|_| batch(300_000)).chain([stream_end(0), process_end()]));
    writer.promise(77);
    assert!(reader.spool().state().unwritten > 0);
    let before = sent(&mut reader, 0);
    assert!(before.len() < count + 6 && !before.iter().any(|name| name.contains("before")), "{before:?}");
    std::fs::remove_file(&hog).unwrap();
    reader.spool().acknowledge(count as u64);
    writer.make_room();
    writer.promise(78);
    assert_eq!(reader.spool().state().unwritten, 0);
    let ends = [format!("end {} of 0", count + 5), format!("gone {}", count + 6), "all before 78".into()];
    assert_eq!(sent(&mut reader, 0)[..].last_chunk().unwrap(), &ends);
    assert!(writer.has_room());
    drop((writer, reader));
    assert!(open(&dir).2.sound);
}

/// Lanes and spool share a file system by default.
#[test]
fn a_spool_goes_on_where_others_take_all_the_space_it_leaves() {
    let Some(small) = Small::mount("4m") else {
        eprintln!("SKIPPED: no right to mount a small file system here");
        return;
    };
    let dir = small.0.path().join("spool");
    let (mut writer, mut reader, _) = open(&dir);
    let _ = std::fs::write(small.0.path().join("hog"), vec![1; 4 << 20]);
    write(&mut writer, [process(), stream(0)]);
    for round in 0..20 {
        assert!(writer.has_room(), "in round {round}");
        while writer.has_room() {
            write(&mut writer, [batch(500_000)]);
        }
        let last = reader.spool().last();
        // Now and then a connection is lost: what is in force is defined on the next one.
        if round % 3 == 0 {
            assert!(sent(&mut reader, 0).iter().any(|name| name.starts_with("stream")));
        }
        reader.spool().acknowledge(last);
        writer.make_room();
        reader.take(&mut Vec::new(), usize::MAX);
        writer.make_room();
    }
    assert_eq!(reader.spool().state().unwritten, 0);
}

/// What a log-server knows: for each stream the next attempt number, those that came, and those given up.
#[derive(Default)]
struct Server {
    next: HashMap<u32, u64>,
    came: HashMap<u32, BTreeSet<u64>>,
    lost: HashMap<u32, BTreeSet<u64>>,
    ended: HashMap<u32, u64>,
    gone: bool,
    through: u64,
}

impl Server {
    /// As the log-server's merge takes them, at once durable.
    fn take(&mut self, mut bytes: &[u8], known: &mut HashMap<u32, u32>) {
        while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
            let (length, crc) = frame_header(*header, MAX_FRAME).unwrap();
            let message = Message::from_payload(&rest[..length], crc).unwrap();
            bytes = &rest[length..];
            self.through = self.through.max(message.seq().unwrap_or(0));
            match message {
                Message::Stream { stream, .. } => _ = known.insert(stream.number, stream.key.lane),
                Message::Batch { stream, after, columns, .. } => {
                    let stream = known[&stream];
                    let columns = Columns::decode(&columns).unwrap();
                    let next = self.next.entry(stream).or_default();
                    assert!(after <= *next, "{stream}: {after} after {next}");
                    for attempt in columns.attempt.into_iter().filter(|attempt| attempt >= next) {
                        assert!(self.came.entry(stream).or_default().insert(attempt));
                    }
                    *next = self
                        .came
                        .get(&stream)
                        .and_then(|came| came.last())
                        .map_or(*next, |last| last + 1)
                        .max(*next);
                }
                Message::GivenUp { stream, after, ranges, .. } => {
                    let stream = known[&stream];
                    assert!(ranges.is_sorted_by(|a, b| a.1 < b.0));
                    let next = self.next.entry(stream).or_default();
                    assert!(after <= *next, "{stream}: {after} after {next}");
                    for (first, last) in ranges {
                        self.lost.entry(stream).or_default().extend(first.max(*next)..=last);
                        *next = last.saturating_add(1).max(*next);
                    }
                }
                Message::StreamEnd { end, .. } => {
                    let stream = known[&end.stream];
                    assert_eq!(self.next.get(&stream).copied().unwrap_or(0), end.after);
                    self.ended.insert(stream, end.attempts);
                }
                Message::ProcessEnd { .. } => self.gone = true,
                _ => {}
            }
        }
    }
}

/// Random steps: streams come, record, lose some in their lanes and end; a connection sends some, is lost, or its
/// end acknowledges; the oldest is given up, over and over; log-clients are killed, also in the middle of giving up. In the
/// end each attempt came, or was given up, or was lost in its lane.
#[test]
fn what_is_given_up_is_told_exactly() {
    let seed: u64 = std::env::var("MIOT_SEED").map_or(7, |seed| seed.parse().unwrap());
    for round in 0..60u64 {
        let mut random = StdRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(round) | 1);
        eprintln!("MIOT_SEED={seed}, round {round}");
        given_up_at_random(&mut random);
    }
}

/// Xorshift (Marsaglia, 2003).
struct StdRandom(u64);

impl StdRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn given_up_at_random(random: &mut StdRandom) {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    let mut server = Server::default();
    let mut known = HashMap::new();
    // Next attempt number, numbers recorded.
    let mut streams: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut open_streams: Vec<u32> = Vec::new();
    // Their numbers in this log-client's life.
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    let mut next_number = 0;
    write(&mut writer, [process()]);
    for _ in 0..random.below(150) {
        match random.below(14) {
            0 | 1 => {
                let lane = streams.len() as u32;
                write(&mut writer, [stream_of(next_number, lane)]);
                numbers.insert(lane, next_number);
                next_number += 1;
                streams.insert(lane, (0, 0));
                open_streams.push(lane);
            }
            2..=6 if !open_streams.is_empty() => {
                let number = open_streams[random.below(open_streams.len() as u64) as usize];
                let (next, count) = streams.get_mut(&number).unwrap();
                let after = *next;
                let mut columns = Columns::default();
                for _ in 0..=random.below(5) {
                    // Some are lost in the lane.
                    *next += if random.below(4) == 0 { random.below(3) } else { 0 };
                    push(&mut columns, *next, None);
                    *next += 1;
                    *count += 1;
                }
                let (mut plain, mut encoded) = (Vec::new(), Vec::new());
                columns.encode(&mut plain, &mut encoded);
                write(
                    &mut writer,
                    [Message::Batch { seq: 0, stream: numbers[&number], after, columns: encoded }],
                );
            }
            7 if !open_streams.is_empty() => {
                let number = open_streams.swap_remove(random.below(open_streams.len() as u64) as usize);
                let after = streams[&number].0;
                let end = StreamEnd {
                    stream: numbers[&number],
                    attempts: after + 2,
                    after,
                    lost_full: 0,
                    lost_nested: 0,
                    filtered: 0,
                    time: 0,
                };
                write(&mut writer, [Message::StreamEnd { seq: 0, end }]);
            }
            8 | 9 => {
                // Some is sent; it arrives, or the connection is lost before.
                let mut bytes = Vec::new();
                if random.below(3) == 0 || known.is_empty() {
                    known.clear();
                    reader.restart(server.through, &mut bytes);
                }
                reader.take(&mut bytes, random.below(2000) as usize);
                if random.below(4) == 0 {
                    known.clear();
                } else {
                    server.take(&bytes, &mut known);
                }
            }
            10 => reader.spool().acknowledge(server.through),
            11 => {
                // Another file from the next message on.
                reader.spool().roll.store(true, Relaxed);
            }
            12 => {
                let oldest = files(dir.path())[0].clone();
                let bytes = std::fs::read(&oldest).unwrap();
                let was_condensed = reader.spool().state().parts[0].condensed;
                let done = reader.spool().condense().unwrap();
                if done && random.below(3) == 0 {
                    // Killed before the old file was removed, or while the next one was made.
                    let through = server.through;
                    drop((writer, reader));
                    if was_condensed {
                        std::fs::write(&oldest, &bytes).unwrap();
                    }
                    std::fs::write(dir.path().join(condense::UNFINISHED), &bytes[..bytes.len() / 2]).unwrap();
                    let heritage;
                    (writer, reader, heritage) = open(dir.path());
                    assert!(heritage.sound);
                    known.clear();
                    reader.restart(through, &mut Vec::new());
                    // Its successor finds the same process and lanes.
                    next_number = next_number.max(heritage.next_stream);
                    write(&mut writer, [process()]);
                    for lane in &open_streams {
                        write(&mut writer, [stream_of(next_number, *lane)]);
                        numbers.insert(*lane, next_number);
                        next_number += 1;
                    }
                }
            }
            _ => {}
        }
    }
    // What is open stays so: its next log-client goes on.
    write(&mut writer, [process_end()]);
    let mut bytes = Vec::new();
    reader.restart(server.through, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    server.take(&bytes, &mut HashMap::new());
    reader.spool().acknowledge(server.through);
    writer.end();
    assert!(reader.spool().is_done() && server.gone);
    for (number, (next, count)) in &streams {
        let came = server.came.remove(number).unwrap_or_default();
        let lost = server.lost.remove(number).unwrap_or_default();
        assert!(came.is_disjoint(&lost));
        assert_eq!(came.len() as u64 + lost.len() as u64, *count, "stream {number}: {came:?} {lost:?}");
        assert_eq!(server.next.get(number).copied().unwrap_or(0), *next);
        assert_eq!(server.ended.get(number).copied(), (!open_streams.contains(number)).then_some(next + 2));
    }
}

pub(crate) fn push(columns: &mut Columns, attempt: u64, ext: Option<&Ext<'_>>) {
    let event = Event {
        op: op::posix::READ,
        request: attempt as u32,
        enclosing: 0,
        end: 0,
        duration: 1,
        flags: 0,
        handle: 3,
        offset: 4096 * attempt,
        length: 4096,
        result: 4096,
    };
    columns.push(1, attempt, attempt as i64, 1, &event, ext);
}

#[test]
fn a_full_spool_keeps_the_newest_if_told_so_and_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let limit = MAX_FRAME as u64;
    let (spool, _) = Spool::open(dir.path(), limit, SpoolFull::KeepNewest, "test", BOOT).unwrap();
    let spool = Arc::new(spool);
    let mut writer = Writer::new(Arc::clone(&spool), None);
    let mut reader = Reader::new(Arc::clone(&spool));
    write(&mut writer, [process(), stream(0)]);
    let mut random = StdRandom(42);
    let mut attempt = 0;
    for _ in 0..150 {
        assert!(writer.has_room());
        let mut columns = Columns::default();
        let after = attempt;
        for _ in 0..40 {
            // So that little can be left out.
            let path: Vec<u8> = (0..500).flat_map(|_| random.below(1 << 53).to_le_bytes()).collect();
            push(&mut columns, attempt, Some(&Ext { path1: &path, ..Ext::default() }));
            attempt += 1;
        }
        let (mut plain, mut encoded) = (Vec::new(), Vec::new());
        columns.encode(&mut plain, &mut encoded);
        write(&mut writer, [Message::Batch { seq: 0, stream: 0, after, columns: encoded }]);
        let held: u64 = files(dir.path()).iter().map(|file| file.metadata().unwrap().blocks() * 512).sum();
        assert!(held <= limit, "{held} with what is claimed");
    }
    let mut bytes = Vec::new();
    reader.restart(0, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    let mut server = Server::default();
    server.take(&bytes, &mut HashMap::new());
    let (came, lost) = (&server.came[&0], &server.lost[&0]);
    assert_eq!(came.len() + lost.len(), attempt as usize);
    assert_eq!(came.last(), Some(&(attempt - 1)), "the newest");
    assert!(lost.last() < came.first() && came.len() > 2500, "{}", came.len());
    assert_eq!(spool.given_up(), lost.len() as u64);
}

#[test]
fn what_defines_costs_a_few_times_its_bytes_however_much_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(dir.path());
    write(&mut writer, [process()]);
    let mut bytes = 0;
    for number in 0..40_000 {
        let mut message = stream(number);
        bytes += writer.write(&mut message);
        // As each sweep does, with a server that acknowledges nothing.
        writer.make_room();
    }
    let held = reader.spool().held.load(Relaxed);
    assert!(held < 6 * bytes, "{held} for {bytes} in {} files", files(dir.path()).len());
}

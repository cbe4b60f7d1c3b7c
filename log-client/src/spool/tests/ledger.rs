//! Exact counts of what damage destroyed of streams that do not continue.

use super::full::SmallFileSystem;
use super::server::Server;
use super::{KEY, files, open, process, process_end, stream_of, write};
use crate::spool::format::FramePrefix;
use crate::spool::{Reader, Writer, format};
use crate::testing::samples;
use fastrand::Rng;
use miot_proto::batch::Columns;
use miot_proto::wire::Message;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Streams of short-lived processes and their batches, spread over several files. Returns the
/// number of events recorded in each.
fn write_short_streams(writer: &mut Writer, reader: &Reader, random: &mut Rng) -> Vec<u64> {
    let mut recorded = Vec::new();
    write(writer, [process()]);
    for lane in 0..12 {
        write(writer, [stream_of(lane, lane)]);
        let mut next = 0;
        for _ in 0..=random.u64(..3) {
            let after = next;
            let mut columns = Columns::default();
            for _ in 0..=random.u64(..6) {
                columns.push(1, next, next as i64, 1, &samples::read(next), None);
                next += 1;
            }
            let columns = samples::packed(&columns);
            write(writer, [Message::Batch { seq: 0, stream: lane, after, columns }]);
        }
        // The last one lives on.
        if lane < 11 {
            let end = samples::stream_end(lane, next, next);
            write(writer, [Message::StreamEnd { seq: 0, end }]);
        }
        recorded.push(next);
        if lane % 3 == 2 {
            reader.spool().roll.store(true, Relaxed);
        }
    }
    recorded
}

/// Everything that a log-server gets on one connection, and its counts.
fn deliver(reader: &mut Reader, writer: &mut Writer) -> Server {
    let mut server = Server::default();
    server.take(&connection(reader, writer), &mut HashMap::new());
    server
}

/// The bytes of one connection.
fn connection(reader: &mut Reader, writer: &mut Writer) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.restart(0, &mut bytes);
    // Damage that is found on the way is replayed by the next sweep.
    for _ in 0..4 {
        reader.take(&mut bytes, usize::MAX);
        writer.make_space();
    }
    bytes
}

/// The messages with numbers up to this one.
fn messages_through(bytes: &[u8], through: u64) -> &[u8] {
    let mut rest = bytes;
    while let FramePrefix::Frame(frame, after) = FramePrefix::of(rest) {
        if frame.number().is_some_and(|number| number > through) {
            break;
        }
        rest = after;
    }
    &bytes[..bytes.len() - rest.len()]
}

fn check_counts(server: &Server, recorded: &[u64], what: &str) {
    for (lane, recorded) in (0..).zip(recorded) {
        let came = server.came.get(&lane).map_or(0, |came| came.len() as u64);
        let missed = server.missed.get(&lane).map_or(0, |missed| missed.len() as u64);
        assert_eq!(came + missed, *recorded, "{what}: lane {lane}: {came} arrived, {missed} counted as lost");
        let ended = server.ended.contains_key(&lane);
        assert_eq!(ended, lane < 11, "{what}: lane {lane}");
    }
}

fn number_of(file: &Path) -> u64 {
    format::parse_name(file.file_name().unwrap().as_encoded_bytes()).unwrap()
}

/// Ways to lose a file, or its content.
const DAMAGES: [&str; 6] = ["half", "to its head", "removed", "no head", "garbage", "a hole"];

fn damage(file: &Path, how: &str, random: &mut Rng) {
    let length = file.metadata().unwrap().len();
    let open = || File::options().write(true).open(file).unwrap();
    match how {
        "half" => open().set_len(length / 2).unwrap(),
        "to its head" => open().set_len(format::HEADER + 60).unwrap(),
        "removed" => std::fs::remove_file(file).unwrap(),
        "no head" => open().write_all_at(&[0; 40], 0).unwrap(),
        "garbage" => {
            let bytes: Vec<u8> = (0..length).map(|_| random.u64(..256) as u8).collect();
            std::fs::write(file, bytes).unwrap();
        }
        _ => open().write_all_at(&[0; 300], length / 3).unwrap(),
    }
}

#[test]
fn losses_before_a_start_are_counted_exactly() {
    let mut random = Rng::with_seed(5);
    let mut gone = 0;
    for how in DAMAGES {
        for which in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let (mut writer, reader, _) = open(dir.path());
            let recorded = write_short_streams(&mut writer, &reader, &mut random);
            drop((writer, reader));
            let all = files(dir.path());
            assert_eq!(all.len(), 4);
            // The last round damages all files.
            let damaged: Vec<&PathBuf> = if which < 4 { vec![&all[which]] } else { all.iter().collect() };
            damaged.into_iter().for_each(|file| damage(file, how, &mut random));
            let what = format!("{how}, file {which}");
            let (mut writer, mut reader, recovered) = open(dir.path());
            assert!(!recovered.intact, "{what}");
            assert!(recovered.next_stream >= 12, "{what}: stream numbers are not reused");
            let server = deliver(&mut reader, &mut writer);
            check_counts(&server, &recorded, &what);
            gone += server.missed.values().map(|missed| missed.len()).sum::<usize>();
            // Killed before anything was acknowledged: the same result again.
            drop((writer, reader));
            let (mut writer, mut reader, _) = open(dir.path());
            check_counts(&deliver(&mut reader, &mut writer), &recorded, &format!("{what}, again"));
            // The spool can end.
            write(&mut writer, [process_end()]);
            let last = reader.spool().last();
            reader.restart(0, &mut Vec::new());
            reader.take(&mut Vec::new(), usize::MAX);
            writer.make_space();
            reader.spool().acknowledge(last);
            writer.end();
            assert!(reader.spool().is_done(), "{what}");
            assert!(reader.spool().clear());
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{what}: nothing is left");
        }
    }
    assert!(gone > 500, "{gone}");
}

/// The log-server acknowledges what was there before the replay, and then the replay is damaged.
#[test]
fn losses_are_counted_when_the_replay_is_lost_as_well() {
    let mut random = Rng::with_seed(10);
    for first in DAMAGES {
        for second in DAMAGES {
            let what = format!("{first}, then {second}");
            let dir = tempfile::tempdir().unwrap();
            let (mut writer, reader, _) = open(dir.path());
            let recorded = write_short_streams(&mut writer, &reader, &mut random);
            drop((writer, reader));
            let old = files(dir.path());
            damage(&old[random.usize(..old.len())], first, &mut random);
            let (mut writer, mut reader, _) = open(dir.path());
            let before_replay = {
                let state = reader.spool().state();
                let replay = state.files.iter().find(|info| info.number > number_of(&old[3]));
                replay.map_or(state.last, |info| info.first - 1)
            };
            let bytes = connection(&mut reader, &mut writer);
            let mut server = Server::default();
            server.take(messages_through(&bytes, before_replay), &mut HashMap::new());
            reader.spool().acknowledge(before_replay);
            drop((writer, reader));
            for file in files(dir.path()) {
                damage(&file, second, &mut random);
            }
            let (mut writer, mut reader, _) = open(dir.path());
            server.take(&connection(&mut reader, &mut writer), &mut HashMap::new());
            check_counts(&server, &recorded, &what);
        }
    }
}

/// The file system is full, so the replay waits in memory. Meanwhile all files are acknowledged.
#[test]
fn losses_are_counted_after_a_kill_before_the_replay_is_written() {
    let Some(small) = SmallFileSystem::mount("8m") else {
        eprintln!("SKIPPED: no right to mount a small file system");
        return;
    };
    let mut random = Rng::with_seed(11);
    for how in DAMAGES {
        let dir = small.path().join(how);
        let (mut writer, reader, _) = open(&dir);
        let recorded = write_short_streams(&mut writer, &reader, &mut random);
        drop((writer, reader));
        damage(&files(&dir)[1], how, &mut random);
        let hog = small.path().join("hog");
        std::fs::write(&hog, vec![1; 10 << 20]).unwrap_err();
        let (mut writer, mut reader, _) = open(&dir);
        let (mut server, mut known) = (Server::default(), HashMap::new());
        server.take(&connection(&mut reader, &mut writer), &mut known);
        let acknowledged = server.through;
        reader.spool().acknowledge(acknowledged);
        assert!(!writer.is_written(), "{how}: the replay waits for space");
        drop((writer, reader));
        std::fs::remove_file(&hog).unwrap();
        let (mut writer, mut reader, _) = open(&dir);
        server.take(&connection(&mut reader, &mut writer), &mut known);
        check_counts(&server, &recorded, how);
        let last = reader.spool().last();
        reader.spool().acknowledge(last);
        assert!(reader.spool().clear());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{how}: nothing is left");
    }
}

#[test]
fn losses_during_a_run_are_counted_exactly() {
    let mut random = Rng::with_seed(6);
    for how in DAMAGES {
        for which in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let (mut writer, mut reader, _) = open(dir.path());
            let recorded = write_short_streams(&mut writer, &reader, &mut random);
            damage(&files(dir.path())[which], how, &mut random);
            let what = format!("{how}, file {which}");
            let server = deliver(&mut reader, &mut writer);
            check_counts(&server, &recorded, &what);
            reader.spool().acknowledge(server.through);
            assert!(files(dir.path()).len() <= 2, "{what}: replayed messages are removed");
        }
    }
}

#[test]
fn intact_spool_is_not_replayed() {
    let mut random = Rng::with_seed(7);
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(dir.path());
    let recorded = write_short_streams(&mut writer, &reader, &mut random);
    let last = reader.spool().last();
    drop((writer, reader));
    let (mut writer, mut reader, recovered) = open(dir.path());
    assert!(recovered.intact);
    let server = deliver(&mut reader, &mut writer);
    check_counts(&server, &recorded, "nothing");
    assert!(server.missed.is_empty());
    assert_eq!((reader.spool().last(), server.through), (last, last));
    // There is one ledger per file, removed together with it.
    let ledgers = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == "ledger").count()
    };
    assert_eq!(ledgers(), files(dir.path()).len());
    reader.spool().acknowledge(last);
    assert_eq!((ledgers(), files(dir.path()).len()), (1, 1));
    assert!(number_of(&files(dir.path())[0]) > 4);
    assert_eq!(KEY.pid, 3);
}

/// Condensing leaves a ledger that covers everything given up.
#[test]
fn lost_condensed_file_is_counted() {
    let mut random = Rng::with_seed(8);
    for rounds in 1..4 {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, reader, _) = open(dir.path());
        let recorded = write_short_streams(&mut writer, &reader, &mut random);
        for _ in 0..rounds {
            assert!(reader.spool().condense().unwrap());
        }
        drop((writer, reader));
        std::fs::remove_file(&files(dir.path())[0]).unwrap();
        let (mut writer, mut reader, recovered) = open(dir.path());
        assert!(!recovered.intact);
        check_counts(&deliver(&mut reader, &mut writer), &recorded, &format!("condensed {rounds} times"));
    }
}

/// For any damage of the ledgers.
#[test]
fn damaged_ledger_harms_nothing_else() {
    let mut random = Rng::with_seed(9);
    for _ in 0..50 {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, reader, _) = open(dir.path());
        let recorded = write_short_streams(&mut writer, &reader, &mut random);
        drop((writer, reader));
        let entries = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        for file in entries.filter(|file| file.extension().unwrap() == "ledger") {
            let mut bytes = std::fs::read(&file).unwrap();
            for _ in 0..=random.u64(..4) {
                let at = random.u64(..bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.u64(..8);
            }
            std::fs::write(&file, bytes).unwrap();
        }
        let (mut writer, mut reader, recovered) = open(dir.path());
        assert!(recovered.intact);
        check_counts(&deliver(&mut reader, &mut writer), &recorded, "damaged ledgers");
    }
}

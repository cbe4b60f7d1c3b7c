//! Files that are truncated, damaged, or unreadable.

use super::{batch, batch_of, files, names, open, process, process_end, sent, stream, stream_end, write};
use crate::spool::Reader;
use crate::spool::format::{self, HEADER};
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A spool of one file with all kinds of messages, as a killed log-client leaves it: the file, and
/// the end of each message in it.
fn left_behind(dir: &Path) -> (PathBuf, Vec<u64>) {
    let (mut writer, reader, recovered) = open(dir);
    assert_eq!((recovered.messages, recovered.intact), (0, true));
    let mut ends = Vec::new();
    for message in [process(), stream(0), stream(1), batch(100), stream_end(0), batch(3)] {
        write(&mut writer, [message]);
        ends.push(reader.spool().state().files.back().unwrap().end);
    }
    let [file] = &files(dir)[..] else { panic!("one file") };
    (file.clone(), ends)
}

#[test]
fn torn_end_is_cut_off_at_any_byte() {
    let first = tempfile::tempdir().unwrap();
    let (file, ends) = left_behind(&first.path().join("spool"));
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len() as u64, *ends.last().unwrap(), "claimed space does not count");
    for length in 0..=bytes.len() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file.file_name().unwrap()), &bytes[..length]).unwrap();
        let (mut writer, mut reader, recovered) = open(dir.path());
        let whole = ends.iter().filter(|end| **end <= length as u64).count();
        assert_eq!((recovered.messages, recovered.intact), (whole as u64, true), "{length}");
        // Numbers continue after the last whole message.
        write(&mut writer, [process_end()]);
        assert_eq!(sent(&mut reader, 0).last().unwrap(), &format!("gone {}", whole + 1), "{length}");
    }
}

/// The numbers of the messages sent on a connection, checked against the rules of the protocol: as
/// they were written, in order, and only of defined streams.
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

/// Flips every byte of a spool in turn: only batches of one mark interval may be lost.
#[test]
fn damage_costs_only_nearby_batches_and_the_session() {
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
        let (mut writer, mut reader, recovered) = open(dir.path());
        if (format::WATERMARK_AT..HEADER).contains(&(at as u64)) {
            assert_eq!((recovered.messages, recovered.watermark), (all.len() as u64, None));
            continue;
        }
        assert!(recovered.intact || reader.spool().session() != session, "{at}");
        assert!(!recovered.intact || (at as u64) < begins, "{at}: damage is never taken for a torn end");
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
        // It continues with unused numbers.
        let next = reader.spool().last() + 1;
        write(&mut writer, [process()]);
        assert_eq!(sent(&mut reader, 0).last().unwrap(), &format!("process {next}"), "{at}");
        reader.spool().acknowledge(next);
        writer.end();
        assert!(reader.spool().is_done());
    }
}

#[test]
fn unreadable_file_costs_only_its_messages() {
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
        let files: Vec<_> = reader.spool().state().files.iter().copied().collect();
        let file = File::options().write(true).open(&second).unwrap();
        // In its second message.
        file.write_all_at(b"damage", 400_000).unwrap();
        let whole = files[1].first;
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
        // Reading continues at the mark after the damage.
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
fn skipped_messages_at_the_end_are_not_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0), batch(1000)]);
    let file = File::options().write(true).open(&files(dir.path())[0]).unwrap();
    file.write_all_at(b"damage", reader.spool().state().files[0].end - 500).unwrap();
    assert_eq!(sent(&mut reader, 0), ["process 1", "stream 2 is 0"]);
    reader.spool().acknowledge(2);
    writer.end();
    let mut nothing = Vec::new();
    reader.take(&mut nothing, usize::MAX);
    assert!(nothing.is_empty() && reader.spool().is_done());
}

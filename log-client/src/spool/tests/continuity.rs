//! Successive log-clients, connections and sessions.

use super::{BOOT, batch, files, open, open_on, process, sent, stream, stream_end, write};
use crate::config::SpoolFull;
use crate::error::Error;
use crate::spool::{RecoveredSpool, Spool};
use miot_proto::wire::MAX_FRAME;
use std::path::{Path, PathBuf};

#[test]
fn successor_continues_session_numbers_and_watermark() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("spool");
    let (mut writer, reader, _) = open(&dir);
    write(&mut writer, [process(), stream(0), stream(7), batch(10)]);
    writer.set_watermark(50);
    writer.set_watermark(60);
    reader.spool().acknowledge(3);
    let session = reader.spool().session();
    drop((writer, reader));

    let (mut writer, mut reader, recovered) = open(&dir);
    let expected = RecoveredSpool { messages: 4, intact: true, next_stream: 8, watermark: Some(60) };
    assert_eq!((recovered, reader.spool().session()), (expected, session));
    // It finds the same processes and lanes.
    write(&mut writer, [process(), stream(8)]);
    let again = ["process 0", "stream 0 is 0", "stream 0 is 7", "batch 4 of 0", "all before 50"];
    assert_eq!(sent(&mut reader, 3), [&again[..], &["process 5", "stream 6 is 8"]].concat());
    // No message refers to the previous stream numbers any more.
    assert_eq!(sent(&mut reader, 4), ["process 5", "stream 6 is 8"]);
    reader.spool().acknowledge(6);
    writer.end();
    assert!(reader.spool().is_done());
    reader.spool().clear();
    assert_eq!(files(&dir), [""; 0].map(PathBuf::from));
    drop((writer, reader));
    let (_, reader, recovered) = open(&dir);
    assert_eq!((recovered.messages, recovered.watermark), (0, None));
    assert_ne!(reader.spool().session(), session);
}

#[test]
fn server_ahead_of_the_spool_gets_a_new_session() {
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
fn another_boot_starts_a_new_session() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0), batch(1)]);
    let session = reader.spool().session();
    drop((writer, reader));
    let (_writer, mut reader, recovered) = open_on(dir.path(), BOOT + 1);
    assert_eq!((recovered.messages, recovered.intact), (3, true));
    assert_ne!(reader.spool().session(), session);
    assert_eq!(sent(&mut reader, 0), ["process 1", "stream 2 is 0", "batch 3 of 0"]);
}

#[test]
fn files_are_read_in_order_and_removed_when_acknowledged() {
    const BATCH: usize = 300_000;
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    write(&mut writer, [process(), stream(0), stream(1), stream_end(1)]);
    let mut count = 4;
    while writer.has_space() {
        write(&mut writer, [batch(BATCH)]);
        writer.make_space();
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
    // A connection in the middle starts with the definitions in force there.
    let half = count / 2;
    let rest: Vec<_> = batches.skip(half as usize - 4).collect();
    let definitions = ["process 0", "stream 0 is 0"].map(String::from).to_vec();
    assert_eq!(sent(&mut reader, half), [definitions, rest].concat());
    assert!(held(dir.path()) < limit * 3 / 4 && writer.has_space());
    // The same for the next log-client, which does not know what was acknowledged.
    drop((writer, reader));
    let (writer, mut reader, recovered) = open(dir.path());
    assert!(recovered.intact && (half..count).contains(&(count - recovered.messages + 8)), "{recovered:?}");
    assert_eq!(sent(&mut reader, half)[2..], all[half as usize..]);
    reader.spool().acknowledge(count);
    assert_eq!(files(dir.path()).len(), 1, "but for the one that is written");
    drop(writer);
}

#[test]
fn spool_belongs_to_one_log_client_and_one_node() {
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

//! A full spool, or a full file system.

use super::server::Server;
use super::{BOOT, batch, batch_of, files, open, process, process_end, sent, stream, stream_end, write};
use crate::config::SpoolFull;
use crate::spool::{Reader, Spool, Writer};
use crate::testing::samples;
use fastrand::Rng;
use miot_proto::batch::Columns;
use miot_proto::event::Ext;
use miot_proto::wire::{MAX_FRAME, Message};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A mounted file system of a few megabytes.
pub(super) struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn mount(bytes: &str) -> Option<SmallFileSystem> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(dir.path());
        mount.status().is_ok_and(|status| status.success()).then_some(SmallFileSystem(dir))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn full_file_system_stops_batches_and_other_messages_wait() {
    let Some(small) = SmallFileSystem::mount("8m") else {
        eprintln!("SKIPPED: no right to mount a small file system");
        return;
    };
    let dir = small.path().join("spool");
    let (mut writer, mut reader, _) = open(&dir);
    write(&mut writer, [process(), stream(0)]);
    let mut count = 2;
    while writer.has_space() {
        write(&mut writer, [batch(500_000)]);
        writer.make_space();
        count += 1;
    }
    assert!(count > 5 && reader.spool().state().unwritten == 0, "every accepted batch was written");
    // Another process takes the rest as well.
    let hog = small.path().join("hog");
    let _ = std::fs::write(&hog, vec![1; 10 << 20]);
    write(&mut writer, (0..4).map(|_| batch(300_000)).chain([stream_end(0), process_end()]));
    writer.set_watermark(77);
    assert!(reader.spool().state().unwritten > 0);
    let before = sent(&mut reader, 0);
    assert!(before.len() < count + 6 && !before.iter().any(|name| name.contains("before")), "{before:?}");
    std::fs::remove_file(&hog).unwrap();
    reader.spool().acknowledge(count as u64);
    writer.make_space();
    writer.set_watermark(78);
    assert_eq!(reader.spool().state().unwritten, 0);
    let ends = [format!("end {} of 0", count + 5), format!("gone {}", count + 6), "all before 78".into()];
    assert_eq!(sent(&mut reader, 0)[..].last_chunk().unwrap(), &ends);
    assert!(writer.has_space());
    drop((writer, reader));
    assert!(open(&dir).2.intact);
}

/// The file that is begun once there is space again has the definitions that were in force before
/// the messages that waited, although these end them.
#[test]
fn messages_that_waited_for_space_are_sent_on_a_new_connection() {
    let Some(small) = SmallFileSystem::mount("8m") else {
        eprintln!("SKIPPED: no right to mount a small file system");
        return;
    };
    let (mut writer, mut reader, _) = open(&small.path().join("spool"));
    write(&mut writer, [process(), stream(0)]);
    while writer.has_space() {
        write(&mut writer, [batch(500_000)]);
        writer.make_space();
    }
    let hog = small.path().join("hog");
    let _ = std::fs::write(&hog, vec![1; 10 << 20]);
    // The reader still has the last file open, so its space is not free when it is removed.
    drop(sent(&mut reader, 0));
    let through = reader.spool().last();
    reader.spool().acknowledge(through);
    let second = small.path().join("second hog");
    let _ = std::fs::write(&second, vec![1; 10 << 20]);
    writer.make_space();
    assert_eq!(reader.spool().state().files.len(), 0);
    write(
        &mut writer,
        [stream(1), batch_of(1, 100), stream_end(1), batch(100), stream_end(0), process_end()],
    );
    assert_eq!(reader.spool().state().unwritten, 6);
    [hog, second].iter().for_each(|hog| std::fs::remove_file(hog).unwrap());
    writer.make_space();
    let number = |more: u64| through + more;
    let expected = [
        "process 0".into(),
        "stream 0 is 0".into(),
        format!("stream {} is 1", number(1)),
        format!("batch {} of 1", number(2)),
        format!("end {} of 1", number(3)),
        format!("batch {} of 0", number(4)),
        format!("end {} of 0", number(5)),
        format!("gone {}", number(6)),
    ];
    assert_eq!(sent(&mut reader, through), expected);
}

/// By default lanes and spool share a file system.
#[test]
fn spool_works_while_others_take_all_free_space() {
    let Some(small) = SmallFileSystem::mount("4m") else {
        eprintln!("SKIPPED: no right to mount a small file system");
        return;
    };
    let dir = small.path().join("spool");
    let (mut writer, mut reader, _) = open(&dir);
    let _ = std::fs::write(small.path().join("hog"), vec![1; 4 << 20]);
    write(&mut writer, [process(), stream(0)]);
    for round in 0..20 {
        assert!(writer.has_space(), "in round {round}");
        while writer.has_space() {
            write(&mut writer, [batch(500_000)]);
        }
        let last = reader.spool().last();
        // A connection breaks now and then: the next one gets the definitions in force.
        if round % 3 == 0 {
            assert!(sent(&mut reader, 0).iter().any(|name| name.starts_with("stream")));
        }
        reader.spool().acknowledge(last);
        writer.make_space();
        reader.take(&mut Vec::new(), usize::MAX);
        writer.make_space();
    }
    assert_eq!(reader.spool().state().unwritten, 0);
}

#[test]
fn full_spool_keeps_the_newest_within_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let limit = MAX_FRAME as u64;
    let (spool, _) = Spool::open(dir.path(), limit, SpoolFull::KeepNewest, "test", BOOT).unwrap();
    let spool = Arc::new(spool);
    let mut writer = Writer::new(Arc::clone(&spool), None);
    let mut reader = Reader::new(Arc::clone(&spool));
    write(&mut writer, [process(), stream(0)]);
    let mut random = Rng::with_seed(42);
    let mut attempt = 0;
    for _ in 0..150 {
        assert!(writer.has_space());
        let mut columns = Columns::default();
        let after = attempt;
        for _ in 0..40 {
            // Random paths, so that compression saves little.
            let path: Vec<u8> = (0..500).flat_map(|_| random.u64(..1 << 53).to_le_bytes()).collect();
            let ext = Ext { path1: &path, ..Ext::default() };
            columns.push(1, attempt, attempt as i64, 1, &samples::read(attempt), Some(&ext));
            attempt += 1;
        }
        write(&mut writer, [Message::Batch { seq: 0, stream: 0, after, columns: samples::packed(&columns) }]);
        let all = std::fs::read_dir(dir.path()).unwrap();
        let held: u64 = all.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum();
        assert!(held <= limit, "{held} with claimed space");
    }
    let mut bytes = Vec::new();
    reader.restart(0, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    let mut server = Server::default();
    server.take(&bytes, &mut HashMap::new());
    let (came, lost) = (&server.came[&0], &server.lost[&0]);
    assert!(server.missed.is_empty(), "{:?}", server.missed);
    assert_eq!(came.len() + lost.len(), attempt as usize);
    assert_eq!(came.last(), Some(&(attempt - 1)), "the newest");
    assert!(lost.last() < came.first() && came.len() > 2500, "{}", came.len());
    assert_eq!(spool.given_up(), lost.len() as u64);
}

#[test]
fn definitions_take_a_few_times_their_size() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, reader, _) = open(dir.path());
    write(&mut writer, [process()]);
    let mut bytes = 0;
    for number in 0..40_000 {
        let mut message = stream(number);
        bytes += writer.write(&mut message);
        // As each sweep does, with a server that acknowledges nothing.
        writer.make_space();
    }
    let held = reader.spool().held.load(Relaxed);
    assert!(held < 6 * bytes, "{held} for {bytes} in {} files", files(dir.path()).len());
}

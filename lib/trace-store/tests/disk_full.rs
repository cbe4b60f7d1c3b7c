//! A full disk costs no committed row, and the failed call succeeds when there is space again.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::*;
use miot_trace_store::{Options, Reader, Table, Writer, fsck};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system of 1 MiB; a drop unmounts it.
struct Small {
    _temp: tempfile::TempDir,
    root: PathBuf,
}

impl Small {
    /// Returns `None` and prints a message if it cannot be mounted.
    fn mount() -> Option<Small> {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("small");
        fs::create_dir(&root).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "miot-test"]).arg(&root).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!(
                "NOT TESTED: disk full. A tmpfs cannot be mounted here: run as root with CAP_SYS_ADMIN."
            );
            return None;
        }
        Some(Small { _temp: temp, root })
    }

    /// Fills all space except `left` bytes.
    fn fill(&self, left: usize) -> PathBuf {
        let ballast = self.root.join("ballast");
        let mut size = 1 << 20;
        while fs::write(&ballast, vec![1; size]).is_err() {
            size -= 4096;
        }
        fs::write(&ballast, vec![1; size - left.min(size)]).unwrap();
        ballast
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.root).status();
    }
}

fn assert_no_torn_tail(dir: &Path) {
    assert!(Reader::open(dir).unwrap().torn().unwrap().is_empty());
    let report = fsck::check(dir);
    assert!(report.is_good(), "{report}");
}

#[test]
fn commit_can_be_repeated_after_a_full_disk() {
    let Some(small) = Small::mount() else { return };
    let dir = small.root.join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 30))).unwrap();
    writer.commit().unwrap();
    let ballast = small.fill(40 << 10);
    let (mut next, mut committed) = (30, 30);
    let error = loop {
        writer.append(Table::Events, &events(&turn(next, next + 300))).unwrap();
        next += 300;
        match writer.commit() {
            Ok(()) => committed = next,
            Err(error) => break error,
        }
    };
    assert!(error.is_disk_full(), "{error}");
    assert!(error.to_string().contains("part-000000.events.arrows"), "{error}");
    assert_eq!(read_all(&dir), turn(0, committed));
    assert_no_torn_tail(&dir);
    assert!(writer.commit().unwrap_err().is_disk_full());
    writer.append(Table::Events, &events(&turn(next, next + 30))).unwrap();
    fs::remove_file(ballast).unwrap();
    writer.commit().unwrap();
    assert_eq!(read_all(&dir), turn(0, next + 30));
    assert_no_torn_tail(&dir);
    writer.finish().unwrap();
    assert_eq!(read_all(&dir), turn(0, next + 30));
}

#[test]
fn seal_is_retried_after_a_full_disk() {
    let Some(small) = Small::mount() else { return };
    let dir = small.root.join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 3000))).unwrap();
    writer.commit().unwrap();
    let ballast = small.fill(8 << 10);
    writer.seal().unwrap();
    let error = loop {
        if let Err(error) = writer.seal() {
            break error;
        }
        std::thread::yield_now();
    };
    assert!(error.is_disk_full(), "{error}");
    assert!(error.to_string().contains("part 0"), "{error}");
    assert_eq!(read_all(&dir), turn(0, 3000));
    assert_no_torn_tail(&dir);
    fs::remove_file(&ballast).unwrap();
    writer.append(Table::Events, &events(&turn(3000, 3030))).unwrap();
    let summary = writer.finish().unwrap();
    assert_eq!((summary.parts, summary.events), (2, 3030));
    assert_eq!(read_all(&dir), turn(0, 3030));
    assert_no_torn_tail(&dir);
}

#[test]
fn finish_on_a_full_disk_leaves_a_readable_trace() {
    let Some(small) = Small::mount() else { return };
    let dir = small.root.join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 3000))).unwrap();
    writer.commit().unwrap();
    let ballast = small.fill(8 << 10);
    let error = writer.finish().unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    assert_eq!(read_all(&dir), turn(0, 3000));
    fs::remove_file(&ballast).unwrap();
    let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!(recovered.next_stream, 4);
    writer.finish().unwrap();
    assert_eq!(read_all(&dir), turn(0, 3000));
    assert_no_torn_tail(&dir);
}

#[test]
fn retention_is_retried_after_a_full_disk() {
    let Some(small) = Small::mount() else { return };
    let dir = small.root.join("trace");
    let options = Options { keep_bytes: Some(1), ..Options::default() };
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    for part in 0..3 {
        writer.append(Table::Events, &events(&turn(part * 300, part * 300 + 300))).unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
    let ballast = small.fill(4 << 10);
    let (mut writer, _) = Writer::open(&dir, options).unwrap();
    let error = loop {
        if let Err(error) = writer.retain() {
            break error;
        }
        std::thread::yield_now();
    };
    assert!(error.is_disk_full(), "{error}");
    assert_eq!(read_all(&dir), turn(0, 900));
    assert_no_torn_tail(&dir);
    fs::remove_file(ballast).unwrap();
    let removed = loop {
        // The earlier error may be reported again.
        let _ = writer.retain();
        if let Some(removed) = writer.removed() {
            break removed;
        }
        std::thread::yield_now();
    };
    assert_eq!((removed.parts, removed.events), (2, 600));
    assert_eq!(read_all(&dir), turn(600, 900));
    assert_no_torn_tail(&dir);
}

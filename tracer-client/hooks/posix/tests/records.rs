//! Values of the records: offsets, handles, paths.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod common;

use common::{Node, Process, compile, library};
use miot_proto::event::{RecordKind, flag};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

/// Runs one part of the program in a directory, and returns its records. stdin is a file of ten
/// bytes at position 6, stdout is the file `out`, and object files are excluded.
fn run_part(name: &str, directory: &Path) -> Vec<Process> {
    let build = tempfile::tempdir().unwrap();
    let program = compile("records", build.path(), &["-O1", "-fno-builtin"]);
    let node = Node::new();
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(b"0123456789").unwrap();
    input.seek(SeekFrom::Start(6)).unwrap();
    let output = Command::new(program)
        .arg(name)
        .current_dir(directory)
        .stdin(input)
        .stdout(File::create(directory.join("out")).unwrap())
        .env("LD_PRELOAD", library())
        .env("MIOT_DIR", node.path())
        .env("MIOT_EXCLUDE", "*.o")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    node.recorded()
}

fn ranges(process: &Process, op: &str) -> Vec<(i64, i64, i64)> {
    process.of(op).iter().map(|record| record.range()).collect()
}

#[test]
fn positions_follow_the_file_description() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = run_part("positions", directory.path());
    let process = &recorded[0];
    assert_eq!(ranges(process, "write"), [(0, 10, 10), (42, 1, 1), (43, 1, 1)]);
    assert_eq!(ranges(process, "writev"), [(10, 7, 7)]);
    assert_eq!(ranges(process, "read"), [(5, 4, 4), (9, 64, 8), (17, 64, 0), (0, 5, 5), (5, 5, 5)]);
    assert_eq!(ranges(process, "readv"), [(40, 7, 2)]);
    assert_eq!(ranges(process, "pwrite"), [(40, 2, 2)]);
    assert_eq!(ranges(process, "lseek"), [(5, 0, 5), (-2, 2, 40), (0, 0, 0)]);
    let appended = process.of("write")[1].event.flags;
    assert_eq!(appended, flag::APPEND | flag::OFFSET_QUERIED);
    assert_eq!(process.of("read")[1].event.flags, 0);
    let handles: Vec<u64> = process.of("open").iter().map(|record| record.event.handle).collect();
    assert_eq!(handles.len(), 2);
    assert!(process.of("read")[..3].iter().all(|record| record.event.handle == handles[0]));
    assert!(process.of("read")[3..].iter().all(|record| record.event.handle == handles[1]));
    assert_eq!(process.of("close").iter().filter(|record| record.event.handle == handles[0]).count(), 2);
}

#[test]
fn shared_positions_are_queried() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = run_part("shared", directory.path());
    assert_eq!(recorded.len(), 3, "the child of vfork must have no segment");
    let (parent, child, with_terminal) = (&recorded[0], &recorded[1], &recorded[2]);
    let once = [(0, 3, 3), (7, 5, 5)];
    assert_eq!(ranges(parent, "read"), [&once[..], &once[..], &[(6, 2, 2), (8, 2, 2)]].concat());
    for child in [child, with_terminal] {
        assert_eq!(ranges(child, "read"), [(3, 4, 4)]);
    }
    let queried = |process: &Process| -> Vec<bool> {
        process.of("read").iter().map(|record| record.event.flags & flag::OFFSET_QUERIED != 0).collect()
    };
    assert_eq!((queried(parent), queried(child)), (vec![false, true, false, true, true, true], vec![true]));
    // The child names the file with a handle of its own.
    let file = directory.path().join("file");
    for process in [parent, child, with_terminal] {
        assert_eq!(process.path(process.of("read")[0].event.handle), file.to_str());
    }
    assert!(child.records.iter().any(|record| record.kind == RecordKind::File));
    assert_eq!((parent.of("close").len(), child.of("close").len()), (2, 1));
}

/// Transfers through a descriptor without a file are not recorded. Creation, open and close by name
/// are.
#[test]
fn transfers_through_special_files_are_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = run_part("descriptors", directory.path());
    let fifo = directory.path().join("fifo");
    let [process] = &recorded[..] else { panic!("{} processes", recorded.len()) };
    let operations: Vec<_> =
        process.records.iter().map(|record| (record.op, record.path1.as_str())).collect();
    let fifo = fifo.to_str().unwrap();
    assert_eq!(operations, [("mkfifo", fifo), ("open", fifo), ("dup", ""), ("close", ""), ("close", "")]);
    assert!(process.records[2..].iter().all(|record| process.path(record.event.handle) == Some(fifo)));
}

#[test]
fn paths_are_absolute_and_filtered() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let recorded = run_part("paths", directory.path());
    let process = &recorded[0];
    let operations: Vec<String> = process
        .records
        .iter()
        .filter(|record| record.kind == RecordKind::Request && !record.path1.is_empty())
        .map(|record| {
            let paths = format!("{} {}", record.path1.replace(root, "~"), record.path2.replace(root, "~"));
            format!("{} {}", record.op, paths.trim_end())
        })
        .collect();
    let temporary = process.of("mkstemp")[0].path1.replace(root, "~");
    assert!(temporary.starts_with("~/dir/temp-") && !temporary.ends_with("XXXXXX"), "{temporary}");
    let expected = [
        "mkdir ~/dir",
        "mkdir ~/dir/sub",
        "chdir ~/dir",
        "open ~/dir/sub",
        "openat ~/dir/sub/x",
        "stat ~/dir/sub/../sub/x",
        "rename ~/dir/sub/x ~/dir/y",
        "link ~/dir/y ~/dir/z",
        "symlink ../somewhere ~/dir/s",
        "setxattr ~/dir/y user.a",
        "stat ~/dir/none",
        &format!("mkstemp {temporary}"),
        "unlink ~/dir/sub/../z",
        "access /etc/passwd",
    ];
    assert_eq!(operations, expected);
    assert_eq!(process.of("stat")[1].event.result, -2);
    assert_eq!(process.of("openat")[0].event.length, (0o101 | 0o600 << 32));
}

#[test]
fn streams_have_positions_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = run_part("streams", directory.path());
    let process = &recorded[0];
    assert!(process.records.iter().all(|record| record.layer == "stdio" || record.kind == RecordKind::File));
    assert_eq!(ranges(process, "fprintf"), [(0, 5, 5)]);
    assert_eq!(ranges(process, "fputs"), [(5, 4, 4), (-1, 1, 1)]);
    assert_eq!(ranges(process, "fputc"), [(9, 1, 1)]);
    assert_eq!(ranges(process, "fwrite"), [(10, 8, 8)]);
    assert_eq!(ranges(process, "fscanf"), [(0, 4, 4)]);
    assert_eq!(ranges(process, "fgets"), [(4, 32, 1), (5, 32, 4)]);
    assert_eq!(ranges(process, "fgetc"), [(9, 1, 1), (18, 1, 0)]);
    assert_eq!(ranges(process, "fread"), [(9, 15, 9)]);
    assert_eq!(ranges(process, "puts"), [(0, 4, 4)]);
    assert_eq!(ranges(process, "printf"), [(4, 10, 10)]);
    assert_eq!((process.of("fopen").len(), process.of("fclose").len()), (2, 2));
    let mut out = String::new();
    File::open(directory.path().join("out")).unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "out\nformatted\n");
    assert_eq!(process.path(process.of("puts")[0].event.handle), directory.path().join("out").to_str());
}

#[test]
fn copies_mappings_directories_and_asynchronous_requests() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = run_part("others", directory.path());
    let process = &recorded[0];
    let opened = |name: &str| {
        let path = directory.path().join(name);
        process.of("open").into_iter().find(|record| Path::new(&record.path1) == path).unwrap().event.handle
    };
    let (from, to) = (opened("from"), opened("to"));
    let sent = process.of("sendfile")[0];
    assert_eq!((sent.event.handle, sent.handle2, sent.offset2), (0, Some(from), Some(3)));
    assert_eq!(sent.range(), (-1, 5, 5));
    let copied = process.of("copy_file_range")[0];
    assert_eq!((copied.event.handle, copied.handle2, copied.offset2), (to, Some(from), Some(0)));
    assert_eq!(copied.range(), (7, 20, 20));
    assert!(process.of("read").is_empty(), "reads of a socket must not be recorded");
    let mapped = process.of("mmap");
    assert_eq!((mapped.len(), mapped[0].event.flags >> flag::OP_SHIFT), (1, 0b1011));
    for op in ["msync", "munmap"] {
        let handles: Vec<u64> = process.of(op).iter().map(|record| record.event.handle).collect();
        assert_eq!(handles, [from], "{op}");
    }
    let read = process.of("aio_read")[0];
    assert_eq!((read.range(), read.event.flags, read.event.handle), ((11, 6, 6), flag::ASYNC, from));
    // ".", "..", "from", "to", "out", and the end.
    let entries: Vec<i64> = process.of("readdir").iter().map(|record| record.event.result).collect();
    assert_eq!(entries, [1, 1, 1, 1, 1, 0]);
    assert_eq!(process.of("closedir")[0].event.handle, process.of("opendir")[0].event.handle);
}

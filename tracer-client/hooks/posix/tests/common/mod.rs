//! Builds C programs, runs them under the hook, and reads their records directly from their
//! segments.

#![allow(dead_code)]

use miot_proto::control::{self, word};
use miot_proto::event::{self, Event, RecordKind};
use miot_proto::op::Layer;
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES, header, lane};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the hook, built with the profile of the tests: cargo does not link a `cdylib` for tests.
/// `tests/run.sh` has built it, as it says by an environment variable.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let name = match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let library = profile.join("libmiot_posix.so");
        if std::env::var_os("MIOT_TESTS_BUILT").is_some() {
            assert!(library.exists(), "{} is not built", library.display());
            return library;
        }
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                env!("CARGO_PKG_NAME"),
                "--profile",
                name,
                "--target-dir",
            ])
            .arg(profile.parent().unwrap())
            .status();
        assert!(status.unwrap().success());
        library
    })
}

/// Compiles `tests/programs/NAME.c` into a directory, and returns the program.
pub(crate) fn compile(name: &str, into: &Path, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let program = into.join(name);
    let output = Command::new("cc")
        .args(["-Wall", "-Werror", "-D_GNU_SOURCE", "-pthread"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A MIOT directory with a control page but without a log-client: the lanes keep all records.
pub(crate) struct Node(tempfile::TempDir);

impl Node {
    pub(crate) fn new() -> Node {
        // Before: programs take a log-client for dead whose page was written a minute ago.
        library();
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut page = vec![0u8; control::BYTES];
        let mut set = |at: usize, value: u64| page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        set(word::MAGIC, control::MAGIC);
        let settings =
            control::Settings { lane_slots: 1 << 14, lane_slots_max: 1 << 14, ..Default::default() };
        settings.words(0).for_each(|(at, value)| set(at, value));
        std::fs::write(directory.path().join(control::FILE), page).unwrap();
        Node(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the records of each process, ordered by creation.
    pub(crate) fn recorded(&self) -> Vec<Process> {
        let segments = std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut processes: Vec<_> = segments
            .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
            .map(|path| read_segment(&std::fs::read(path).unwrap()))
            .collect();
        processes.sort_by_key(|process| process.created);
        processes
    }
}

/// Runs a program in a directory, under the hook if a MIOT directory is given.
pub(crate) fn run(program: &Path, arguments: &[&str], directory: &Path, node: Option<&Path>) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env_remove("LD_PRELOAD");
    if let Some(node) = node {
        command.env("LD_PRELOAD", library()).env("MIOT_DIR", node);
    }
    command.output().unwrap()
}

pub(crate) struct Process {
    /// Creation of the segment, ticks.
    pub(crate) created: u64,
    /// Records of all threads, lane by lane.
    pub(crate) records: Vec<Record>,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) layer: &'static str,
    pub(crate) op: &'static str,
    pub(crate) event: Event,
    pub(crate) path1: String,
    pub(crate) path2: String,
    pub(crate) handle2: Option<u64>,
    pub(crate) offset2: Option<u64>,
}

impl Record {
    /// Returns offset, length and result.
    pub(crate) fn range(&self) -> (i64, i64, i64) {
        (self.event.offset as i64, self.event.length as i64, self.event.result)
    }
}

impl Process {
    /// Returns the records of one operation.
    pub(crate) fn of(&self, op: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.kind == RecordKind::Request && record.op == op).collect()
    }

    /// Returns the path of a handle.
    pub(crate) fn path(&self, handle: u64) -> Option<&str> {
        let named = self.records.iter().find(|record| {
            record.event.handle == handle && record.path1.starts_with('/') && record.event.result >= 0
        });
        named.map(|record| record.path1.as_str())
    }
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn read_segment(bytes: &[u8]) -> Process {
    let mut records = Vec::new();
    for index in 0..word_at(bytes, header::LANES) as usize {
        let entry = HEADER_BYTES + index * LANE_BYTES;
        let lane = |word: usize| word_at(bytes, entry + word) as usize;
        let (slots_at, slots) = (lane(lane::SLOTS_AT), lane(lane::SLOTS));
        let slot = |at: usize| &bytes[slots_at + at % slots * 64..][..64];
        assert_eq!(lane(lane::LOST_FULL), 0);
        let (mut at, end) = (lane(lane::START), lane(lane::TAIL) >> 1);
        while at < end {
            let first: event::Slot = std::array::from_fn(|word| word_at(slot(at), word * 8));
            let length = event::slots_of(&first);
            let rest: Vec<u8> = (at + 1..at + length).flat_map(|at| slot(at).to_vec()).collect();
            records.push(decode_record(&first, &rest));
            at += length;
        }
        assert_eq!(at, end);
    }
    Process { created: word_at(bytes, header::CREATED_TICKS), records }
}

fn decode_record(first: &event::Slot, rest: &[u8]) -> Record {
    let event = Event::from_slot(first);
    let ext = if rest.is_empty() { event::Ext::default() } else { event::ext_from_bytes(rest).unwrap() };
    Record {
        kind: RecordKind::from_number(event::kind_of(first)).unwrap(),
        layer: Layer::from_number(event.op.layer).unwrap().name(),
        op: event.op.name().unwrap(),
        event,
        path1: String::from_utf8_lossy(ext.path1).into_owned(),
        path2: String::from_utf8_lossy(ext.path2).into_owned(),
        handle2: ext.handle2,
        offset2: ext.offset2,
    }
}

//! Processes that overwrite their segments, truncate them, flood them or forge them, and files in
//! the MIOT directory that no producer creates.
//!
//! The daemons are real and continue. A valid process beside them is recorded completely. Invalid
//! records are counted, no file remains, and no event is attributed to another user.
//!
//! The random seed is `MIOT_SEED`, which is printed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt32Type, UInt64Type};
use miot_proto::control::{DIR_ENV, FILE, word};
use miot_tests::built::built;
use miot_tests::daemons::{free_port, server};
use miot_tests::forged::{self, Forged};
use miot_tests::pattern;
use miot_tests::process::{Background, run, until};
use miot_tests::random::seed;
use miot_tests::test_dir::fresh;
use miot_tests::tmpfs::as_nobody;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use miot_trace_store::{Reader, Table};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

const THREADS: u64 = 2;
const NOBODY: u32 = 65_534;

/// A node with its log-client, and a log-server.
struct Node {
    trace: PathBuf,
    dir: PathBuf,
    server: Background,
    client: Background,
    _shared: tempfile::TempDir,
}

impl Node {
    fn start(name: &str) -> Node {
        let place = fresh(&format!("hostile-{name}"));
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (trace, dir, port) = (place.join("trace"), shared.path().join("miot"), free_port());
        let server = server(port, &trace);
        let mut command = Command::new(&built().log_client);
        command.args(["--when-full", "wait", "--node", "node", "--server"]).arg(format!("127.0.0.1:{port}"));
        let client = Background::start(command.arg("--dir").arg(&dir));
        let node = Node { trace, dir, server, client, _shared: shared };
        until("the log-client has made its control page", || node.sweeps() > 0);
        // The directory of a node has these permissions, so that all users can record.
        fs::set_permissions(&node.dir, fs::Permissions::from_mode(0o1777)).unwrap();
        node
    }

    fn sweeps(&self) -> u64 {
        let page = fs::read(self.dir.join(FILE)).unwrap_or_default();
        page.get(word::SWEEPS..word::SWEEPS + 8)
            .map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()))
    }

    /// Checks that the log-client continues to sweep.
    fn is_alive(&mut self) {
        let before = self.sweeps();
        until("the log-client sweeps", || {
            assert!(self.client.running(), "{}", self.client.printed());
            self.sweeps() > before + 3
        });
    }

    fn command(&self, program: &str, words: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(words).env(DIR_ENV, &self.dir);
        command
    }

    fn hostile(&self, words: &[String]) -> Background {
        let mut command = self.command(env!("CARGO_BIN_EXE_hostile"), words);
        if rustix::process::geteuid().is_root() {
            as_nobody(&mut command);
        } else {
            eprintln!("NOT TESTED without root: hostile processes of another user; they are of this one");
        }
        Background::start(&mut command)
    }

    /// Runs a valid producer to its end beside the hostile ones. No request may be refused.
    fn honest(&self, events: u64) {
        let words = [THREADS.to_string(), events.to_string()];
        let said = run(&mut self.command(env!("CARGO_BIN_EXE_producer"), &words)).success().stdout;
        assert_eq!(
            said.lines().filter(|line| line.ends_with(" 0")).count() as u64,
            THREADS,
            "refused: {said}"
        );
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|suffix| suffix == "seg")).collect()
    }

    /// Stops both daemons in order. Returns the trace and the log of the log-client.
    fn end(self) -> (PathBuf, String) {
        let said = self.client.end();
        self.server.end();
        assert_good(&self.trace);
        (self.trace, said)
    }
}

/// Checks that each valid process is in the trace completely, unchanged, in order, and without
/// additional events.
fn judge(rows: &[PrintedEvent], processes: usize, events: u64) {
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let synthetic =
        |row: &&PrintedEvent| row.path.as_deref().is_some_and(|path| path.starts_with("/synthetic/"));
    for row in rows.iter().filter(synthetic).filter(|row| row.op == "read") {
        let thread =
            (0..THREADS).find(|thread| row.path.as_deref() == Some(&pattern::path(*thread))).unwrap();
        let place = match seen.iter().position(|(key, _)| *key == row.process << 8 | thread) {
            Some(place) => place,
            None => {
                seen.push((row.process << 8 | thread, 0));
                seen.len() - 1
            }
        };
        let found = (row.offset.unwrap(), row.length.unwrap(), row.result);
        assert_eq!(
            found,
            pattern::event(thread, seen[place].1),
            "event {} of thread {thread}",
            seen[place].1
        );
        seen[place].1 += 1;
    }
    assert_eq!(seen.len(), processes * THREADS as usize);
    assert!(seen.iter().all(|(_, count)| *count == events), "{seen:?}");
}

/// Rows of `losses`: place and count.
fn losses(trace: &Path) -> Vec<(String, u64)> {
    let batches = Reader::open(trace).unwrap().table(Table::Losses).unwrap();
    let rows = |batch: &RecordBatch| -> Vec<(String, u64)> {
        let places = arrow_strings(batch, "place");
        let counts = miot_trace_store::schema::column::<UInt64Type>(batch, "count").unwrap();
        places.into_iter().zip(counts.values().iter().copied()).collect()
    };
    batches.iter().flat_map(rows).collect()
}

fn arrow_strings(batch: &RecordBatch, name: &str) -> Vec<String> {
    let column = batch.column_by_name(name).unwrap();
    match column.as_string_opt::<i32>() {
        Some(strings) => strings.iter().map(|text| text.unwrap_or_default().to_owned()).collect(),
        None => {
            let column = column.as_any_dictionary();
            let values = column.values().as_string::<i32>();
            column.normalized_keys().into_iter().map(|key| values.value(key).to_owned()).collect()
        }
    }
}

/// User and process id of the processes of a trace, by their number in it.
fn users(trace: &Path) -> Vec<(u64, u32, u32)> {
    let batches = Reader::open(trace).unwrap().table(Table::Processes).unwrap();
    let rows = |batch: &RecordBatch| -> Vec<(u64, u32, u32)> {
        let ids = miot_trace_store::schema::column::<UInt64Type>(batch, "process").unwrap();
        let uids = miot_trace_store::schema::column::<UInt64Type>(batch, "uid").unwrap();
        let pids = miot_trace_store::schema::column::<UInt32Type>(batch, "pid").unwrap();
        (0..batch.num_rows()).map(|row| (ids.value(row), uids.value(row) as u32, pids.value(row))).collect()
    };
    batches.iter().flat_map(rows).collect()
}

#[test]
fn valid_process_is_complete_beside_hostile_ones() {
    const EVENTS: u64 = 30_000;
    let seed = seed("hostile");
    let mut node = Node::start("processes");
    let ways = ["resize", "scribble", "flood", "churn"];
    let start = |node: &Node, way: &str, round: u64| {
        let mut started = node.hostile(&[way.to_owned(), (seed + round).to_string()]);
        // It may even end at once: a process that overwrites its table of lanes may crash.
        until("the hostile process is at work", || !started.printed().is_empty() || !started.running());
        started
    };
    let mut hostile: Vec<Background> = ways.iter().map(|way| start(&node, way, 0)).collect();
    let rounds = 6;
    for round in 1..=rounds {
        node.honest(EVENTS);
        node.is_alive();
        println!("round {round}: {} segments", node.segments().len());
        for (process, way) in hostile.iter_mut().zip(ways) {
            if !process.running() || round % 2 == 0 {
                *process = start(&node, way, round);
            }
        }
    }
    for process in hostile {
        let _ = process.stop(Signal::KILL);
    }
    until("nothing is left of any process", || node.segments().is_empty());
    let (trace, said) = node.end();
    let rows = events(&trace);
    judge(&rows, rounds as usize, EVENTS);
    let honest =
        rows.iter().filter(|row| row.path.as_deref().is_some_and(|path| path.starts_with("/synthetic/")));
    let times: HashSet<(u64, i64)> = honest.map(|row| (row.stream, row.time)).collect();
    assert!(times.len() as u64 > rounds * EVENTS, "their times were not moved: {} are left", times.len());
    let violations: Vec<u64> = losses(&trace)
        .into_iter()
        .filter(|(place, _)| place == "abi_violation")
        .map(|(_, count)| count)
        .collect();
    assert!(violations.len() as u64 >= rounds / 2, "{violations:?}");
    for remark in ["lane quarantined", "segment truncated", "file ignored"] {
        assert!(said.contains(remark), "the log-client did not say `{remark}`");
    }
}

#[test]
fn files_that_no_producer_creates_are_ignored() {
    const EVENTS: u64 = 2000;
    let mut node = Node::start("files");
    // A running process: the log-client cannot know that these files are not its own.
    let pid = std::process::id();
    let mut names = (0..).map(|nonce| forged::path(&node.dir, pid, nonce));
    let mut next = || names.next().unwrap();
    let victim = node.trace.with_file_name("victim");
    fs::write(&victim, "not yours").unwrap();

    let fifo = next();
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let link = next();
    symlink(&victim, &link).unwrap();
    let folder = next();
    fs::create_dir(&folder).unwrap();
    let socket = next();
    let _listener = UnixListener::bind(&socket).unwrap();
    let huge = next();
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let mut odd = vec![fifo, link, folder, socket];
    if rustix::process::geteuid().is_root() {
        let device = next();
        match mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), 1 << 8 | 3) {
            Ok(()) => odd.push(device),
            Err(error) => eprintln!("NOT TESTED, device nodes: {error}"),
        }
    } else {
        eprintln!("NOT TESTED without root: device nodes");
    }
    let unreadable = next();
    fs::write(&unreadable, [0; 8192]).unwrap();
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
    for bytes in [0, 7, 100, 8192] {
        fs::write(next(), vec![0; bytes]).unwrap();
    }
    // Valid except for the name: another process, another nonce.
    let other = Forged::new(&node.dir, pid, 0x1000).unwrap();
    fs::rename(other.path(), forged::path(&node.dir, 1, 0x1000)).unwrap();
    let other_nonce = Forged::new(&node.dir, pid, 0x1001).unwrap();
    fs::rename(other_nonce.path(), forged::path(&node.dir, pid, 0x1002)).unwrap();
    // A file whose name is not that of a segment is ignored.
    fs::write(node.dir.join("1-00000000000000FF.seg"), [0; 100]).unwrap();
    fs::write(node.dir.join("notes.txt"), "hello").unwrap();

    node.honest(EVENTS);
    node.is_alive();
    drop((other, other_nonce));
    // Files that no process has open are removed. Entries that are not files remain.
    until("dead files are removed", || node.segments().len() == odd.len() + 1);
    for path in &odd {
        assert!(path.symlink_metadata().is_ok(), "{} is gone", path.display());
    }
    node.honest(EVENTS);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "not yours");
    assert_eq!(fs::read_to_string(node.dir.join("notes.txt")).unwrap(), "hello");
    let (trace, said) = node.end();
    judge(&events(&trace), 2, EVENTS);
    for remark in ["not a regular file", "too large", "its header does not match its name"] {
        assert!(said.contains(remark), "no `{remark}` in:\n{said}");
    }
}

#[test]
fn forged_segment_is_not_attributed_to_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED without root: segments of other users");
        return;
    }
    const NONCE: u64 = 0xabc;
    const EVENTS: u64 = 1000;
    let node = Node::start("users");
    let forge = |user: Option<u32>, records: u64, pid: u32, nonce: u64| {
        let words = ["forge".to_owned(), records.to_string(), pid.to_string(), nonce.to_string()];
        let mut command = node.command(env!("CARGO_BIN_EXE_hostile"), &words);
        if user.is_some() {
            as_nobody(&mut command);
        }
        let forged = Background::start(&mut command);
        until("the segment is there", || forged.printed().contains("forged"));
        forged
    };
    // A process of root, and a process of another user that claims its process id.
    let mut idle = Command::new("sleep");
    let living = Background::start(idle.arg("1000"));
    let liar = forge(Some(NOBODY), 7, living.id(), 1);
    until("the log-client has detected the forged owner", || {
        node.client.printed().contains("another user's process")
    });
    assert!(forged::path(&node.dir, living.id(), 1).exists(), "as long as a process holds it");
    drop(liar);
    until("the forged segment is removed with its creator", || node.segments().is_empty());

    // A process of root that has ended, and a user who takes its process id: the file still belongs
    // to the user.
    let mut past = forge(None, 5, 3_999_999, NONCE);
    assert_eq!(forged::path(&node.dir, 3_999_999, NONCE).symlink_metadata().map_or(0, |file| file.uid()), 0);
    until("the log-client has read it, since there is no such process", || node.segments().is_empty());
    assert!(past.running());
    drop(past);
    let heir = forge(Some(NOBODY), 9, 3_999_999, NONCE);
    until("the log-client has read this, too", || node.segments().is_empty());
    drop(heir);
    node.honest(EVENTS);
    let (trace, _) = node.end();
    let rows = events(&trace);
    judge(&rows, 1, EVENTS);
    let of = |process: u64| rows.iter().filter(|row| row.process == process).count();
    let mut claims: Vec<(u32, usize)> = users(&trace)
        .into_iter()
        .filter(|(_, _, pid)| *pid == 3_999_999)
        .map(|(process, uid, _)| (uid, of(process)))
        .collect();
    claims.sort_unstable();
    assert_eq!(claims, [(0, 5), (NOBODY, 9)]);
    let lies =
        users(&trace).into_iter().filter(|(_, uid, pid)| *uid == NOBODY && *pid == living.id()).count();
    assert_eq!(lies, 0, "the forged owner is not in the trace");
}

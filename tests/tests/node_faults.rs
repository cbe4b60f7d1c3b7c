//! Faults of a node and their records in the trace: a damaged spool, a stop with a full spool,
//! programs that record undefined operations or old times, users other than root, a flight recorder
//! with old files.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use miot_proto::event::flag;
use miot_tests::built::built;
use miot_tests::daemons::{client_command, free_port, preloaded, server};
use miot_tests::process::{Background, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::tmpfs::as_nobody;
use miot_tests::traced::{assert_good, events};
use miot_trace_store::{Reader, Table};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A node whose daemons are started and killed by the test.
struct Node {
    place: PathBuf,
    trace: PathBuf,
    dir: PathBuf,
    port: u16,
    shared: tempfile::TempDir,
}

impl Node {
    fn new(name: &str) -> Node {
        let place = fresh(&format!("node-faults-{name}"));
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (trace, dir) = (place.join("trace"), shared.path().join("miot"));
        Node { place, trace, dir, port: free_port(), shared }
    }

    fn server(&self) -> Background {
        server(self.port, &self.trace)
    }

    fn client(&self) -> Background {
        let mut command = client_command(&format!("127.0.0.1:{}", self.port), "node", &self.dir);
        command.args(["--when-full", "wait", "--spool-dir"]).arg(self.spool());
        command.env("MIOT_CLIENT_SPOOL_BYTES", "16 MiB").env("MIOT_CLIENT_HTTP", "off");
        // Long enough to deliver everything, even on a busy machine.
        at_work(command.env("MIOT_CLIENT_STOP", "100s"))
    }

    fn recorder(&self) -> Background {
        let mut command = client_command(&format!("127.0.0.1:{}", self.port), "node", &self.dir);
        command.env("MIOT_CLIENT_FLIGHT_RECORDER", "true").env("MIOT_CLIENT_HTTP", "off");
        at_work(&mut command)
    }

    /// Starts a log-client whose programs wait only briefly for free slots, and that stops quickly.
    fn impatient_client(&self) -> Background {
        let mut command = client_command(&format!("127.0.0.1:{}", self.port), "node", &self.dir);
        command.args(["--when-full", "wait", "--spool-dir"]).arg(self.spool());
        command.env("MIOT_CLIENT_SPOOL_BYTES", "16 MiB").env("MIOT_CLIENT_HTTP", "off");
        at_work(command.env("MIOT_CLIENT_WAIT", "2s").env("MIOT_CLIENT_STOP", "1s"))
    }

    fn spool(&self) -> PathBuf {
        self.shared.path().join("spool")
    }

    fn spooled(&self) -> Vec<PathBuf> {
        self.files(&self.spool(), "spool")
    }

    /// Segments of programs. They are removed when all their events have been taken.
    fn segments(&self) -> Vec<PathBuf> {
        self.files(&self.dir, "seg")
    }

    fn files(&self, folder: &Path, suffix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|of| of == suffix)).collect();
        files.sort();
        files
    }

    /// Records this number of requests and one open on each of two threads.
    fn produce(&self, events: u64) -> u64 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_producer"));
        let said = run(command.args(["2", &events.to_string()]).env("MIOT_DIR", &self.dir)).success().stdout;
        assert_eq!(said.lines().filter(|line| line.ends_with(" 0")).count(), 2, "refused: {said}");
        2 * (events + 1)
    }

    fn faulty(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
        command.args(words).env("MIOT_DIR", &self.dir);
        command
    }

    /// Totals of the trace, and losses by place.
    fn stat(&self) -> (Value, BTreeMap<String, u64>) {
        let mut stat = Command::new(&built().miot);
        let said = run(stat.args(["stat", "--format", "json"]).arg(&self.trace)).success().stdout;
        let report: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        let mut lost = BTreeMap::new();
        for row in report["losses"].as_array().unwrap() {
            *lost.entry(row["place"].as_str().unwrap().to_owned()).or_default() +=
                row["count"].as_u64().unwrap();
        }
        (report["totals"].clone(), lost)
    }
}

/// Starts a log-client and waits until it reads. The control page of its predecessor is ignored.
fn at_work(command: &mut Command) -> Background {
    let mut client = Background::start(command);
    until("the log-client sweeps", || {
        assert!(client.running(), "log-client ended\n{}", client.printed());
        client.printed().contains(" recording ")
    });
    client
}

/// Finished processes are in a spool that no log-server has taken. Then the log-client is killed
/// and the spool is damaged.
#[test]
fn damaged_spool_is_delivered_or_counted_to_the_event() {
    type Harm = fn(&[PathBuf]);
    fn largest(files: &[PathBuf]) -> &PathBuf {
        files.iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap()
    }
    let cut: Harm = |files| {
        let last = largest(files);
        let length = last.metadata().unwrap().len();
        fs::File::options().write(true).open(last).unwrap().set_len(length / 2).unwrap();
    };
    let garbage: Harm = |files| {
        let length = largest(files).metadata().unwrap().len();
        let bytes: Vec<u8> = (0..length).map(|at| ((at * 2_654_435_761) >> 7) as u8).collect();
        fs::write(largest(files), bytes).unwrap();
    };
    let headless: Harm = |files| {
        let file = fs::File::options().write(true).open(largest(files)).unwrap();
        file.write_all_at(&[0; 72], 0).unwrap();
    };
    let gone: Harm = |files| files.iter().for_each(|file| fs::remove_file(file).unwrap());
    for (name, harm) in [("cut", cut), ("garbage", garbage), ("headless", headless), ("gone", gone)] {
        let node = Node::new(&format!("spool-{name}"));
        let client = node.client();
        let recorded: u64 = (0..3).map(|_| node.produce(20_000)).sum();
        until("everything is in the spool", || node.segments().is_empty());
        drop(client.stop(Signal::KILL));
        harm(&node.spooled());
        let server = node.server();
        let client = node.client();
        let said = client.end();
        server.end();
        let (totals, lost) = node.stat();
        let arrived = totals["events"].as_u64().unwrap();
        let places: Vec<&str> = lost.keys().map(String::as_str).collect();
        assert_eq!(places, ["spool_damaged"], "{name}: {lost:?}");
        assert_eq!(arrived + lost["spool_damaged"], recorded, "{name}: {arrived} arrived\n{said}");
        assert!(said.contains("spool_damaged"), "{name}: {said}");
        assert_good(&node.trace);
    }
}

/// If no other node sends events, no event of a clean stop with a full spool is late, and no time
/// is moved.
#[test]
fn times_are_unchanged_after_a_stop_with_a_full_spool() {
    let node = Node::new("full-stop");
    let client = node.impatient_client();
    // More than the spool holds. The rest stays in the lanes or is lost there.
    let _ = run(&mut node.faulty(&["notes", "8000"])).success();
    assert_eq!(node.segments().len(), 1, "its segment has not been read to the end");
    let said_first = client.end();
    assert!(said_first.contains("records left in the lanes"), "{said_first}");
    let server = node.server();
    let client = node.client();
    let said = client.end();
    server.end();
    let rows = events(&node.trace);
    let mut at: HashMap<i64, u64> = HashMap::new();
    rows.iter().for_each(|row| *at.entry(row.time).or_default() += 1);
    let most = at.values().max().copied().unwrap();
    let (totals, lost) = node.stat();
    let lost: u64 = lost.values().sum();
    assert_eq!(rows.len() as u64 + lost, 8000);
    assert!(rows.len() > 3000, "{}", rows.len());
    assert!(most < 10, "{most} events at one time\n{said}");
    assert_eq!((totals["times_moved"].as_u64(), said.contains("clamped=0")), (Some(0), true), "{said}");
    assert!(rows.iter().all(|row| row.flags & u64::from(flag::MOVED) == 0));
}

#[test]
fn undefined_layers_and_operations_are_refused() {
    const COUNT: u64 = 300;
    let node = Node::new("undefined");
    let server = node.server();
    let client = node.client();
    let _ = run(&mut node.faulty(&["undefined", &COUNT.to_string()])).success();
    let recorded = node.produce(5000);
    until("everything was taken", || node.segments().is_empty());
    client.end();
    server.end();
    assert_good(&node.trace);
    let rows = events(&node.trace);
    // Of 256 layers 7 are defined, each with an operation 1.
    let of =
        |own: bool| rows.iter().filter(|row| (row.path.is_some() || row.op == "open") == own).count() as u64;
    assert_eq!(rows.len() as u64, recorded + COUNT * 8, "{} of the ordinary program", of(true));
    let layers: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.layer.as_str()).collect();
    assert_eq!(layers.len(), 7, "{layers:?}");
    // Each once: the number in the stream has the place of the violation, and there is no gap
    // beside it.
    let (_, lost) = node.stat();
    let refused = COUNT * (249 + 1);
    assert_eq!(
        lost.into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
        [("abi_violation".to_owned(), refused)]
    );
    assert_eq!(numbers_of_losses(&node.trace), refused);
    let fsck = run(Command::new(&built().miot).arg("fsck").arg(&node.trace)).success().stdout;
    assert!(fsck.contains(&format!("{refused} lost")), "{fsck}");
    assert!(fsck.contains("complete except for recorded losses"), "{fsck}");
}

/// Attempt numbers that the rows of `losses` name. Each row has a stream and a range.
fn numbers_of_losses(trace: &Path) -> u64 {
    let mut numbers = 0;
    for batch in Reader::open(trace).unwrap().table(Table::Losses).unwrap() {
        let of = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().clone();
        let (stream, first, last) = (of("stream"), of("first_seq"), of("last_seq"));
        assert_eq!(stream.null_count() + first.null_count() + last.null_count(), 0, "{batch:?}");
        numbers += (0..batch.num_rows()).map(|row| last.value(row) - first.value(row) + 1).sum::<i64>();
    }
    numbers.cast_unsigned()
}

#[test]
fn event_with_a_moved_time_is_marked_and_counted() {
    let node = Node::new("moved");
    let server = node.server();
    let client = node.client();
    let _ = run(&mut node.faulty(&["past", "50"])).success();
    until("everything was taken", || node.segments().is_empty());
    let said = client.end();
    server.end();
    assert_good(&node.trace);
    let marked = events(&node.trace).iter().filter(|row| row.flags & u64::from(flag::MOVED) != 0).count();
    let (totals, _) = node.stat();
    assert_eq!((marked, totals["times_moved"].as_u64()), (50, Some(50)), "{said}");
    let mut stat = Command::new(&built().miot);
    let text = run(stat.arg("stat").arg(&node.trace)).success().stdout;
    assert!(text.contains("with a time that was moved") && text.contains(": 50 events"), "{text}");
}

#[test]
fn log_client_of_root_records_other_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let node = Node::new("users");
    let server = node.server();
    let client = node.client();
    let mode = || fs::metadata(&node.dir).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o1777);
    let mut command = node.faulty(&["undefined", "1"]);
    let _ = run(as_nobody(&mut command)).success();
    until("everything was taken", || node.segments().is_empty());
    client.end();
    // As an earlier version created it.
    fs::set_permissions(&node.dir, fs::Permissions::from_mode(0o700)).unwrap();
    let client = node.client();
    assert_eq!(mode(), 0o1777);
    client.end();
    server.end();
    assert_eq!(events(&node.trace).len(), 8);

    // A directory with other files is unchanged.
    let other = node.shared.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("secret"), "").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = client_command(&format!("127.0.0.1:{}", node.port), "node", &other);
    let said = at_work(command.env("MIOT_CLIENT_HTTP", "off").env("MIOT_CLIENT_STOP", "1s")).end();
    assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(said.contains("programs of other users are not recorded"), "{said}");
}

#[test]
fn flight_recorder_knows_files_opened_long_ago() {
    let node = Node::new("recorder");
    let server = node.server();
    let client = node.recorder();
    let file = node.place.join("long-lived");
    let mut command = preloaded(env!("CARGO_BIN_EXE_faulty"), &node.dir);
    command.arg("long-lived").arg(&file).arg("5000").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut stdin = program.stdin.take().unwrap();
    let mut snapshot = |go_on: bool| {
        let _ = lines.next().unwrap().unwrap();
        let mut ctl = Command::new(&built().miot);
        let _ = run(ctl.args(["ctl", "--dir"]).arg(&node.dir).arg("snapshot")).success();
        if go_on {
            stdin.write_all(b"go on\n").unwrap();
        }
    };
    snapshot(true);
    snapshot(true);
    assert!(program.wait().unwrap().success());
    until("everything was taken", || node.segments().is_empty());
    client.end();
    server.end();
    let rows: Vec<_> = events(&node.trace).into_iter().filter(|row| row.op == "pwrite").collect();
    let nameless = rows.iter().filter(|row| row.path.is_none()).count();
    assert!((700..=1024).contains(&rows.len()), "two snapshots of a lane: {}", rows.len());
    assert_eq!(nameless, 0, "of {}", rows.len());
    assert!(rows.iter().all(|row| row.path.as_deref() == file.to_str()));
}

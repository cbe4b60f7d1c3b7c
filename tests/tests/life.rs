//! Processes and threads start and end in every way. Their requests are in the trace once, no
//! segment remains in shared memory, and losses are counted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use miot_proto::event::flag;
use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::daemons::{free_port, preloaded, server, started};
use miot_tests::process::{Background, Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use miot_trace_store::{Reader, Table};
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A node: both daemons, a directory in shared memory, the program, and its working directory.
struct Node {
    top: PathBuf,
    shared: tempfile::TempDir,
    program: PathBuf,
    port: u16,
    server: Background,
    client: Option<Background>,
    settings: Vec<(&'static str, &'static str)>,
}

/// Contents of a trace.
struct Outcome {
    rows: Vec<PrintedEvent>,
    /// Lost events by place.
    lost: HashMap<String, u64>,
}

impl Node {
    fn new(name: &str) -> Node {
        Node::with(name, &[("WHEN_FULL", "wait")])
    }

    /// Starts a node. `settings` are those of the log-client, by the names of their variables.
    fn with(name: &str, settings: &[(&'static str, &'static str)]) -> Node {
        let top = fresh(&format!("life-{name}"));
        fs::create_dir(top.join("work")).unwrap();
        let program = compile(&top, "life", &["life.c"], &[]);
        let port = free_port();
        let server = server(port, &top.join("trace"));
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut node = Node { top, shared, program, port, server, client: None, settings: settings.into() };
        node.start_client();
        node
    }

    fn start_client(&mut self) {
        let _ = fs::remove_file(self.dir().join(miot_proto::control::FILE));
        let mut command = Command::new(&built().log_client);
        command.args(["--node", "life", "--server", &format!("127.0.0.1:{}", self.port)]);
        command.arg("--dir").arg(self.dir());
        for (name, value) in &self.settings {
            command.env(format!("MIOT_CLIENT_{name}"), value);
        }
        self.client = Some(started(&mut command, &self.dir()));
    }

    fn kill_client(&mut self) {
        drop(self.client.take().unwrap().stop(Signal::KILL));
    }

    fn dir(&self) -> PathBuf {
        self.shared.path().join("miot")
    }

    fn work(&self) -> PathBuf {
        self.top.join("work")
    }

    /// Command of the traced program.
    fn life(&self, words: &[&str]) -> Command {
        self.traced(self.program.to_str().unwrap(), words)
    }

    fn traced(&self, program: &str, words: &[&str]) -> Command {
        let mut command = preloaded(program, &self.dir());
        command.args(words).current_dir(self.work());
        command
    }

    fn segments(&self) -> usize {
        let names = fs::read_dir(self.dir()).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with(miot_proto::segment::SUFFIX)).count()
    }

    /// Waits for a file that a program creates.
    fn until_there(&self, name: &str) {
        until(name, || self.work().join(name).exists());
    }

    /// After the end of all programs: waits until no segment remains, stops the daemons, and reads
    /// the trace.
    fn finish(mut self) -> Outcome {
        until("no segment is left", || self.segments() == 0);
        self.client.take().unwrap().end();
        let (status, text) = self.server.stop(Signal::INT);
        assert!(status.success(), "log-server: {status}\n{text}");
        let trace = self.top.join("trace");
        assert_good(&trace);
        let mut lost = HashMap::new();
        for batch in Reader::open(&trace).unwrap().table(Table::Losses).unwrap() {
            let places = batch.column_by_name("place").unwrap().as_string::<i32>();
            let counts = miot_trace_store::schema::column::<UInt64Type>(&batch, "count").unwrap();
            for row in 0..batch.num_rows() {
                *lost.entry(places.value(row).to_owned()).or_default() += counts.value(row);
            }
        }
        Outcome { rows: events(&trace), lost }
    }
}

impl Outcome {
    /// Number of successful writes to a file of this name, by process.
    fn writes(&self, name: &str) -> HashMap<u64, u64> {
        let mut writes = HashMap::new();
        for row in self.of(name).filter(|row| row.op == "write" && row.result == 1) {
            *writes.entry(row.process).or_default() += 1;
        }
        writes
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &PrintedEvent> {
        let end = format!("/{name}");
        self.rows.iter().filter(move |row| row.path.as_deref().is_some_and(|path| path.ends_with(&end)))
    }

    fn all_writes(&self, name: &str) -> u64 {
        self.writes(name).values().sum()
    }

    fn interrupted(&self) -> Vec<&PrintedEvent> {
        self.rows.iter().filter(|row| row.flags & u64::from(flag::INTERRUPTED) != 0).collect()
    }

    /// Checks that no event was lost and no request was cut off.
    #[track_caller]
    fn complete(&self) {
        assert_eq!(self.lost, HashMap::new());
        assert_eq!(self.interrupted(), Vec::<&PrintedEvent>::new());
    }
}

fn succeeds(command: &mut Command) -> Ended {
    run(command).success()
}

#[test]
fn short_programs_of_a_shell_loop_are_recorded() {
    let programs: u64 = std::env::var("MIOT_LIFE_PROGRAMS").map_or(2000, |n| n.parse().unwrap());
    let node = Node::new("short");
    // Two loops at a time, so that processes overlap.
    let script = "i=0; while [ $i -lt $2 ]; do $1 short one || exit 1; i=$((i + 1)); done";
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let half = (programs / 2).to_string();
            let words = ["-c", script, "sh", node.program.to_str().unwrap(), &half];
            let mut shell = node.traced("sh", &words);
            scope.spawn(move || drop(succeeds(&mut shell)));
        }
    });
    let outcome = node.finish();
    outcome.complete();
    let mut ops = HashMap::new();
    for row in outcome.of("one") {
        *ops.entry(row.op.as_str()).or_insert(0) += 1;
    }
    let expected = ["open", "pwrite", "pread", "close", "stat"].map(|op| (op, programs / 2 * 2));
    assert_eq!(ops, HashMap::from(expected));
    let processes: HashSet<u64> = outcome.of("one").map(|row| row.process).collect();
    assert_eq!(processes.len() as u64, programs / 2 * 2);
}

#[test]
fn thousands_of_short_threads_share_lanes() {
    const LANES: usize = miot_proto::segment::MAX_LANES;
    let (waves, width) = (LANES as u64 * 3 / 32, 32);
    let node = Node::new("threads");
    drop(succeeds(&mut node.life(&["threads", &waves.to_string(), &width.to_string()])));
    let outcome = node.finish();
    assert_eq!(outcome.interrupted(), Vec::<&PrintedEvent>::new());
    let streams: HashSet<u64> = outcome.rows.iter().map(|row| row.stream).collect();
    assert!(streams.len() > LANES, "lanes are used again: {} streams", streams.len());
    let files = || (0..width).map(|i| format!("thread-{i}"));
    let seen: u64 = files().map(|name| outcome.of(&name).count() as u64).sum();
    // Requests of a thread that finds no lane are counted one by one.
    let lost = outcome.lost.get("no_lane").copied().unwrap_or(0);
    assert!(seen <= waves * width * 5 && seen + lost >= waves * width * 5, "{seen} seen, {lost} lost");
    assert!(outcome.lost.keys().all(|place| place == "no_lane"), "{:?}", outcome.lost);
}

#[test]
fn tree_of_forks_is_recorded() {
    let node = Node::new("tree");
    drop(succeeds(&mut node.life(&["tree", "3", "3"])));
    let outcome = node.finish();
    outcome.complete();
    let mut names = vec!["tree".to_owned()];
    for depth in 0..3 {
        let above: Vec<String> = names.iter().filter(|n| n.matches('-').count() == depth).cloned().collect();
        names.extend(above.iter().flat_map(|name| (0..3).map(move |i| format!("{name}-{i}"))));
    }
    assert_eq!(names.len(), 40);
    for name in &names {
        let writes = outcome.writes(name);
        assert_eq!(writes.values().copied().collect::<Vec<u64>>(), [10], "{name}: one process, ten writes");
    }
}

#[test]
fn vfork_spawn_and_raw_clone_are_recorded() {
    let node = Node::new("makers");
    drop(succeeds(&mut node.life(&["makers"])));
    let outcome = node.finish();
    outcome.complete();
    for (name, processes) in [("between", 1), ("vforked", 100), ("spawned", 100)] {
        assert_eq!(outcome.of(name).count(), 500, "{name}");
        let seen: HashSet<u64> = outcome.of(name).map(|row| row.process).collect();
        assert_eq!(seen.len(), processes, "{name}");
    }
    let cloned = outcome.writes("cloned");
    assert_eq!((cloned.len(), cloned.values().sum::<u64>()), (100, 1000));
}

#[test]
fn daemon_that_closes_everything_is_recorded() {
    let node = Node::new("daemonize");
    drop(succeeds(&mut node.life(&["daemonize", "late"])));
    // The parent ends long before the daemon.
    until("the daemon is done", || fs::metadata(node.work().join("late")).is_ok_and(|file| file.len() == 50));
    until("the daemon has ended", || node.segments() == 0);
    let outcome = node.finish();
    outcome.complete();
    assert_eq!((outcome.all_writes("before"), outcome.all_writes("late")), (10, 100));
}

#[test]
fn descriptors_are_unchanged() {
    let node = Node::new("descriptors");
    let traced = succeeds(&mut node.life(&["descriptors"]));
    let plain = succeeds(Command::new(&node.program).arg("descriptors").current_dir(node.work()));
    assert_eq!(traced.stdout, plain.stdout);
    assert_eq!(node.finish().all_writes("some"), 10);
}

#[test]
fn requests_that_never_return_are_cut_off() {
    for how in ["exec", "exit", "_exit", "kill", "return", "cancel"] {
        let node = Node::new(&format!("hang-{how}"));
        let ended = run(&mut node.life(&["hang", how, "3"]));
        assert_eq!(ended.code(), if how == "kill" { 137 } else { 0 }, "{how}: {}", ended.stderr);
        let outcome = node.finish();
        assert_eq!(outcome.lost, HashMap::new(), "{how}");
        assert_eq!(outcome.all_writes("beside"), 100, "{how}");
        let hung = if ["return", "cancel"].contains(&how) { 0 } else { 3 };
        let cut: Vec<_> = outcome.interrupted().iter().map(|row| (row.op.clone(), row.result)).collect();
        assert_eq!(cut, vec![("flock".to_owned(), -4); hung], "{how}");
        let handles: HashSet<_> = outcome.interrupted().iter().map(|row| (row.handle, row.arg)).collect();
        assert_eq!(handles.len(), hung, "{how}: each names its own file");
        assert!(handles.iter().all(|(handle, _)| handle.is_some()), "{how}: {handles:?}");
        let returned = outcome.rows.iter().filter(|row| row.op == "flock" && row.result == 0).count();
        // Those of the main thread and of each thread that got the lock, which is released in turn.
        let expected = if hung == 0 { 2 + 3 + 3 * 3 } else { 1 };
        assert_eq!(returned, expected, "{how}");
        assert_eq!(outcome.of("executed").count(), if how == "exec" { 5 } else { 0 });
    }
}

#[test]
fn filtered_requests_are_not_cut_off() {
    let node = Node::new("unrecorded");
    assert_eq!(run(&mut node.life(&["unrecorded"])).code(), 137);
    let outcome = node.finish();
    outcome.complete();
    assert_eq!(outcome.all_writes("beside"), 100);
}

#[test]
fn processes_with_the_same_id_are_separate() {
    let mut node = Node::new("reuse");
    // Read continuously, and all at once.
    for stopped in [false, true] {
        let client = node.client.as_ref().unwrap().id();
        let send = |signal| {
            let pid = rustix::process::Pid::from_raw(client as i32).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        };
        if stopped {
            send(Signal::STOP);
        }
        let ended = run(&mut node.life(&["reuse", "8"]));
        if stopped {
            send(Signal::CONT);
        }
        if ended.code() == 3 {
            eprintln!(
                "PROCESSES OF THE SAME NUMBER ARE NOT TESTED: /proc/sys/kernel/ns_last_pid cannot be set"
            );
            node.kill_client();
            return;
        }
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        until("no segment is left", || node.segments() == 0);
    }
    let outcome = node.finish();
    outcome.complete();
    let writes = outcome.writes("reused");
    assert_eq!((writes.len(), writes.values().sum::<u64>()), (16, 160));
    let pids: HashSet<u32> = outcome.of("reused").map(|row| row.pid).collect();
    assert!(pids.len() <= 2, "{pids:?}");
}

#[test]
fn handlers_at_a_high_rate_are_recorded_or_counted() {
    const WRITES: u64 = 100_000;
    let node = Node::new("signals");
    let ended = succeeds(&mut node.life(&["signals", &WRITES.to_string()]));
    let handled: u64 = ended.stdout.trim().parse().unwrap();
    let outcome = node.finish();
    assert_eq!(outcome.all_writes("main"), WRITES);
    // A handler that runs while its thread writes a record is counted instead.
    let nested = outcome.lost.get("nested").copied().unwrap_or(0);
    assert_eq!(outcome.all_writes("in-handler") + nested, handled, "lost: {:?}", outcome.lost);
    assert!(outcome.lost.keys().all(|place| place == "nested"), "{:?}", outcome.lost);
    assert_eq!(outcome.interrupted(), Vec::<&PrintedEvent>::new());
    println!("{handled} handlers, {nested} counted as nested");
}

#[test]
fn handlers_that_never_return_do_no_harm() {
    let node = Node::new("jumps");
    // Fewer threads than lanes: a thread that jumped out of a record keeps its lane.
    let ended = succeeds(&mut node.life(&["jumps", "100"]));
    let written: u64 = ended.stdout.trim().parse().unwrap();
    let outcome = node.finish();
    assert_eq!(outcome.all_writes("after"), 1000, "the other threads continue");
    let seen = outcome.all_writes("jumps");
    println!(
        "{seen} of {written} writes seen, {} cut off, lost: {:?}",
        outcome.interrupted().len(),
        outcome.lost
    );
    assert!((1..=written).contains(&seen), "{seen} of {written}");
    assert!(outcome.lost.keys().all(|place| place == "nested"), "{:?}", outcome.lost);
}

/// A handler jumps out of a request at each of its instructions. All later requests of the thread
/// are in the trace or counted.
#[test]
fn requests_left_by_a_handler_do_no_harm() {
    for (name, by_stream) in [("a write", "0"), ("a read of a stream", "1")] {
        let node = Node::new(&format!("leaves-{by_stream}"));
        let ended = succeeds(&mut node.life(&["leaves", "300", by_stream]));
        let written: u64 = ended.stdout.trim().parse().unwrap();
        let outcome = node.finish();
        let nested = outcome.lost.get("nested").copied().unwrap_or(0);
        let seen = outcome.all_writes("later");
        println!("{name}: {seen} of {written} writes seen, {nested} counted as nested");
        assert_eq!(seen + nested, written, "{name}");
        assert!(outcome.lost.keys().all(|place| place == "nested"), "{name}: {:?}", outcome.lost);
        // A thread that was interrupted in a record records nothing more. Others continue.
        assert_eq!(nested % 20, 0, "{name}");
        assert!(nested > 0 && seen > nested, "{name}: {seen} seen, {nested} nested");
    }
}

/// A handler records a request at each instruction of another one. Each is in the trace, or counted
/// as nested.
#[test]
fn requests_of_handlers_take_nothing_from_others() {
    let node = Node::new("visits");
    let ended = succeeds(&mut node.life(&["visits", "200"]));
    let written: Vec<u64> = ended.stdout.split_whitespace().map(|count| count.parse().unwrap()).collect();
    let outcome = node.finish();
    let nested = outcome.lost.get("nested").copied().unwrap_or(0);
    println!("{written:?} writes, {nested} counted as nested");
    assert_eq!(outcome.lost.keys().collect::<Vec<_>>(), ["nested"], "{:?}", outcome.lost);
    assert_eq!(outcome.all_writes("visited"), written[0]);
    assert_eq!(outcome.all_writes("visitor") + nested, written[1]);
    assert!(written[1] == 200 && (1..150).contains(&nested), "{written:?}, {nested} nested");
}

#[test]
fn libraries_can_be_loaded_and_unloaded() {
    let node = Node::new("load");
    let library = compile(&node.top, "libcaller.so", &["life.c"], &["-DLIBRARY", "-shared", "-fPIC"]);
    drop(succeeds(&mut node.life(&["load", library.to_str().unwrap()])));
    let outcome = node.finish();
    outcome.complete();
    for name in ["lib-loaded", "lib-called", "lib-unloaded"] {
        assert_eq!(outcome.all_writes(name), 100, "{name}");
    }
}

#[test]
fn any_order_of_deaths_is_handled() {
    let mut node = Node::new("deaths");
    let open = |node: &Node, gate: &str| fs::write(node.work().join(gate), "").unwrap();
    let survivor = Background::start(&mut node.life(&["steps", "survivor"]));
    let victim = Background::start(&mut node.life(&["steps", "victim"]));
    for name in ["survivor", "victim"] {
        open(&node, &format!("{name}-0"));
        node.until_there(&format!("{name}-done-0"));
    }
    // Without a reader: both continue, and one is killed.
    node.kill_client();
    for name in ["survivor", "victim"] {
        open(&node, &format!("{name}-1"));
        node.until_there(&format!("{name}-done-1"));
    }
    drop(victim.stop(Signal::KILL));
    node.start_client();
    open(&node, "survivor-2");
    node.until_there("survivor-done-2");
    until("the victim's segment is gone", || node.segments() == 1);
    // Now kill both at once.
    node.kill_client();
    drop(survivor.stop(Signal::KILL));
    node.start_client();
    let outcome = node.finish();
    outcome.complete();
    assert_eq!((outcome.all_writes("survivor"), outcome.all_writes("victim")), (300, 200));
}

/// More segments of dead processes than a short-lived log-client can process. Each log-client makes
/// progress.
#[test]
fn short_lived_log_clients_process_thousands_of_segments() {
    let programs: u64 = std::env::var("MIOT_LIFE_LEFT").map_or(2400, |n| n.parse().unwrap());
    let mut node = Node::new("left");
    // Recording continues without a reader.
    node.kill_client();
    let script = "i=0; while [ $i -lt $2 ]; do $1 short one || exit 1; i=$((i + 1)); done";
    let words = ["-c", script, "sh", node.program.to_str().unwrap(), &programs.to_string()];
    drop(succeeds(&mut node.traced("sh", &words)));
    let (all, mut lives) = (node.segments(), Vec::new());
    assert!(all as u64 >= programs, "{all} segments");
    while node.segments() > 0 {
        node.start_client();
        std::thread::sleep(Duration::from_millis(150));
        node.kill_client();
        lives.push(node.segments());
        assert!(lives.len() < 100, "{lives:?} segments left after each life");
    }
    println!("{all} segments; after each life of 150 ms {lives:?}");
    node.start_client();
    let outcome = node.finish();
    outcome.complete();
    let processes: HashSet<u64> = outcome.of("one").map(|row| row.process).collect();
    assert_eq!(processes.len() as u64, programs);
    assert_eq!(outcome.of("one").count() as u64, 5 * programs);
}

#[test]
fn requests_beyond_the_process_budget_are_counted() {
    // Space for two of the smallest lanes.
    let node = Node::with(
        "budget",
        &[("LANE_SLOTS", "512"), ("LANE_SLOTS_MAX", "512"), ("PROCESS_BYTES", "400KiB")],
    );
    drop(succeeds(&mut node.life(&["threads", "4", "16"])));
    let outcome = node.finish();
    let seen: u64 = (0..16).map(|i| outcome.of(&format!("thread-{i}")).count() as u64).sum();
    let lost = outcome.lost.get("no_lane").copied().unwrap_or(0);
    println!("{seen} seen, {lost} lost");
    assert!(seen < 4 * 16 * 5 && seen + lost >= 4 * 16 * 5, "{seen} seen, {lost} lost");
}

#[test]
fn processes_beyond_the_limit_wait_to_be_read() {
    let node = Node::with("beyond", &[("SEGMENTS", "4"), ("WHEN_FULL", "wait")]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut tree = node.life(&["tree", "2", "3"]);
            scope.spawn(move || drop(succeeds(&mut tree)));
        }
    });
    let outcome = node.finish();
    outcome.complete();
    let processes: HashSet<u64> = outcome.rows.iter().map(|row| row.process).collect();
    assert_eq!(processes.len(), 4 * 13);
    assert_eq!(outcome.rows.iter().filter(|row| row.op == "write").count(), 4 * 13 * 10);
}

/// A control group that is removed with the test.
struct Group(PathBuf);

impl Group {
    /// Creates a group with this memory limit in bytes. Returns `None` where this is not permitted.
    fn new(bytes: u64) -> Option<Group> {
        let name = format!("miot-life-{}", std::process::id());
        let ways = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        ways.iter().find_map(|(root, limit)| {
            let group = Group(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn memory_limit_causes_no_bus_error() {
    let Some(group) = Group::new(24 << 20) else {
        eprintln!("LIMITS OF MEMORY ARE NOT TESTED: no control group with a memory limit can be made here");
        return;
    };
    let node = Node::with("memory", &[("PROCESS_BYTES", "4MiB"), ("WHEN_FULL", "wait")]);
    let procs = group.0.join("cgroup.procs");
    // A program that fits the limit with the process's budget is not harmed. One that does not fit
    // is killed by the kernel, as without the hook.
    for (megabytes, fits) in [("8", true), ("40", false)] {
        let words = ["-c", "echo $$ > $1 && exec $2 memory $3", "sh"];
        let mut shell = node.traced("sh", &words);
        let ended = run(shell.arg(&procs).arg(&node.program).arg(megabytes));
        assert_eq!(ended.code(), if fits { 0 } else { 128 + 9 }, "{}", ended.stderr);
    }
    let outcome = node.finish();
    assert_eq!(outcome.lost, HashMap::new());
    let seen: usize = (0..16).map(|i| outcome.of(&format!("thread-{i}")).count()).sum();
    assert_eq!(seen, 4 * 16 * 5);
}

#[test]
fn configure_and_make_have_the_same_result() {
    let node = Node::new("make");
    const FILES: usize = 6;
    let prepare = |place: &Path| {
        fs::create_dir_all(place).unwrap();
        for i in 0..FILES {
            fs::write(
                place.join(format!("part{i}.c")),
                format!(
                    "#include <stdio.h>\n#include \"config.h\"\nint part{i}(void) {{ return HAVE_{i}; }}\n"
                ),
            )
            .unwrap();
        }
        let configure = "rm -f config.h; for i in 0 1 2 3 4 5; do echo 'int main(void) { return 0; }' > test.c; \
            if ${CC:-cc} test.c -o test && ./test; then echo \"#define HAVE_$i $i\" >> config.h; fi; rm -f test test.c; done";
        fs::write(place.join("configure"), configure).unwrap();
        let objects: Vec<String> = (0..FILES).map(|i| format!("part{i}.o")).collect();
        let makefile = format!(
            "all: libparts.a\nlibparts.a: {0}\n\tar rcD $@ {0}\n%.o: %.c config.h\n\t$(CC) -c -O1 $< -o $@\n",
            objects.join(" ")
        );
        fs::write(place.join("Makefile"), makefile).unwrap();
    };
    let script = "sh ./configure && make -s -j2";
    let (plain, traced) = (node.top.join("plain/same"), node.top.join("traced/same"));
    prepare(&plain);
    prepare(&traced);
    let without = succeeds(Command::new("sh").args(["-c", script]).current_dir(&plain));
    let with = succeeds(node.traced("sh", &["-c", script]).current_dir(&traced));
    assert_eq!((&with.stdout, &with.stderr), (&without.stdout, &without.stderr));
    for name in ["libparts.a", "config.h"] {
        assert_eq!(fs::read(plain.join(name)).unwrap(), fs::read(traced.join(name)).unwrap(), "{name}");
    }
    let outcome = node.finish();
    outcome.complete();
    for i in 0..FILES {
        assert!(outcome.of(&format!("part{i}.c")).any(|row| row.result >= 0), "the compiler reads part{i}.c");
        assert!(outcome.of(&format!("part{i}.o")).any(|row| row.result >= 0), "a program creates part{i}.o");
    }
    assert!(outcome.of("config.h").filter(|row| row.op == "write").count() >= FILES);
}

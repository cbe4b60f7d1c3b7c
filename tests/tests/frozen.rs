//! Producers that are stopped, also between the completion time of a record and its commit. No
//! event is older than an earlier watermark of its node, none is late and none is lost, and the
//! others wait only for seconds.
//!
//! The random seed is `MIOT_SEED`, which is printed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::control::{DIR_ENV, FILE};
use miot_proto::event::flag;
use miot_tests::built::built;
use miot_tests::daemons::{free_port, server};
use miot_tests::process::{Background, run, until};
use miot_tests::proxy::Proxy;
use miot_tests::random::Random;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

struct Node {
    trace: PathBuf,
    dir: PathBuf,
    server: Background,
    client: Background,
    proxy: Proxy,
    _shared: tempfile::TempDir,
}

impl Node {
    fn start(name: &str) -> Node {
        let place = fresh(&format!("frozen-{name}"));
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let (trace, dir, port) = (place.join("trace"), shared.path().join("miot"), free_port());
        let server = server(port, &trace);
        let proxy = Proxy::start(port).unwrap();
        let mut command = Command::new(&built().log_client);
        command.args(["--when-full", "wait", "--node", "node", "--server"]);
        let client =
            Background::start(command.arg(format!("127.0.0.1:{}", proxy.port)).arg("--dir").arg(&dir));
        until("the log-client has made its control page", || dir.join(FILE).exists());
        until("the log-client has sent a watermark", || proxy.seen().watermark.is_some());
        Node { trace, dir, server, client, proxy, _shared: shared }
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).env(DIR_ENV, &self.dir);
        command
    }

    /// Stops both daemons and returns the events. None is late, and none is older than a watermark.
    fn end(self) -> Vec<PrintedEvent> {
        self.client.end();
        self.server.end();
        let seen = self.proxy.seen();
        assert!(seen.broken.is_empty(), "{} times, such as {}", seen.broken.len(), seen.broken[0]);
        assert_good(&self.trace);
        let rows = events(&self.trace);
        assert_eq!(rows.len() as u64, seen.events);
        assert!(rows.is_sorted_by_key(|row| row.time));
        let late = rows.iter().filter(|row| row.flags & u64::from(flag::LATE) != 0).count();
        assert_eq!(late, 0, "late events");
        rows
    }
}

fn tell(process: &Background, signal: Signal) {
    kill_process(Pid::from_raw(process.id() as i32).unwrap(), signal).unwrap();
}

/// State of a process in `/proc`.
fn state(process: &Background) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
}

#[test]
fn stopped_producer_delivers_no_event_below_a_watermark() {
    const TIMES: usize = 4;
    let node = Node::start("between");
    let words = ["freeze".to_owned(), TIMES.to_string()];
    let words = words.each_ref().map(String::as_str);
    let mut frozen = Background::start(&mut node.command(env!("CARGO_BIN_EXE_hostile"), &words));
    for time in 1..=TIMES {
        until("it has stopped itself", || {
            frozen.printed().lines().count() >= time && frozen.running() && state(&frozen) == 'T'
        });
        // Other programs record, and their events arrive. The watermark does not pass the stop yet.
        let before = node.proxy.seen();
        let _ = run(&mut node.command(env!("CARGO_BIN_EXE_producer"), &["2", "1000"])).success();
        until("the others' events arrive", || node.proxy.seen().events >= before.events + 2002);
        if time < TIMES {
            until("the node repeats its watermark", || node.proxy.seen().repeated >= before.repeated + 2);
        } else {
            until("the node waits no longer", || {
                let seen = node.proxy.seen();
                seen.watermark > Some(seen.latest)
            });
        }
        tell(&frozen, Signal::CONT);
    }
    until("it has ended", || !frozen.running());
    let rows = node.end();
    let its_own = rows.iter().filter(|row| row.pid == frozen.id());
    assert_eq!(its_own.map(|row| row.seq).collect::<Vec<_>>(), (0..TIMES as u64).collect::<Vec<_>>());
    let others =
        rows.iter().filter(|row| row.path.as_deref().is_some_and(|path| path.starts_with("/synthetic/")));
    assert_eq!(others.count(), TIMES * 2 * 1001);
}

#[test]
fn producer_stopped_at_random_loses_no_event() {
    const STOPS: u64 = 300;
    let mut random = Random::new("stops");
    let node = Node::start("anywhere");
    let mut stopped = Background::start(&mut node.command(env!("CARGO_BIN_EXE_producer"), &["3", "100000"]));
    for stop in 0..STOPS {
        if !stopped.running() {
            println!("ended after {stop} stops");
            break;
        }
        tell(&stopped, Signal::STOP);
        std::thread::sleep(random.millis(0, 20));
        tell(&stopped, Signal::CONT);
        std::thread::sleep(Duration::from_micros(random.below(256)));
    }
    until("it has printed everything", || stopped.printed().lines().count() == 3 && !stopped.running());
    let said = stopped.printed();
    assert_eq!(said.lines().filter(|line| line.ends_with(" 0")).count(), 3, "refused: {said}");
    assert_eq!(node.end().len(), 3 * 100_001);
}

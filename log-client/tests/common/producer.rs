//! A synthetic traced program: threads that record requests as fast as they can, or at a given
//! rate.
//!
//! `THREADS EVENTS [PAUSE_US] [killed] [twice] [long]`: each thread records EVENTS requests, every
//! hundredth with a path, and sleeps PAUSE_US after every hundredth. `killed`: the process kills
//! itself when all are recorded, so that no lane is retired. `twice`: repeats all that after a line
//! on standard input. `long`: every request has its own long path, which takes about 1 KiB
//! compressed. Prints the number of recorded requests.
//!
//! A test starts it as a separate process: the test program itself, restricted to this role.

use miot_tracer::{Completion, Ext, begin, end, end_with, op};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Environment variable with the arguments of a producer process.
const PART: &str = "MIOT_TEST_PRODUCER";

/// Starts a producer. The test program must have a test `producer` that calls [`play`].
pub(crate) fn start(dir: &Path, arguments: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["producer", "--exact", "--nocapture"])
        .env(PART, arguments)
        .env("MIOT_DIR", dir.join("shm"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for a producer; returns the number of recorded requests.
pub(crate) fn recorded(child: Child) -> usize {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The test harness prints other lines as well.
    text.lines().find_map(|line| line.strip_prefix("recorded ")?.parse().ok()).unwrap()
}

/// Plays the producer in a process started by [`start`]; does nothing in any other.
pub(crate) fn play() {
    let Ok(text) = std::env::var(PART) else { return };
    let arguments: Vec<&str> = text.split(' ').collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok());
    let (threads, events) = (number(0).unwrap(), number(1).unwrap());
    let pause = number(2).unwrap_or(0);
    let long = arguments.contains(&"long");
    let twice = arguments.contains(&"twice");
    let half_time = Arc::new(Barrier::new(threads as usize + 1));
    let work = move |half_time: Arc<Barrier>| {
        let mut recorded = record(events, pause, long);
        if twice {
            half_time.wait();
            recorded += record(events, pause, long);
        }
        recorded
    };
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let half_time = Arc::clone(&half_time);
            std::thread::spawn(move || work(half_time))
        })
        .collect();
    if twice {
        let _ = std::io::stdin().read_line(&mut String::new());
        half_time.wait();
    }
    let recorded: u64 = threads.into_iter().filter_map(|thread| thread.join().ok()).sum();
    println!("\nrecorded {recorded}");
    if arguments.contains(&"killed") {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

fn record(events: u64, pause: u64, long: bool) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut recorded = 0;
    for i in 0..events {
        let Some(begun) = begin(op::posix::READ) else { continue };
        let done = Completion { handle: 7, offset: i * 4096, length: 4096, result: 4096, flags: 0 };
        let kept = if long || i % 100 == 99 {
            let mut path = format!("/data/file{i}");
            for _ in 0..if long { 128 } else { 0 } {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                path.push_str(&format!("{random:016x}"));
            }
            let kept = end_with(begun, done, &Ext { path1: path.as_bytes(), ..Ext::default() });
            if pause > 0 {
                std::thread::sleep(Duration::from_micros(pause));
            }
            kept
        } else {
            end(begun, done)
        };
        recorded += u64::from(kept);
    }
    recorded
}

//! Records synthetic events at full speed: `producer THREADS EVENTS`, with EVENTS per thread. It
//! prints the checksum of each thread, which the reader of the trace verifies.

use miot_tests::pattern;
use miot_tracer::{Completion, begin, end, op, open};

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [threads, events] = numbers[..] else {
        eprintln!("usage: producer THREADS EVENTS");
        std::process::exit(2);
    };
    let workers: Vec<_> =
        (0..threads).map(|thread| std::thread::spawn(move || work(thread, events))).collect();
    for (thread, worker) in workers.into_iter().enumerate() {
        match worker.join() {
            Ok((sum, refused)) => println!("{thread} {sum} {refused}"),
            Err(_) => std::process::exit(1),
        }
    }
}

/// Records one open and then reads. Returns the checksum and the number of events not taken.
fn work(thread: u64, events: u64) -> (u64, u64) {
    let handle = open(pattern::path(thread).as_bytes());
    let mut refused = u64::from(handle == 0);
    let mut sum = 0;
    for number in 0..events {
        let (offset, length, result) = pattern::event(thread, number);
        sum = pattern::fold(sum, (offset, length, result));
        let done = Completion { handle, offset: offset as u64, length: length as u64, result, flags: 0 };
        refused += u64::from(!begin(op::client::READ).is_some_and(|begun| end(begun, done)));
    }
    (sum, refused)
}

//! Executes commands, one per line, on the threads that they name. It drives the real producer for
//! the steps of `miot_tracer::steps`. After each line it prints whether a record was taken.
//!
//! ```text
//! begin THREAD TAG · enclose THREAD TAG · end THREAD TAG SLOTS
//! file THREAD TAG SLOTS · cancel THREAD · exit THREAD
//! ```

use miot_tracer::steps::{THREADS, paths};
use miot_tracer::{
    Completion, Ext, RequestArgs, StartedRequest, begin_enclosing_on, begin_on, cancel, end, end_with,
    name_file, op,
};
use std::io::{BufRead as _, Write as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A thread, the channel of its commands, and whether each record was taken.
struct Worker {
    thread: JoinHandle<()>,
    orders: Sender<String>,
    answers: Receiver<bool>,
}

impl Worker {
    fn start() -> Worker {
        let ((orders, to_do), (done, answers)) = (channel::<String>(), channel());
        let thread = std::thread::spawn(move || {
            let mut begun = Vec::new();
            while let Ok(order) = to_do.recv() {
                let _ = done.send(obey(&order, &mut begun));
            }
        });
        Worker { thread, orders, answers }
    }
}

fn main() {
    let mut workers: [Option<Worker>; THREADS] = Default::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let thread = line.split(' ').nth(1).and_then(|text| text.parse::<usize>().ok());
        let Some(place) = thread.and_then(|thread| workers.get_mut(thread)) else {
            eprintln!("no such thread: {line}");
            std::process::exit(2);
        };
        let taken = if line.starts_with("exit") {
            if let Some(Worker { thread, orders, .. }) = place.take() {
                drop(orders);
                let _ = thread.join();
            }
            false
        } else {
            let worker = place.get_or_insert_with(Worker::start);
            let _ = worker.orders.send(line);
            worker.answers.recv().unwrap_or(false)
        };
        println!("{}", u8::from(taken));
        let _ = std::io::stdout().flush();
    }
}

fn obey(order: &str, begun: &mut Vec<StartedRequest>) -> bool {
    let words: Vec<&str> = order.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let (tag, slots) = (number(2), number(3));
    let doing = RequestArgs { handle: 1, offset: tag, length: 0 };
    let done = Completion { handle: 1, offset: tag, length: 0, result: 0, flags: 0 };
    match words[0] {
        "begin" => begun.extend(begin_on(op::client::READ, doing)),
        "enclose" => begun.extend(begin_enclosing_on(op::client::OPEN, doing)),
        "cancel" => begun.pop().into_iter().for_each(cancel),
        "end" => {
            let Some(begun) = begun.pop() else { return false };
            if slots == 1 {
                return end(begun, done);
            }
            let (path1, path2) = paths(slots, tag);
            return end_with(begun, done, &Ext { path1: &path1, path2: &path2, ..Ext::default() });
        }
        // A file has one path, and its tag is its handle.
        "file" => return name_file(tag, 0, &paths(slots, tag).0),
        _ => {}
    }
    false
}

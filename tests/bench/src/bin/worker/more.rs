//! Runs that are not a loop: at a given rate, the first operation of a thread, and idle threads.

use crate::thread_cpu;
use crate::ways::Operations;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Result of a paced run.
pub(crate) struct Paced {
    pub(crate) recorded: u64,
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
    /// Most operations of a thread between two sleeps.
    pub(crate) burst: u64,
}

/// Runs `rate` operations a second for `length`, spread over threads that wake every millisecond. A
/// late thread catches up at once. If it cannot, the run takes longer.
pub(crate) fn paced(operations: Operations, rate: u64, length: Duration, threads: u64) -> Paced {
    const TICK: Duration = Duration::from_millis(1);
    let ticks = length.as_millis() as u64;
    let share = |thread: u64| rate / threads + u64::from(thread < rate % threads);
    let start_line = Barrier::new(threads as usize);
    let work = |thread: u64| {
        operations(1);
        start_line.wait();
        let (started, before) = (Instant::now(), thread_cpu());
        let (mut done, mut slept_at, mut burst) = (0, 0, 0);
        for tick in 1..=ticks {
            let due = share(thread) * tick / 1000;
            operations(due - done);
            done = due;
            burst = burst.max(done - slept_at);
            let next = TICK * tick as u32;
            if let Some(rest) = next.checked_sub(started.elapsed()) {
                std::thread::sleep(rest);
                slept_at = done;
            }
        }
        (done + 1, thread_cpu() - before, burst)
    };
    let started = Instant::now();
    let (recorded, cpu, burst) = std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        all.into_iter()
            .filter_map(|thread| thread.join().ok())
            .fold((0, Duration::ZERO, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, one.2.max(sum.2)))
    });
    Paced { recorded, cpu, wall: started.elapsed(), burst }
}

/// CPU time of the first operation of each of `threads` new threads, minus that of its second one.
/// If `threads` is 0, of the calling thread. The threads start one after the other and end
/// together.
pub(crate) fn first(operations: Operations, threads: u64) -> Vec<Duration> {
    let measure = || {
        let start = thread_cpu();
        operations(1);
        let between = thread_cpu();
        operations(1);
        let second = thread_cpu() - between;
        (between - start).saturating_sub(second)
    };
    if threads == 0 {
        return vec![measure()];
    }
    let all_done = Barrier::new(threads as usize + 1);
    std::thread::scope(|scope| {
        let mut times = Vec::new();
        let (send, receive) = std::sync::mpsc::channel();
        for _ in 0..threads {
            let (send, all_done) = (send.clone(), &all_done);
            scope.spawn(move || {
                let _ = send.send(measure());
                all_done.wait();
            });
            times.extend(receive.recv().ok());
        }
        all_done.wait();
        times
    })
}

/// Starts `threads` threads that each do one operation and then sleep until the process ends.
pub(crate) fn rest(operations: Operations, threads: u64) {
    let ready = Arc::new(Barrier::new(threads as usize + 1));
    for _ in 0..threads {
        let ready = Arc::clone(&ready);
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            operations(1);
            ready.wait();
            loop {
                std::thread::park();
            }
        });
        if thread.is_err() {
            eprintln!("miot-bench-worker: cannot start a thread");
            std::process::exit(2);
        }
    }
    ready.wait();
}

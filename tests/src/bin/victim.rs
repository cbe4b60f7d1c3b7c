//! Records requests from several threads until it is killed: `victim NUMBER THREADS REQUESTS STRIDE
//! PAUSE_US PATHS PROGRESS`.
//!
//! THREADS threads run at a time. Each makes REQUESTS requests and is then replaced by another.
//! Before its first request and after every STRIDE requests, a thread writes the number of requests
//! it has made into its word of the file PROGRESS. The next word counts requests that could not
//! begin. PAUSE_US is the sleep after each hundred requests. PATHS is the number of different
//! paths, see [`miot_tests::victim::path`].

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use miot_tests::victim::{DONE, LIVES, WORDS, handle, mix, offset, path, tag};
use miot_tracer::{
    Completion, Ext, RequestArgs, StartedRequest, begin_enclosing_on, begin_on, cancel, end, end_with, op,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

struct Life<'a> {
    tag: u64,
    place: u64,
    requests: u64,
    stride: u64,
    pause: Duration,
    paths: u64,
    progress: &'a File,
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
    let Some(progress) = words.last().and_then(|path| File::options().write(true).open(path).ok()) else {
        std::process::exit(2);
    };
    let [victim, threads, requests, stride, pause, paths] = numbers[..] else { std::process::exit(2) };
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, progress) = (&next, &progress);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Relaxed);
                    if place >= LIVES {
                        break;
                    }
                    let pause = Duration::from_micros(pause);
                    let tag = tag(victim, place);
                    let life = Life { tag, place, requests, stride, pause, paths, progress };
                    // A separate thread, so that its lane is retired and reused by another thread.
                    std::thread::scope(|scope| scope.spawn(|| life.live()).join().unwrap_or(()));
                }
            });
        }
    });
}

impl Life<'_> {
    fn live(&self) {
        let (mut number, mut mark, mut refused, mut random) = (0, 0, 0, self.tag);
        while number < self.requests {
            if number >= mark {
                self.say(0, number);
                mark = number + self.stride;
            }
            random = mix(random);
            let made = if random.is_multiple_of(8) { self.pair(number) } else { self.single(number) };
            if made == 0 {
                // No log-client reads any more or yet, or no lane is free.
                refused += 1;
                self.say(1, refused);
                std::thread::sleep(Duration::from_millis(1));
            }
            if number / 100 != (number + made) / 100 && !self.pause.is_zero() {
                std::thread::sleep(self.pause);
            }
            number += made;
        }
        self.say(0, number | DONE);
    }

    fn say(&self, at: usize, word: u64) {
        let place = (self.place as usize * WORDS + at) * 8;
        if self.progress.write_all_at(&word.to_le_bytes(), place as u64).is_err() {
            std::process::exit(3);
        }
    }

    fn doing(&self, number: u64) -> RequestArgs {
        RequestArgs { handle: handle(self.tag), offset: offset(self.tag, number), length: self.tag }
    }

    fn single(&self, number: u64) -> u64 {
        match begin_on(op::posix::READ, self.doing(number)) {
            Some(begun) => self.end(begun, number),
            None => 0,
        }
    }

    /// Records a request within another. The inner one gets the first attempt number.
    fn pair(&self, number: u64) -> u64 {
        let Some(outer) = begin_enclosing_on(op::posix::READ, self.doing(number + 1)) else { return 0 };
        let Some(inner) = begin_on(op::posix::READ, self.doing(number)) else {
            cancel(outer);
            return 0;
        };
        self.end(inner, number) + self.end(outer, number + 1)
    }

    fn end(&self, begun: StartedRequest, number: u64) -> u64 {
        let RequestArgs { handle, offset, length } = self.doing(number);
        let done = Completion { handle, offset, length, result: number as i64, flags: 0 };
        match path(self.tag, number, self.paths) {
            Some(path) => end_with(begun, done, &Ext { path1: path.as_bytes(), ..Ext::default() }),
            None => end(begun, done),
        };
        1
    }
}

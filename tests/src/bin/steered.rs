//! Executes commands from its standard input, one per line, and answers each with a line that
//! starts with `ok`. `steered FILE` names the file to work on.
//!
//! | command | what it does |
//! |---|---|
//! | `pwrite N` | N writes of one byte to the file through libc, at increasing offsets |
//! | `four N` | N times pread, pwrite, lseek and fstat of the file, through libc |
//! | `fwrite N` | N times fwrite and fflush of one byte |
//! | `own N` | N reads of its own file-system client, at increasing offsets |
//! | `loop N` | N times read, write, flush and seek of its own file-system client |
//! | `spans A,B,…` | reads of its own client with these durations in ticks, at offsets 0, 1, … |
//! | `clock` | answers `ok ns` if ticks are nanoseconds, `ok counter` if they are a counter's |
//! | `lock PATH` | exclusive flock of a file |
//! | `nested PATH` | a read of a FIFO within an fread, both of its own client |

use miot_tracer::{
    Completion, Ext, NONE, Op, RequestArgs, begin, begin_enclosing, begin_on, end, op, record, ticks,
};
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::os::fd::AsRawFd;

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(|| usage("name a file"));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let mut life =
        Life { file: file.unwrap_or_else(|e| usage(&format!("{path}: {e}"))), path, pwrites: 0, own: 0 };
    let mut answers = std::io::stdout();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = life.obey(command, argument);
        let _ = writeln!(answers, "ok{answer}").and_then(|()| answers.flush());
    }
}

fn usage(problem: &str) -> ! {
    eprintln!("steered: {problem}");
    std::process::exit(2)
}

struct Life {
    file: File,
    path: String,
    pwrites: i64,
    own: u64,
}

impl Life {
    fn obey(&mut self, command: &str, argument: &str) -> &'static str {
        let times = argument.parse::<u64>().unwrap_or(0);
        match command {
            "pwrite" => (0..times).for_each(|_| self.pwrite()),
            "four" => (0..times).for_each(|_| self.four()),
            "fwrite" => self.fwrite(times),
            "own" => (0..times).for_each(|_| {
                request(op::client::READ, self.own);
                self.own += 1;
            }),
            "loop" => (0..times).for_each(|i| {
                [op::client::READ, op::client::WRITE, op::client::FLUSH, op::client::SEEK]
                    .into_iter()
                    .for_each(|op| request(op, i));
            }),
            "spans" => spans(argument),
            "clock" => return if ticks_are_nanoseconds() { " ns" } else { " counter" },
            "lock" => lock(argument),
            "nested" => nested(argument),
            other => usage(&format!("no command {other}")),
        }
        ""
    }

    fn pwrite(&mut self) {
        // SAFETY: the descriptor is open and the byte lives.
        unsafe { libc::pwrite(self.file.as_raw_fd(), [b'x'].as_ptr().cast(), 1, self.pwrites) };
        self.pwrites += 1;
    }

    fn four(&self) {
        let (fd, mut byte) = (self.file.as_raw_fd(), [b'x']);
        // SAFETY: the descriptor is open; the byte and the `stat` live.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::pread(fd, byte.as_mut_ptr().cast(), 1, 0);
            libc::pwrite(fd, byte.as_ptr().cast(), 1, 0);
            libc::lseek(fd, 0, libc::SEEK_SET);
            libc::fstat(fd, &raw mut stat);
        }
    }

    fn fwrite(&self, times: u64) {
        let path = CString::new(self.path.as_str()).unwrap_or_default();
        // SAFETY: the strings and the byte live; the stream is used only if it is not null.
        unsafe {
            let stream = libc::fopen(path.as_ptr(), c"r+".as_ptr());
            if stream.is_null() {
                usage("fopen fails");
            }
            for _ in 0..times {
                libc::fwrite([b'x'].as_ptr().cast(), 1, 1, stream);
                libc::fflush(stream);
            }
            libc::fclose(stream);
        }
    }
}

fn done(offset: u64) -> Completion {
    Completion { handle: 1, offset, length: 1, result: 1, flags: 0 }
}

fn request(op: Op, offset: u64) {
    if let Some(begun) = begin(op) {
        end(begun, done(offset));
    }
}

fn spans(list: &str) {
    for (offset, span) in list.split(',').filter_map(|span| span.parse::<u64>().ok()).enumerate() {
        let now = ticks();
        record(op::client::READ, now.saturating_sub(span), now, done(offset as u64), &Ext::default());
    }
}

fn ticks_are_nanoseconds() -> bool {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer has the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    ticks().abs_diff(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64) < 1_000_000_000
}

fn lock(path: &str) {
    let Ok(file) = File::open(path) else { usage("nothing to lock") };
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
}

fn nested(path: &str) {
    // Open for both directions, so that the open does not block and the read does.
    let Ok(mut fifo) = File::options().read(true).write(true).open(path) else { usage("no fifo") };
    let outer = begin_enclosing(op::stdio::FREAD);
    let inner = begin_on(op::client::READ, RequestArgs { handle: 1, offset: NONE, length: 7 });
    let _ = fifo.read(&mut [0; 7]);
    [inner, outer].into_iter().flatten().for_each(|begun| {
        end(begun, Completion::of(0));
    });
}

//! Runs one way of recording an operation, a given number of times.
//!
//! It executes commands from its standard input, like the workers in C (`c/worker.h` documents the
//! commands), so that the driver can alternate between ways.

mod more;
mod ways;

use more::Paced;
use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use ways::{Operations, Ready};

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("miot-bench-worker: {reason}");
            ExitCode::from(2)
        }
    }
}

fn serve() -> Result<(), String> {
    let way = std::env::args().nth(1).unwrap_or_default();
    let operations = ways::find(&way).ok_or_else(|| format!("unknown way of recording `{way}`"))?;
    let (setup, operations): (Ready, Operations) = operations;
    setup()?;
    say("ready")?;
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match (verb, &numbers[..]) {
            ("run", &[count, threads]) => {
                let (cpu, wall) = run(operations, count, threads as usize);
                say(&format!("{} {}", cpu.as_nanos(), wall.as_nanos()))?;
            }
            ("step", &[count]) => {
                operations(1000);
                int3();
                operations(count);
                int3();
                say("done")?;
            }
            ("paced", &[rate, milliseconds, threads]) => {
                let Paced { recorded, cpu, wall, burst } =
                    more::paced(operations, rate, Duration::from_millis(milliseconds), threads);
                say(&format!("{recorded} {} {} {burst}", cpu.as_nanos(), wall.as_nanos()))?;
            }
            ("first", &[threads]) => {
                let each: Vec<String> =
                    more::first(operations, threads).iter().map(|time| time.as_nanos().to_string()).collect();
                say(&each.join(" "))?;
            }
            ("rest", &[threads]) => {
                more::rest(operations, threads);
                say("resting")?;
            }
            _ => return Err(format!("not understood: {line}")),
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<(), String> {
    let mut out = stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

/// Returns CPU time of all threads and wall time of `count` operations.
fn run(operations: Operations, count: u64, threads: usize) -> (Duration, Duration) {
    let start_line = Barrier::new(threads);
    let share = || {
        operations(1);
        start_line.wait();
        let before = thread_cpu();
        operations(count / threads as u64);
        thread_cpu() - before
    };
    let started = Instant::now();
    let cpu = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(share)).collect();
        let own = share();
        others.into_iter().filter_map(|thread| thread.join().ok()).fold(own, |sum, cpu| sum + cpu)
    });
    (cpu, started.elapsed())
}

fn thread_cpu() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer has the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Marks start and end of the operations for the driver that single-steps this process.
fn int3() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a breakpoint, which the driver catches. Only a driver that traces sends the command.
    unsafe {
        std::arch::asm!("int3");
    }
}

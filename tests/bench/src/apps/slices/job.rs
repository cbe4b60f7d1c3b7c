//! One process of fio that runs in slices, and the count of its requests in each slice.

use super::super::programs::{App, Judged, Length, Measure};
use super::super::{Site, Way};
use crate::process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Duration of a slice.
pub(super) const SLICE: Duration = Duration::from_millis(50);
/// Begin of a slice whose requests are not counted: the caches are cold, and requests that were in
/// flight at the last stop complete.
const SETTLE: Duration = Duration::from_millis(10);
/// Maximum time from the start of a process until it has opened its file, and from its signal until
/// it has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// fio and its child, which makes the requests. Both are killed when dropped.
pub(super) struct Job {
    way: Way,
    child: Child,
    /// Process that makes the requests, a child of the first one. 0 until it is known.
    worker: u32,
    out: ChildStdout,
    errors: ChildStderr,
    /// The file that it reads or writes.
    file: PathBuf,
    /// fio's log, with a line per request. `None` where such a line would cost more than the
    /// request: system calls are counted instead.
    log: Option<PathBuf>,
    /// Maximum number of requests in flight at its end, which are in its report only.
    in_flight: u64,
    slices: Vec<Slice>,
}

/// When a process ran, and its reading and writing calls since its start.
#[derive(Clone, Copy, Debug)]
struct Slice {
    span: Span,
    /// When the stop was certain, ms since 1970.
    stopped: u64,
    calls_at_begin: u64,
    /// Calls when the requests began to count.
    calls_when_settled: u64,
    calls_at_end: u64,
    /// Time in which requests counted.
    counted: Duration,
}

/// A span of time, in whole milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// First millisecond.
    begin: u64,
    /// First millisecond after it.
    end: u64,
}

impl Span {
    /// Returns the counted part of a slice: whole milliseconds in which the process ran.
    fn counted(self) -> Span {
        Span { begin: self.begin + SETTLE.as_millis() as u64, end: self.end.saturating_sub(1) }
    }

    /// Returns the number of times in the span. They are in order.
    fn count(self, times: &[u64]) -> usize {
        let before = |bound: u64| times.partition_point(|time| *time < bound);
        before(self.end).saturating_sub(before(self.begin))
    }
}

/// Milliseconds since 1970, as in fio's log.
fn now() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

impl Job {
    pub(super) fn start(site: &Site<'_>, app: &App, way: Way) -> Result<Job> {
        let mut command = site.command(app, way, Length::Sliced);
        let file = command.get_args().find_map(|word| word.to_str()?.strip_prefix("--filename="));
        let file = file.map(PathBuf::from).context("fio without a file")?;
        command.arg("--disk_util=0");
        let mut log = None;
        if app.judged == Judged::Percent {
            let folder = site.bench.disk.path().join("fio-logs");
            std::fs::create_dir_all(&folder)?;
            let number = site.ways().iter().position(|other| *other == way).unwrap_or_default();
            // fio writes a line per request after the last slice. These calls are not the subject.
            command.env("MIOT_EXCLUDE", format!("{}/", folder.display()));
            command
                .args(["--log_unix_epoch=1", "--log_avg_msec=0", "--log_entries=200000"])
                .arg(format!("--write_iops_log={}", folder.join(number.to_string()).display()));
            log = Some(folder.join(format!("{number}_iops.1.log")));
        }
        let mut child = process::killed_with_us(&mut command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("fio is not installed")?;
        let (Some(out), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            anyhow::bail!("fio without a pipe")
        };
        let in_flight = if let Measure::Fio { in_flight, .. } = app.measure { in_flight } else { 0 };
        Ok(Job { way, child, worker: 0, out, errors, file, log, in_flight, slices: Vec::new() })
    }

    /// Process that makes the requests.
    pub(super) fn worker(&self) -> u32 {
        self.worker
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Waits until a process has opened its file.
    pub(super) fn wait_for_file(&mut self) -> Result<()> {
        let patience = Instant::now() + PATIENCE;
        let has_opened = |pid: &u32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file == self.file)
        };
        let first = self.child.id();
        self.worker = loop {
            let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"))?;
            let worker = children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(has_opened);
            if let Some(worker) = worker {
                break worker;
            }
            ensure!(Instant::now() < patience, "fio does not open {}", self.file.display());
            std::thread::sleep(Duration::from_millis(5));
        };
        Ok(())
    }

    /// Reads its file into the page cache.
    pub(super) fn fill_cache(&self) -> Result<()> {
        std::io::copy(&mut File::open(&self.file)?, &mut std::io::sink())?;
        Ok(())
    }

    /// Sends a signal to both processes.
    fn signal(&self, signal: libc::c_int) -> Result<()> {
        for pid in [self.child.id(), self.worker] {
            // SAFETY: a child that was not waited for, and its child, for which it has not waited
            // while both are stopped.
            let answer = unsafe { libc::kill(libc::pid_t::try_from(pid)?, signal) };
            ensure!(answer == 0, "signal {signal} to fio: {}", std::io::Error::last_os_error());
        }
        Ok(())
    }

    pub(super) fn stop(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Lets the stopped process run for a slice.
    pub(super) fn slice(&mut self) -> Result<()> {
        let calls_at_begin = self.calls()?;
        let begin = now()? + 1;
        self.signal(libc::SIGCONT)?;
        std::thread::sleep(SETTLE);
        let (calls_when_settled, settled) = (self.calls()?, Instant::now());
        std::thread::sleep(SLICE.saturating_sub(SETTLE));
        let (calls_at_end, counted) = (self.calls()?, settled.elapsed());
        let end = now()?;
        self.stop()?;
        self.slices.push(Slice {
            span: Span { begin, end },
            stopped: now()?,
            calls_at_begin,
            calls_when_settled,
            calls_at_end,
            counted,
        });
        Ok(())
    }

    /// Returns the number of reading and writing calls of the worker, by the kernel's count.
    fn calls(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.worker);
        let text = std::fs::read_to_string(&path).context(path)?;
        let number = |line: &str| line.strip_prefix("syscr: ").or(line.strip_prefix("syscw: "))?.parse().ok();
        let counts: Vec<u64> = text.lines().filter_map(number).collect();
        ensure!(counts.len() == 2, "the kernel does not count system calls: {text}");
        Ok(counts.iter().sum())
    }

    /// Makes the stopped processes write the log and end.
    pub(super) fn end(&self) -> Result<()> {
        self.signal(libc::SIGTERM)?;
        self.signal(libc::SIGCONT)
    }

    /// Waits for a process that ends, and counts its requests.
    pub(super) fn finished(mut self) -> Result<Ended> {
        let reported = self.report()?;
        let slices = std::mem::take(&mut self.slices);
        let (ns_per_request, in_slices) = match &self.log {
            Some(log) => {
                let text = std::fs::read_to_string(log).with_context(|| log.display().to_string())?;
                std::fs::remove_file(log)?;
                let completed = completion_times(&text)?;
                let logged = completed.len() as u64;
                ensure!(
                    (logged..=logged + self.in_flight).contains(&reported),
                    "fio reports {reported} requests, but its log has {logged}"
                );
                by_log(&completed, &slices)?
            }
            None => by_calls(reported, &slices)?,
        };
        Ok(Ended { way: self.way, ns_per_request, requests: reported, in_slices })
    }

    /// Waits for the process, and returns the number of requests in its report.
    fn report(&mut self) -> Result<u64> {
        /// Exit status of fio after a signal that ends it.
        const SIGNALED: i32 = 128 << 8;
        // Its report is smaller than a pipe, so that it ends before anybody reads.
        let usage = process::wait(&mut self.child, PATIENCE);
        let (mut text, mut errors) = (String::new(), String::new());
        self.out.read_to_string(&mut text)?;
        self.errors.read_to_string(&mut errors)?;
        ensure!(
            usage.success || usage.status == SIGNALED,
            "fio failed, status {:#x}: {text} {errors}",
            usage.status
        );
        let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
        let job = &report["jobs"][0];
        ensure!(job["error"] == 0, "fio reports the error {}: {errors}", job["error"]);
        Ok(["read", "write"].iter().filter_map(|of| job[of]["total_ios"].as_u64()).sum())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Also ends stopped processes. Without effect on one that was waited for.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if self.worker != 0 {
                let _ = self.signal(libc::SIGKILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A process that has ended.
pub(super) struct Ended {
    pub(super) way: Way,
    /// Time per request in the counted part of each slice. `None` if no request has completed.
    pub(super) ns_per_request: Vec<Option<f64>>,
    /// Number of requests in fio's report.
    pub(super) requests: u64,
    /// Number of requests from the first to the last slice.
    pub(super) in_slices: u64,
}

/// Returns the completion times in fio's log, in order. Each line is a request: its time, the
/// number of requests, its direction, size and priority.
fn completion_times(log: &str) -> Result<Vec<u64>> {
    let time = |line: &str| line.split_once(',')?.0.trim().parse().ok();
    let mut times = log
        .lines()
        .map(|line| time(line).with_context(|| format!("a line of fio's log has no time: {line:?}")))
        .collect::<Result<Vec<u64>>>()?;
    times.sort_unstable();
    Ok(times)
}

/// Returns the time per request in each slice, and the number of requests from the first to the
/// last one, by the completion times in fio's log.
///
/// # Errors
/// Many requests completed between slices: the clocks differ, or the process was not stopped.
fn by_log(completed: &[u64], slices: &[Slice]) -> Result<(Vec<Option<f64>>, u64)> {
    /// Difference of the clocks, and delay of a stop, ms.
    const TOLERANCE: u64 = 3;
    let count = |begin: u64, end: u64| {
        Span { begin: begin.saturating_sub(TOLERANCE), end: end + TOLERANCE }.count(completed) as u64
    };
    let all = slices.first().zip(slices.last());
    let all = all.map_or(0, |(first, last)| count(first.span.begin, last.stopped));
    expect_stopped(all, slices.iter().map(|slice| count(slice.span.begin, slice.stopped)).sum())?;
    let times = slices.iter().map(|slice| {
        let counted = slice.span.counted();
        let time = Duration::from_millis(counted.end.saturating_sub(counted.begin));
        per_request(time, counted.count(completed) as u64)
    });
    Ok((times.collect(), all))
}

/// Returns the same by the kernel's counts of system calls, each of which is a request while the
/// process is in slices. `reported` is the number of requests in fio's report.
///
/// # Errors
/// Many calls were made between slices, or fio reports another number of requests.
fn by_calls(reported: u64, slices: &[Slice]) -> Result<(Vec<Option<f64>>, u64)> {
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else { return Ok((Vec::new(), 0)) };
    let all = last.calls_at_end - first.calls_at_begin;
    expect_stopped(all, slices.iter().map(|slice| slice.calls_at_end - slice.calls_at_begin).sum())?;
    ensure!(
        reported.abs_diff(last.calls_at_end) * 50 <= reported,
        "fio reports {reported} requests, but has made {} calls",
        last.calls_at_end
    );
    let counted = |slice: &Slice| slice.calls_at_end - slice.calls_when_settled;
    Ok((slices.iter().map(|slice| per_request(slice.counted, counted(slice))).collect(), all))
}

/// Fails unless nearly `all` requests have completed inside of slices.
fn expect_stopped(all: u64, inside: u64) -> Result<()> {
    ensure!(
        inside * 100 >= all * 95,
        "{} of {all} requests of fio completed while it was stopped",
        all.saturating_sub(inside)
    );
    Ok(())
}

fn per_request(time: Duration, count: u64) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| time.as_nanos() as f64 / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices with these times in ms, and these calls at the begin, when settled, and at the end.
    fn slices(of: &[((u64, u64), [u64; 3])]) -> Vec<Slice> {
        let slice = |((begin, end), calls): &((u64, u64), [u64; 3])| Slice {
            span: Span { begin: *begin, end: *end },
            stopped: *end,
            calls_at_begin: calls[0],
            calls_when_settled: calls[1],
            calls_at_end: calls[2],
            counted: Duration::from_millis(40),
        };
        of.iter().map(slice).collect()
    }

    #[test]
    fn requests_count_for_their_slice_after_it_has_settled() {
        let log = "1009, 1, 0, 4096, 0\n1010, 1, 0, 4096, 0\n1048, 1, 0, 4096, 0\n";
        let times = completion_times(log).unwrap_or_default();
        let counted = by_log(&times, &slices(&[((1000, 1050), [0; 3]), ((2000, 2050), [0; 3])]));
        assert_eq!(counted.ok(), Some((vec![Some(39e6 / 2.0), None], 3)));
        let calls = slices(&[((1000, 1050), [10, 30, 110]), ((2000, 2050), [112, 120, 120])]);
        assert_eq!(by_calls(121, &calls).ok(), Some((vec![Some(40e6 / 80.0), None], 110)));
    }

    #[test]
    fn requests_of_a_stopped_process_are_an_error() {
        let logged = slices(&[((1000, 1050), [0; 3]), ((2000, 2050), [0; 3])]);
        assert!(by_log(&[1020, 1060, 2020], &logged).is_err());
        let called = slices(&[((1000, 1050), [0, 50, 100]), ((2000, 2050), [120, 150, 200])]);
        assert!(by_calls(200, &called).is_err());
        assert!(completion_times("no number, 1\n").is_err());
    }

    #[test]
    fn calls_that_are_no_requests_are_an_error() {
        assert!(by_calls(90, &slices(&[((1000, 1050), [0, 50, 100])])).is_err());
    }
}

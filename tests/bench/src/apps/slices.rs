//! fio in slices of time: its variants exist at once, and one of them runs at a time.
//!
//! Whole runs of a second are minutes apart, and direct I/O of a virtual disk scatters by several
//! per cent over minutes. Here, all variants of a row are started together and stopped. Then one
//! after the other is continued for 50 ms and stopped again, so that a slow phase of the machine
//! affects all variants alike. A request counts for the slice in which fio's log shows its
//! completion.
//!
//! Both daemons run all the time. While the variant with everything on the node does not run, the
//! log-server is limited as in the variant with the log-server apart.

use super::programs::{App, Length, Made};
use super::{ON_NODE, Runs, Site, Way, quiet};
use crate::process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Duration of a slice.
const SLICE: Duration = Duration::from_millis(50);
/// Begin of a slice whose requests are not counted, ms: the caches are cold, and requests that were
/// in flight at the last stop complete.
const SETTLE: u64 = 10;
/// Time between two slices, in which the device finishes the requests in flight.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum time from the start of a process until it has opened its file.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time from then to the first stop.
const START: Duration = Duration::from_millis(200);
/// Half of the wanted width of the interval, %.
const HALF_WIDTH: f64 = 0.6;
/// Maximum number of calls of a process that are not requests of fio's report, apart from those of
/// each slice: opening files, and requests in flight at the end.
const OTHER_CALLS: u64 = 200;
/// Maximum number of such calls per slice: fio looks for a file that requests its status.
const OTHER_CALLS_PER_SLICE: u64 = 4;

/// Measures a program of fio in slices until its figures have narrow intervals.
pub(super) fn measure(site: &Site<'_>, app: &App) -> Result<Runs> {
    let slices = site.bench.pick(60, 20, 4);
    let repeat = crate::stats::Repeat {
        least: site.bench.pick(2, 1, 1),
        most: site.bench.pick(60, 5, 1),
        half_width: HALF_WIDTH,
        time: Duration::from_secs(site.bench.pick(200, 8, 0)),
    };
    // Lays out the file.
    site.once(app, Way::Plain)?;
    let ways = site.ways();
    let mut sliced = Sliced {
        site,
        app,
        slices,
        order: Order::of(ways.len()),
        runs: Runs::new(ways),
        made: Made { runs: 0, requests: 0, more: Some(0) },
        daemons: Vec::new(),
    };
    sliced.daemons = vec![Duration::ZERO; sliced.runs.ways.len()];
    let started = Instant::now();
    for rounds in 1.. {
        sliced.round().with_context(|| format!("{} on {}, in slices", app.what, app.place))?;
        if repeat.is_enough(rounds, started.elapsed(), &sliced.runs.judged(app.judged)) {
            let time = SLICE.as_secs_f64() * (rounds * slices) as f64;
            let percent = sliced.daemons.iter().map(|spent| spent.as_secs_f64() / time * 100.0);
            sliced.runs.daemons_percent = Some(percent.collect());
            break;
        }
    }
    sliced.runs.made = sliced.made;
    Ok(sliced.runs)
}

/// A row that is measured in slices.
struct Sliced<'a> {
    site: &'a Site<'a>,
    app: &'a App,
    /// Number of slices of each variant in a round.
    slices: usize,
    order: Order,
    runs: Runs,
    made: Made,
    /// CPU time of both daemons in the slices of each variant.
    daemons: Vec<Duration>,
}

impl Sliced<'_> {
    /// Runs one process of each variant.
    fn round(&mut self) -> Result<()> {
        quiet(self.site.daemons);
        let ways = self.runs.ways.clone();
        let mut jobs = ways.iter().map(|way| Job::start(self, *way)).collect::<Result<Vec<_>>>()?;
        jobs.iter().try_for_each(Job::wait_for_file)?;
        std::thread::sleep(START);
        jobs.iter().try_for_each(Job::stop)?;
        std::thread::sleep(PAUSE);
        let before: Vec<Duration> = jobs.iter().map(|job| process::threads_cpu(job.child.id())).collect();
        let ran = self.take_turns(&mut jobs);
        self.site.share.map_or(Ok(()), |share| share.limit(false))?;
        ran?;
        let spent: Vec<Duration> = jobs
            .iter()
            .zip(before)
            .map(|(job, before)| process::threads_cpu(job.child.id()).saturating_sub(before))
            .collect();
        // All are signaled before one is waited for, so that no stopped process remains.
        jobs.iter().try_for_each(Job::end)?;
        let ended = jobs.into_iter().map(Job::finished).collect::<Result<Vec<_>>>()?;
        self.evaluate(&ended, &spent)
    }

    /// Lets the stopped processes run, one slice of each after the other.
    fn take_turns(&mut self, jobs: &mut [Job]) -> Result<()> {
        let daemons = self.site.daemons.pids();
        let spent = || daemons.iter().map(|pid| process::threads_cpu(*pid)).sum::<Duration>();
        for _ in 0..self.slices {
            for at in self.order.next() {
                let is_limited = jobs[at].way != Way::Hook(ON_NODE);
                self.site.share.map_or(Ok(()), |share| share.limit(is_limited))?;
                let before = spent();
                jobs[at].slice()?;
                self.daemons[at] += spent().saturating_sub(before);
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Adds the figures of a round.
    fn evaluate(&mut self, ended: &[Ended], spent: &[Duration]) -> Result<()> {
        let mut skipped = 0;
        for slice in 0..self.slices {
            let times: Option<Vec<f64>> = ended.iter().map(|job| job.ns_per_request(slice)).collect();
            let Some(times) = times else {
                skipped += 1;
                continue;
            };
            for (all, time) in self.runs.wall.iter_mut().zip(times) {
                all.push(time);
            }
        }
        ensure!(
            skipped * 2 <= self.slices,
            "in {skipped} of {} turns a variant has completed no request",
            self.slices
        );
        for (at, job) in ended.iter().enumerate() {
            self.runs.cpu[at].push(spent[at].as_nanos() as f64 / job.in_slices()?.max(1) as f64);
            if matches!(job.way, Way::Hook(_)) {
                self.made.runs += 1;
                self.made.requests += job.completed.len() as u64;
                let more = OTHER_CALLS + OTHER_CALLS_PER_SLICE * self.slices as u64;
                self.made.more = self.made.more.map(|sum| sum + more);
            }
        }
        Ok(())
    }
}

/// Order of the variants in each turn: at random, then the reverse of it.
struct Order {
    random: fastrand::Rng,
    last: Vec<usize>,
    is_reversed: bool,
}

impl Order {
    fn of(count: usize) -> Order {
        Order { random: fastrand::Rng::with_seed(7), last: (0..count).collect(), is_reversed: true }
    }

    fn next(&mut self) -> Vec<usize> {
        self.is_reversed = !self.is_reversed;
        if self.is_reversed {
            self.last.reverse();
        } else {
            self.random.shuffle(&mut self.last);
        }
        self.last.clone()
    }
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
        Span { begin: self.begin + SETTLE, end: self.end.saturating_sub(1) }
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

/// A process of fio in a process group of its own, killed when dropped.
struct Job {
    way: Way,
    child: Child,
    out: ChildStdout,
    errors: ChildStderr,
    /// The file that it reads or writes.
    file: PathBuf,
    log: PathBuf,
    /// Slices, and when the stop of each was certain.
    slices: Vec<(Span, u64)>,
}

impl Job {
    fn start(sliced: &Sliced<'_>, way: Way) -> Result<Job> {
        let folder = sliced.site.bench.disk.path().join("fio-logs");
        std::fs::create_dir_all(&folder)?;
        let number = sliced.runs.ways.iter().position(|other| *other == way).unwrap_or_default();
        let log = folder.join(number.to_string());
        let mut command = sliced.site.command(sliced.app, way, Length::Sliced);
        let file = command.get_args().find_map(|word| word.to_str()?.strip_prefix("--filename="));
        let file = file.map(PathBuf::from).context("fio without a file")?;
        // fio writes a line per request after the last slice. These calls are not the subject.
        command.env("MIOT_EXCLUDE", format!("{}/", folder.display()));
        command
            .args(["--log_unix_epoch=1", "--log_avg_msec=0", "--log_entries=200000", "--disk_util=0"])
            .arg(format!("--write_iops_log={}", log.display()))
            .process_group(0);
        let mut child = process::killed_with_us(&mut command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("fio is not installed")?;
        let (Some(out), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            anyhow::bail!("fio without a pipe")
        };
        let log = folder.join(format!("{number}_iops.1.log"));
        Ok(Job { way, child, out, errors, file, log, slices: Vec::new() })
    }

    /// Waits until the process has opened its file.
    fn wait_for_file(&self) -> Result<()> {
        let patience = Instant::now() + PATIENCE;
        let open = format!("/proc/{}/fd", self.child.id());
        let has_opened = || {
            let files = std::fs::read_dir(&open).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file == self.file)
        };
        while !has_opened() {
            ensure!(Instant::now() < patience, "fio does not open {}", self.file.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Sends a signal to the group.
    fn signal(&self, signal: libc::c_int) -> Result<()> {
        let group = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: a child that was not waited for, so that its group is still its own.
        let answer = unsafe { libc::kill(-group, signal) };
        ensure!(answer == 0, "signal {signal} to fio: {}", std::io::Error::last_os_error());
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Lets the stopped process run for a slice.
    fn slice(&mut self) -> Result<()> {
        let begin = now()? + 1;
        self.signal(libc::SIGCONT)?;
        std::thread::sleep(SLICE);
        let end = now()?;
        self.stop()?;
        self.slices.push((Span { begin, end }, now()?));
        Ok(())
    }

    /// Makes the stopped process write its log and end.
    fn end(&self) -> Result<()> {
        self.signal(libc::SIGTERM)?;
        self.signal(libc::SIGCONT)
    }

    /// Waits for a process that ends, and reads its log.
    fn finished(mut self) -> Result<Ended> {
        /// Exit status of fio after a signal that ends it.
        const SIGNALED: i32 = 128 << 8;
        let (mut text, mut errors) = (String::new(), String::new());
        self.out.read_to_string(&mut text)?;
        self.errors.read_to_string(&mut errors)?;
        let usage = process::wait(&mut self.child, Duration::from_secs(60));
        ensure!(
            usage.success || usage.status == SIGNALED,
            "fio failed, status {:#x}: {text} {errors}",
            usage.status
        );
        let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
        let job = &report["jobs"][0];
        ensure!(job["error"] == 0, "fio reports the error {}: {errors}", job["error"]);
        let done: u64 = ["read", "write"].iter().filter_map(|of| job[of]["total_ios"].as_u64()).sum();
        let log = std::fs::read_to_string(&self.log).with_context(|| self.log.display().to_string())?;
        let completed = completion_times(&log)?;
        ensure!(
            done == completed.len() as u64,
            "fio reports {done} requests, but its log has {}",
            completed.len()
        );
        std::fs::remove_file(&self.log)?;
        Ok(Ended { way: self.way, completed, slices: std::mem::take(&mut self.slices) })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Also ends a stopped process. Without effect on one that was waited for.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
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

/// A process that has ended.
struct Ended {
    way: Way,
    /// Completion times in order, milliseconds since 1970.
    completed: Vec<u64>,
    /// Slices, and when the stop of each was certain.
    slices: Vec<(Span, u64)>,
}

impl Ended {
    /// Returns the time per request in the counted part of a slice. `None` if no request has
    /// completed.
    fn ns_per_request(&self, slice: usize) -> Option<f64> {
        let counted = self.slices.get(slice)?.0.counted();
        let count = counted.count(&self.completed);
        let time = counted.end.checked_sub(counted.begin)?;
        (count > 0 && time > 0).then(|| time as f64 * 1e6 / count as f64)
    }

    /// Returns the number of requests that completed from the first to the last slice.
    ///
    /// # Errors
    /// Many of them lie between slices: the clocks differ, or the process was not stopped.
    fn in_slices(&self) -> Result<usize> {
        /// Difference of the clocks, and delay of a stop, ms.
        const TOLERANCE: u64 = 3;
        let (Some((first, _)), Some((_, last))) = (self.slices.first(), self.slices.last()) else {
            return Ok(0);
        };
        let count = |begin: u64, end: u64| {
            Span { begin: begin - TOLERANCE, end: end + TOLERANCE }.count(&self.completed)
        };
        let all = count(first.begin, *last);
        let inside: usize = self.slices.iter().map(|(slice, stopped)| count(slice.begin, *stopped)).sum();
        ensure!(
            inside * 100 >= all * 95,
            "{} of {all} requests of fio completed while it was stopped",
            all - inside
        );
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(completed: Vec<u64>, slices: &[(u64, u64)]) -> Ended {
        let slices = slices.iter().map(|(begin, end)| (Span { begin: *begin, end: *end }, *end)).collect();
        Ended { way: Way::Plain, completed, slices }
    }

    #[test]
    fn requests_count_for_their_slice_after_it_has_settled() {
        let times = completion_times("1009, 1, 0, 4096, 0\n1010, 1, 0, 4096, 0\n1048, 1, 0, 4096, 0\n")
            .unwrap_or_default();
        let job = ended(times, &[(1000, 1050), (2000, 2050)]);
        assert_eq!(job.ns_per_request(0), Some(39e6 / 2.0));
        assert_eq!(job.ns_per_request(1), None);
        assert_eq!(job.in_slices().ok(), Some(3));
    }

    #[test]
    fn requests_of_a_stopped_process_are_an_error() {
        assert!(ended(vec![1020, 1060, 2020], &[(1000, 1050), (2000, 2050)]).in_slices().is_err());
        assert!(completion_times("no number, 1\n").is_err());
    }

    #[test]
    fn every_second_order_is_the_reverse() {
        let mut order = Order::of(4);
        for _ in 0..5 {
            let (mut first, second) = (order.next(), order.next());
            first.reverse();
            assert_eq!(first, second);
        }
    }
}

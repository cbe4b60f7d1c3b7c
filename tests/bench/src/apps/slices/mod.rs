//! fio in slices of time: its variants exist at once, and one of them runs at a time.
//!
//! Whole runs of a second are minutes apart, and direct I/O of a virtual disk scatters by several
//! per cent over minutes. Here, all variants of a row are started together and stopped. Then one
//! after the other is continued for 50 ms and stopped again, so that a slow phase of the machine
//! affects all variants alike. A request counts for the slice in which it completes.
//!
//! The figure of a round is that of its slices together. Its interval is by rounds, because two
//! processes of one variant differ too: by where their memory and code lie.
//!
//! Both daemons run all the time. While the variant with everything on the node does not run, the
//! log-server is limited as in the variant with the log-server apart.

mod job;

use super::programs::{App, Judged, Made};
use super::{ON_NODE, Runs, Site, Way, quiet};
use crate::process;
use crate::stats::Summary;
use anyhow::{Context, Result, ensure};
use job::{Ended, Job, SLICE};
use std::time::{Duration, Instant};

/// Time between two slices, in which the device finishes the requests in flight.
const PAUSE: Duration = Duration::from_millis(5);
/// Time from the start of all processes to the first stop.
const START: Duration = Duration::from_millis(200);
/// Maximum number of calls of a process that are not requests of fio's report, apart from those of
/// each slice: opening files, and requests in flight at the end.
const OTHER_CALLS: u64 = 200;
/// Maximum number of such calls per slice: fio looks for a file that requests its status.
const OTHER_CALLS_PER_SLICE: u64 = 4;

/// Measures a program of fio in slices until its figures have narrow intervals.
pub(super) fn measure(site: &Site<'_>, app: &App) -> Result<Runs> {
    let slices = site.bench.pick(20, 20, 4);
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
        if app.repeat.is_enough(rounds, started.elapsed(), &sliced.runs.judged(app.judged)) {
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
        let mut jobs =
            ways.iter().map(|way| Job::start(self.site, self.app, *way)).collect::<Result<Vec<_>>>()?;
        jobs.iter_mut().try_for_each(Job::wait_for_file)?;
        if self.app.judged == Judged::TimesFloor
            && let Some(job) = jobs.first()
        {
            // An open may have emptied the page cache. All variants use one file.
            job.fill_cache()?;
        }
        std::thread::sleep(START);
        jobs.iter().try_for_each(Job::stop)?;
        std::thread::sleep(PAUSE);
        let before: Vec<Duration> = jobs.iter().map(|job| process::threads_cpu(job.worker())).collect();
        let ran = self.take_turns(&mut jobs);
        self.site.share.map_or(Ok(()), |share| share.limit(false))?;
        ran?;
        let spent: Vec<Duration> = jobs
            .iter()
            .zip(before)
            .map(|(job, before)| process::threads_cpu(job.worker()).saturating_sub(before))
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
                let is_limited = jobs[at].way() != Way::Hook(ON_NODE);
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
        let turns: Vec<Vec<f64>> = (0..self.slices)
            .filter_map(|slice| ended.iter().map(|job| job.ns_per_request[slice]).collect())
            .collect();
        ensure!(
            turns.len() * 2 >= self.slices,
            "in {} of {} turns a variant has completed no request",
            self.slices - turns.len(),
            self.slices
        );
        for (all, time) in self.runs.wall.iter_mut().zip(times(&turns)) {
            all.push(time);
        }
        for (at, job) in ended.iter().enumerate() {
            self.runs.cpu[at].push(spent[at].as_nanos() as f64 / job.in_slices.max(1) as f64);
            if matches!(job.way, Way::Hook(_)) {
                self.made.runs += 1;
                self.made.requests += job.requests;
                let more = OTHER_CALLS + OTHER_CALLS_PER_SLICE * self.slices as u64;
                self.made.more = self.made.more.map(|sum| sum + more);
            }
        }
        Ok(())
    }
}

/// Returns the time per request in a round, of each variant: the median of the plain one, times the
/// median of the ratios to the plain slice of the same turn. The plain variant is first.
fn times(turns: &[Vec<f64>]) -> Vec<f64> {
    let median = |values: Vec<f64>| Summary::of(values).median;
    let plain = median(turns.iter().map(|turn| turn[0]).collect());
    let variants = 0..turns.first().map_or(0, Vec::len);
    variants.map(|at| plain * median(turns.iter().map(|turn| turn[at] / turn[0]).collect())).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_phase_of_the_machine_does_not_count() {
        let turns = [vec![100.0, 110.0], vec![300.0, 330.0], vec![100.0, 110.0]];
        let [plain, hook] = times(&turns)[..] else { panic!("two variants") };
        assert!((plain - 100.0).abs() < 1e-9 && (hook - 110.0).abs() < 1e-9, "{plain} {hook}");
        assert!(times(&[]).is_empty());
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

//! A log-client from start to stop.

use crate::clock::Calibration;
use crate::config::Config;
use crate::error::Error;
use crate::home::Home;
use crate::ship::{Left, Outbox, Peer, Shipped, channel, ship};
use crate::sweeper::{Sweeper, Totals};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A log-client that serves its directory: producers record from [`prepare`](Self::prepare) on, and what they
/// record waits in their lanes until [`run`](Self::run).
#[derive(Debug)]
pub struct LogClient {
    config: Config,
    home: Home,
    calibration: Calibration,
    boot: u128,
    session: u64,
    started: Instant,
}

/// What a log-client did in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Records found in lanes.
    pub events: u64,
    /// Bytes of the messages made of them.
    pub bytes: u64,
    /// Streams (lanes in use) found.
    pub streams: u64,
    /// Processes found.
    pub processes: u64,
    /// Records lost because a lane was full, by the producers' own count.
    pub lost_full: u64,
    /// Records lost because they came from a signal handler inside another record.
    pub lost_nested: u64,
    /// Records lost because a thread got no lane.
    pub lost_no_lane: u64,
    /// Records and lanes that made no sense.
    pub abi_violations: u64,
    /// Records of a kind this version does not know, passed over.
    pub unknown: u64,
    /// Records whose completion time was moved up, because it lay before that of the record before them or
    /// before what this node had promised.
    pub clamped: u64,
    /// Messages the log-server had not acknowledged when the time for a clean stop was over.
    pub undelivered: u64,
    /// Records were left in the lanes when the time for a clean stop was over.
    pub left_in_lanes: bool,
    /// Seconds from start to end.
    pub seconds: f64,
}

/// Tells the sweeper to stop, and until when.
#[derive(Debug, Default)]
struct Stop {
    wanted: AtomicBool,
    /// Nobody waits for the rest any more.
    abandoned: AtomicBool,
    until: OnceLock<Instant>,
}

impl Stop {
    fn at(&self, until: Instant) {
        let _ = self.until.set(until);
        self.wanted.store(true, Relaxed);
    }

    fn is_over(&self) -> bool {
        self.abandoned.load(Relaxed) || self.until.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// Stops the sweeper when the future that waits for it is dropped.
struct Abandon(Arc<Stop>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Relaxed);
        self.0.wanted.store(true, Relaxed);
    }
}

impl LogClient {
    /// Checks the settings, sets up the directory and opens the control page: from here on producers record.
    ///
    /// # Errors
    /// [`Error::Setting`]; [`Error::Running`] if the directory is served already; [`Error::NotOurs`],
    /// [`Error::Path`] and [`Error::System`] if it cannot be.
    pub fn prepare(config: Config) -> Result<LogClient, Error> {
        config.check()?;
        let boot = boot_id()?;
        let mut session = [0; 8];
        rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::system("cannot get a random number", error))?;
        allow_many_files();
        Ok(LogClient {
            calibration: Calibration::begin(),
            home: Home::prepare(&config)?,
            config,
            boot,
            session: u64::from_ne_bytes(session),
            started: Instant::now(),
        })
    }

    /// Reads and ships until `shutdown` completes; then ends recording on the node, delivers what is
    /// committed and waits for its acknowledgement, at most [`Config::stop`] in all.
    ///
    /// # Errors
    /// [`Error::Refused`] if the log-server does not take this node; [`Error::Path`] or [`Error::System`] if
    /// sweeping cannot begin.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Report, Error> {
        let LogClient { config, home, calibration, boot, session, started } = self;
        let (outbox, inbox) = channel(config.memory);
        let stop = Arc::new(Stop::default());
        let _abandon = Abandon(Arc::clone(&stop));
        let (ready, clock) = oneshot::channel();
        let (done, mut finished) = oneshot::channel();
        let (thread_stop, thread_config) = (Arc::clone(&stop), config.clone());
        std::thread::Builder::new()
            .name("miot-sweeper".into())
            .spawn(move || {
                let clocks = calibration.finish();
                let shared = clocks.shared();
                let sweeper = Sweeper::new(home, clocks, boot, &thread_config);
                let _ = done.send(match sweeper {
                    Ok(sweeper) => {
                        let _ = ready.send(shared);
                        Ok(sweep(sweeper, outbox, &thread_stop))
                    }
                    Err(error) => Err(error),
                });
            })
            .map_err(|error| Error::system("cannot start the sweeper's thread", error))?;

        let Ok(clock) = clock.await else {
            return Err(thread_result(finished.await).err().unwrap_or_else(thread_died));
        };
        let peer = Peer { server: config.server.clone(), node: config.node.clone(), session };
        let left = Arc::new(Left::new(0));
        let mut shipping = Box::pin(ship(peer, inbox, clock, Arc::clone(&left)));
        let early = tokio::select! {
            result = &mut shipping => Some(result),
            () = shutdown => None,
        };
        let until = Instant::now() + config.stop;
        stop.at(until);
        match early {
            Some(result) => result?,
            None => match timeout(config.stop, &mut shipping).await {
                Ok(result) => result?,
                Err(_) => tracing::error!(
                    messages = left.load(Relaxed),
                    "the log-server has not acknowledged everything in the time for a clean stop"
                ),
            },
        }
        stop.abandoned.store(true, Relaxed);
        // With it goes the other end of the outbox, into which the sweeper may be waiting to send.
        drop(shipping);
        let (totals, shipped) = thread_result((&mut finished).await)?;
        let report = report(totals, shipped, left.load(Relaxed), started.elapsed());
        if totals.left {
            tracing::error!("records are left in the lanes of processes: the next log-client delivers them");
        }
        Ok(report)
    }
}

/// The life of the sweeper's thread.
fn sweep(mut sweeper: Sweeper, mut outbox: Outbox, stop: &Stop) -> (Totals, Shipped) {
    sweeper.run(&mut outbox, &|| stop.wanted.load(Relaxed));
    let totals = sweeper.finish(&mut outbox, &|| stop.is_over());
    outbox.end();
    (totals, outbox.shipped())
}

type Finished = Result<(Totals, Shipped), Error>;

fn thread_result(result: Result<Finished, oneshot::error::RecvError>) -> Finished {
    result.unwrap_or_else(|_| Err(thread_died()))
}

fn thread_died() -> Error {
    Error::system("the sweeper's thread", std::io::Error::other("it died"))
}

fn report(totals: Totals, shipped: Shipped, undelivered: u64, took: Duration) -> Report {
    Report {
        events: shipped.events,
        bytes: shipped.bytes,
        streams: shipped.streams,
        processes: shipped.processes,
        lost_full: shipped.lost_full,
        lost_nested: shipped.lost_nested,
        lost_no_lane: shipped.lost_no_lane,
        abi_violations: totals.violations,
        unknown: totals.unknown,
        clamped: totals.clamped,
        undelivered,
        left_in_lanes: totals.left,
        seconds: took.as_secs_f64(),
    }
}

/// The kernel's name for this boot: with it, process keys are unique for ever.
fn boot_id() -> Result<u128, Error> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(FILE).map_err(|error| Error::path("cannot read", FILE, error))?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|error| Error::path("cannot understand", FILE, std::io::Error::other(error)))
}

/// A segment takes two descriptors, and the usual soft limit is 1024.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

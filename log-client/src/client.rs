//! A log-client from start to stop.

use crate::clock::{Calibration, node_ns};
use crate::config::{Config, DEFAULT_HTTP};
use crate::error::Error;
use crate::facts::Sink as _;
use crate::home::{Control, Home};
use crate::report::{Desk, Reporter, Survey, pages};
use crate::ship::{Office, Outbox, Peer, Shipped, Tcp, ship};
use crate::spool::{Heritage, Reader, Spool, Writer};
use crate::sweeper::{Predecessor, Sweeper, Totals};
use futures_core::future::BoxFuture;
use miot_daemon::Http;
use miot_daemon::{Liveness, Watchdog};
use miot_tls::{Role, TlsClient};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A log-client that serves its directory: producers record from [`prepare`](Self::prepare) on, and what they
/// record waits in their lanes until [`run`](Self::run).
#[derive(Debug)]
pub struct LogClient {
    config: Config,
    tls: Option<Arc<TlsClient>>,
    home: Home,
    calibration: Calibration,
    boot: u128,
    spool: Spool,
    heritage: Heritage,
    heart: Liveness,
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
    /// Processes that recorded with another version, and were not read.
    pub other_version: u64,
    /// Records whose completion time was moved up, because it lay before that of the record before them or
    /// before what this node had promised.
    pub clamped: u64,
    /// Messages the log-server had not acknowledged when the time for a clean stop was over: they stay in the spool.
    pub undelivered: u64,
    /// Events given up for newer ones because the spool was full (`spool_full`).
    pub given_up: u64,
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
    /// The rest is for the next log-client.
    handed_over: AtomicBool,
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

/// Name of the spool in the MIOT directory.
const SPOOL: &str = "spool";

/// A promise further ahead of the wall clock than this was made before the clock was set back. To keep it would put
/// all events until then at one time; without it they come late, which the log-server marks.
const MAX_AHEAD: i64 = 1_000_000_000;

impl LogClient {
    /// Checks the settings, sets up the directory and opens the control page: from here on producers record.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Tls`]; [`Error::Running`] if the directory is served already; [`Error::NotOurs`],
    /// [`Error::Path`] and [`Error::System`] if it cannot be.
    pub fn prepare(config: Config) -> Result<LogClient, Error> {
        config.check()?;
        let tls = config.tls()?.map(|files| TlsClient::load(files, Role::Node)).transpose()?;
        if let Some(tls) = &tls {
            let name = tls.own().allows(Role::Node, &config.node);
            name.map_err(|reason| Error::Setting { key: "tls_certificate", reason })?;
        }
        let boot = boot_id()?;
        allow_many_files();
        let calibration = Calibration::begin();
        // Producers compare durations in ticks from their first request on.
        let tsc_hz = if config.min_duration.is_zero() { 0 } else { calibration.finish().tsc_hz() };
        let home = Home::prepare(&config, tsc_hz)?;
        let dir = config.spool_dir.clone().unwrap_or_else(|| config.dir.join(SPOOL));
        let (spool, heritage) = Spool::open(&dir, config.spool_bytes, config.spool_full, &config.node, boot)
            .inspect_err(|_| home.control().close())?;
        if heritage.messages > 0 {
            tracing::info!(
                messages = heritage.messages,
                dir = %dir.display(),
                "the log-client before this one left what is to be delivered"
            );
        }
        let tls = tls.map(Arc::new);
        let (heart, started) = (Liveness::default(), Instant::now());
        Ok(LogClient { calibration, tls, home, config, boot, spool, heritage, heart, started })
    }

    /// Lets a watchdog know that it sweeps.
    #[must_use]
    pub fn watched_by(self, watchdog: &mut Watchdog) -> LogClient {
        LogClient { heart: watchdog.register("sweeper"), ..self }
    }

    /// Certificate and key, to read them again while it runs; `None` without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsClient>> {
        self.tls.clone()
    }

    /// The control page, to steer the producers while it runs.
    #[must_use]
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(self.home.control())
    }

    /// Reads and ships until `shutdown` completes; then ends recording on the node, delivers what is
    /// committed and waits for its acknowledgement, at most [`Config::stop`] in all. With [`Config::hand_over`] it leaves
    /// all that to the next log-client and ends at once, as if it had been killed.
    ///
    /// # Errors
    /// [`Error::Refused`] if the log-server does not take this node; [`Error::Path`] or [`Error::System`] if
    /// sweeping cannot begin.
    pub fn run<'a>(
        self,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, Result<Report, Error>> {
        self.boxed(Box::pin(shutdown))
    }

    // Generated here, and not once more in every program that runs it.
    fn boxed<'a>(self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<Report, Error>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, shutdown: BoxFuture<'_, ()>) -> Result<Report, Error> {
        let LogClient { config, tls, home, calibration, boot, spool, heritage, heart, started } = self;
        let spool = Arc::new(spool);
        let before = Predecessor {
            next_stream: heritage.next_stream,
            promised: heritage.promised.filter(|promised| *promised <= node_ns().saturating_add(MAX_AHEAD)),
        };
        let survey = Arc::new(Mutex::new(Survey::default()));
        let control = Arc::clone(home.control());
        let desk = Desk::new(Arc::clone(&control), Arc::clone(&survey));
        let reporter = Arc::new(Reporter::new(&config, control, Arc::clone(&spool), Arc::clone(&survey)));
        let http = Http::listen(config.http.as_deref(), DEFAULT_HTTP, None).await;
        let http = http.map_err(|error| Error::Setting { key: "http", reason: error.to_string() })?;
        // Answers as long as this runs.
        let mut looking = JoinSet::new();
        if let Some(http) = http {
            looking.spawn(http.serve(pages(&reporter)));
        }
        let outbox = Outbox::new(Writer::new(Arc::clone(&spool), before.promised));
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
                home.control().publish_tsc_hz(clocks.tsc_hz());
                let sweeper = Sweeper::new(home, clocks, boot, &thread_config, before, survey);
                let _ = done.send(match sweeper {
                    Ok(sweeper) => {
                        let _ = ready.send(shared);
                        Ok(sweep(sweeper, outbox, &thread_stop, &heart))
                    }
                    Err(error) => Err(error),
                });
            })
            .map_err(|error| Error::system("cannot start the sweeper's thread", error))?;

        let Ok(clock) = clock.await else {
            return Err(thread_result(finished.await).err().unwrap_or_else(thread_died));
        };
        let (server, node) = (config.server.clone(), config.node.clone());
        let peer = Peer { server, node, dead_after: config.dead_after, tls };
        let transport = Tcp::new(peer.clone());
        let mut shipping = Box::pin(ship(
            transport,
            &peer,
            Reader::new(Arc::clone(&spool)),
            clock,
            Some(Office { reporter, desk }),
        ));
        let early = tokio::select! {
            result = &mut shipping => Some(result),
            () = shutdown => None,
        };
        let until = Instant::now() + config.stop;
        stop.handed_over.store(config.hand_over && early.is_none(), Relaxed);
        stop.at(until);
        match early {
            Some(result) => result?,
            None if config.hand_over => {}
            None => match timeout(config.stop, &mut shipping).await {
                Ok(result) => result?,
                Err(_) => tracing::error!(
                    messages = spool.left(),
                    dir = %spool.path().display(),
                    "the log-server has not acknowledged everything in the time for a clean stop: the next log-client \
                     delivers it"
                ),
            },
        }
        stop.abandoned.store(true, Relaxed);
        drop(shipping);
        let (totals, shipped) = thread_result((&mut finished).await)?;
        spool.clear();
        let report = report(totals, shipped, (spool.left(), spool.given_up()), started.elapsed());
        if config.hand_over {
            tracing::info!(
                messages = report.undelivered,
                "handed over: programs go on recording for the next log-client"
            );
        } else if totals.left {
            tracing::error!("records are left in the lanes of processes: the next log-client delivers them");
        }
        Ok(report)
    }
}

/// The life of the sweeper's thread.
fn sweep(mut sweeper: Sweeper, mut outbox: Outbox, stop: &Stop, heart: &Liveness) -> (Totals, Shipped) {
    // Asked once in each sweep.
    let wanted = || {
        heart.beat();
        stop.wanted.load(Relaxed)
    };
    sweeper.run(&mut outbox, &wanted);
    if stop.handed_over.load(Relaxed) {
        // What it has taken is in the spool, and what is not, still in the lanes.
        return (sweeper.totals(), outbox.shipped());
    }
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

fn report(totals: Totals, shipped: Shipped, (undelivered, given_up): (u64, u64), took: Duration) -> Report {
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
        other_version: totals.other_version,
        clamped: totals.clamped,
        undelivered,
        given_up,
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
    // Not rustix, whose `getrlimit` panics where a filter of system calls denies it.
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let raised = getrlimit(RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

//! A log-client from start to stop.

mod sweeper_thread;

use crate::clock::{Calibration, node_ns};
use crate::config::{Config, DEFAULT_HTTP};
use crate::directory::{Control, MiotDirectory};
use crate::error::Error;
use crate::facts::ShippedTotals;
use crate::pace::CurrentPace;
use crate::report::{CommandHandler, Reporter, pages};
use crate::servers::{Assignment, Members, OpenedSpools, ServerSet, SpoolDirs, Spools, preference};
#[cfg(feature = "broker")]
use crate::ship::Broker;
use crate::ship::{NodeServices, Peer, Tcp, ship};
use crate::spool::{Outbox, Reader, RecoveredSpool, Writer};
use crate::survey::Survey;
use crate::sweeper::{Predecessor, SweepTotals};
use futures_core::future::BoxFuture;
use miot_daemon::{Http, Liveness, Watchdog};
use miot_tls::{Role, TlsClient};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
pub(crate) use sweeper_thread::Switcher;
use sweeper_thread::{StopMode, SweeperSetup, SweeperThread};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A log-client that serves its directory: producers record from [`prepare`](Self::prepare) on, and
/// their records wait in the lanes until [`run`](Self::run).
#[derive(Debug)]
pub struct LogClient {
    config: Config,
    tls: Option<Arc<TlsClient>>,
    directory: MiotDirectory,
    calibration: Calibration,
    boot: u128,
    opened: OpenedSpools,
    liveness: Liveness,
    started: Instant,
}

/// Totals of one run of a log-client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunSummary {
    /// Records found in lanes.
    pub events: u64,
    /// Bytes of the messages that carry them.
    pub bytes: u64,
    /// Streams (incarnations of lanes) found.
    pub streams: u64,
    /// Processes found.
    pub processes: u64,
    /// Records lost because a lane was full, as counted by the producers.
    pub lost_full: u64,
    /// Records lost because a signal handler made them inside another record.
    pub lost_nested: u64,
    /// Records lost because a thread got no lane.
    pub lost_no_lane: u64,
    /// Invalid records and lanes.
    pub abi_violations: u64,
    /// Records of a kind that this version does not know; skipped.
    pub unknown: u64,
    /// Processes that recorded with another version; not read.
    pub other_version: u64,
    /// Records whose completion time was raised because it was before that of the preceding record
    /// or before the watermark of this node.
    pub clamped: u64,
    /// Messages that the log-server had not acknowledged when the time for a clean stop was over.
    /// They stay in the spool.
    pub undelivered: u64,
    /// Events dropped in favor of newer ones because the spool was full (`spool_full`).
    pub given_up: u64,
    /// True if records were left in the lanes when the time for a clean stop was over.
    pub left_in_lanes: bool,
    /// Seconds from start to end.
    pub seconds: f64,
}

/// A recovered watermark that is further ahead of the wall clock than this was set before the clock
/// was set back. Keeping it would give all events until then one time; without it they are late,
/// and the log-server marks them.
const MAX_AHEAD_NS: i64 = 1_000_000_000;

impl LogClient {
    /// Checks the settings, sets up the directory and opens the control page. From here on
    /// producers record.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Tls`]; [`Error::Running`] if another log-client serves the
    /// directory; [`Error::NotOurs`], [`Error::Path`] and [`Error::System`] if it cannot be set up.
    pub fn prepare(config: Config) -> Result<LogClient, Error> {
        config.check()?;
        let tls = config.tls()?.map(|files| TlsClient::load(files, Role::Node)).transpose()?;
        if let Some(tls) = &tls {
            let name = tls.own().allows(Role::Node, &config.node);
            name.map_err(|error| Error::Setting { key: "tls_certificate", reason: error.to_string() })?;
        }
        let boot = boot_id()?;
        raise_file_limit();
        let calibration = Calibration::begin();
        // Producers compare durations in ticks from their first request on.
        let tsc_hz = if config.min_duration.is_zero() { 0 } else { calibration.finish().tsc_hz() };
        let directory = MiotDirectory::prepare(&config, tsc_hz)?;
        let preferred = preference(&config.node, &config.members());
        let opened =
            SpoolDirs::open(&config, boot, &preferred).inspect_err(|_| directory.control().close())?;
        if opened.recovered.messages > 0 {
            tracing::info!(
                messages = opened.recovered.messages,
                dir = %opened.spools.current().spool.path().display(),
                "recovered messages that an earlier log-client did not deliver"
            );
        }
        let tls = tls.map(Arc::new);
        let (liveness, started) = (Liveness::default(), Instant::now());
        Ok(LogClient { calibration, tls, directory, config, boot, opened, liveness, started })
    }

    /// Registers the sweeper with a watchdog.
    #[must_use]
    pub fn watched_by(self, watchdog: &mut Watchdog) -> LogClient {
        LogClient { liveness: watchdog.register("sweeper"), ..self }
    }

    /// Certificate and key, for reloading while the client runs; `None` without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsClient>> {
        self.tls.clone()
    }

    /// The control page, for changing the settings of the producers while the client runs.
    #[must_use]
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(self.directory.control())
    }

    /// Reads and ships until `shutdown` completes. Then ends recording on the node, delivers the
    /// committed records and waits for their acknowledgment, for at most [`Config::stop`] in all.
    /// With [`Config::hand_over`] it leaves all that to the next log-client and returns at once, as
    /// if it had been killed.
    ///
    /// # Errors
    /// [`Error::Refused`] if the log-server refuses this node; [`Error::Path`] or [`Error::System`]
    /// if sweeping cannot start.
    pub fn run<'a>(
        self,
        shutdown: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, Result<RunSummary, Error>> {
        self.boxed(Box::pin(shutdown))
    }

    // Compiled here, not once more in every program that calls `run`.
    fn boxed<'a>(self, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<RunSummary, Error>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, shutdown: BoxFuture<'_, ()>) -> Result<RunSummary, Error> {
        let LogClient { config, tls, directory, calibration, boot, opened, liveness, started } = self;
        let OpenedSpools { spools, recovered, dirs } = opened;
        let spools = Arc::new(spools);
        let predecessor = recovered.predecessor();
        let survey = Arc::new(Mutex::new(Survey::default()));
        let control = Arc::clone(directory.control());
        let commands = CommandHandler::new(Arc::clone(&control), Arc::clone(&survey));
        let pace = CurrentPace::new(Arc::clone(&control));
        let reporter = Arc::new(Reporter::new(&config, control, Arc::clone(&spools), Arc::clone(&survey)));
        // HTTP is served as long as this set lives.
        let _http = serve_http(&config, &reporter).await?;

        let spool = spools.current().spool;
        let outbox = Outbox::new(Writer::new(Arc::clone(&spool), predecessor.watermark));
        let setup = SweeperSetup {
            directory,
            calibration,
            boot,
            config: config.clone(),
            predecessor,
            survey,
            pace: Arc::clone(&pace),
        };
        let mut sweeper = SweeperThread::start(setup, outbox, liveness)?;
        let clock = sweeper.clock().await?;
        let peer = Peer::new(&config, tls);
        let services = NodeServices { reporter, commands, pace };
        let mut shipping: BoxFuture<'_, Result<(), Error>> = match &dirs {
            None => {
                let (reader, services) = (Reader::new(spool), Some(services));
                match config.broker() {
                    #[cfg(feature = "broker")]
                    Some(broker) => {
                        Box::pin(ship(Broker::new(peer.clone(), broker), &peer, reader, clock, services))
                    }
                    _ => Box::pin(ship(Tcp::new(peer.clone()), &peer, reader, clock, services)),
                }
            }
            Some(dirs) => {
                let members = Arc::new(Members::new(preference(&config.node, &config.members())));
                let (after, dirs) = (config.fail_over_after, dirs.clone());
                let set = ServerSet {
                    members: Arc::clone(&members),
                    dirs,
                    fail_over_after: (!after.is_zero()).then_some(after),
                };
                let (peer, spools) = (peer.clone().of_set(members), Arc::clone(&spools));
                let switcher = sweeper.switcher();
                Box::pin(Assignment { set, spools, peer, clock, services, switcher }.run())
            }
        };

        let early_end = tokio::select! {
            result = &mut shipping => Some(result),
            () = shutdown => None,
        };
        let hands_over = config.hand_over && early_end.is_none();
        sweeper.stop(config.stop, if hands_over { StopMode::HandOver } else { StopMode::Deliver });
        match early_end {
            Some(result) => result?,
            None if hands_over => {}
            None => deliver_rest(&mut shipping, &spools, config.stop).await?,
        }
        sweeper.abandon();
        drop(shipping);
        let (totals, shipped) = sweeper.result().await?;
        let delivered = spools.clear();
        let summary = RunSummary::new(totals, shipped, &spools, started.elapsed());
        if let Some(dirs) = &dirs {
            delivered.into_iter().for_each(|number| dirs.remove(number));
        }
        summary.log_leftovers(config.hand_over);
        Ok(summary)
    }
}

/// Starts the HTTP pages, if they are configured.
async fn serve_http(config: &Config, reporter: &Arc<Reporter>) -> Result<JoinSet<()>, Error> {
    let http = Http::listen(config.http.as_deref(), DEFAULT_HTTP, None).await;
    let http = http.map_err(|error| Error::Setting { key: "http", reason: error.to_string() })?;
    let mut tasks = JoinSet::new();
    if let Some(http) = http {
        tasks.spawn(http.serve(pages(reporter)));
    }
    Ok(tasks)
}

/// Ships until everything is acknowledged, for at most `at_most`.
async fn deliver_rest(
    shipping: impl Future<Output = Result<(), Error>>,
    spools: &Spools,
    at_most: Duration,
) -> Result<(), Error> {
    let Ok(result) = timeout(at_most, shipping).await else {
        tracing::error!(
            messages = spools.left(),
            dir = %spools.current().spool.path().display(),
            "messages not acknowledged within the time for a clean stop; the next log-client delivers them"
        );
        return Ok(());
    };
    result
}

impl RecoveredSpool {
    fn predecessor(self) -> Predecessor {
        let latest = node_ns().saturating_add(MAX_AHEAD_NS);
        Predecessor {
            next_stream: self.next_stream,
            watermark: self.watermark.filter(|watermark| *watermark <= latest),
        }
    }
}

impl RunSummary {
    fn new(totals: SweepTotals, shipped: ShippedTotals, spools: &Spools, took: Duration) -> RunSummary {
        RunSummary {
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
            undelivered: spools.left(),
            given_up: spools.given_up(),
            left_in_lanes: totals.left,
            seconds: took.as_secs_f64(),
        }
    }

    fn log_leftovers(&self, handed_over: bool) {
        if handed_over {
            tracing::info!(
                messages = self.undelivered,
                "handed over: programs continue to record for the next log-client"
            );
        } else if self.left_in_lanes {
            tracing::error!("records left in the lanes of processes; the next log-client delivers them");
        }
    }
}

/// The kernel's id of this boot, which makes process keys globally unique.
fn boot_id() -> Result<u128, Error> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(FILE).map_err(|error| Error::path("cannot read", FILE, error))?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|error| Error::path("cannot parse", FILE, std::io::Error::other(error)))
}

/// Raises the limit of open files: a segment takes two descriptors, and the usual soft limit is
/// 1024.
fn raise_file_limit() {
    // Not rustix: its `getrlimit` panics where a system call filter denies the call.
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let raised = getrlimit(RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

//! The program `log-server`.

use clap::Parser;
use miot_daemon::User;
use miot_daemon::privileges::{create_dir_for, reduce_to};
use miot_daemon::program::{Failure, WRONG_USAGE, reload_tls, run_main};
use miot_daemon::signals::{self, Reload};
use miot_daemon::{Liveness, Watchdog, notify};
use miot_log_server::{Config, Error, ListeningServer, LogServer, Tuning};
use miot_proto::units;
use miot_tls::TlsServer;
use rustix::thread::CapabilitySet;
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two checks whether the certificate expires soon.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time between two attempts to restart after the trace was deleted, renamed or replaced.
const RESTART_EVERY: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_SERVER_ and the key in
capitals), overridden by options. All keys of the file, with their defaults:

    listen = \"127.0.0.1:4747\"        # address and port
    allow_insecure = false           # true: allow an address that other machines can reach
    # http = \"127.0.0.1:4748\"        # metrics, health, status; \"off\": none
    trace = \"/var/lib/miot/trace\"    # created if it does not exist, continued if it does
    # user = \"miot\"                  # user to switch to when started as root, once it listens
    # tls_certificate = \"FILE\"       # PEM files (`miot pki`), all three or none: encrypt, and
    # tls_key = \"FILE\"               # serve only peers with a certificate of the authority; read
    # tls_authority = \"FILE\"         # again on SIGHUP
    silent_after = \"5s\"              # time for which a silent node holds back the others
    clock_uncertainty = \"10ms\"       # log a warning for nodes with a larger error of their times
    memory = \"512 MiB\"               # for events that are not durable yet
    # node_memory = \"128 MiB\"        # maximum for one node; default: a quarter of `memory`
    merge_every = \"20ms\"             # at least 1ms
    commit_every = \"50ms\"            # one sync of the disk for all events that arrived in between
    connections = 1024
    node_connections = 8             # of one node
    rate = \"0\"                       # bytes per second of all nodes together, e.g. \"100 MiB\"; 0: no limit
    node_rate = \"0\"                  # bytes per second of one node, e.g. \"20 MiB\"; 0: no limit
    node_streams = 262144            # of one node, that have not ended; more are refused
    tail_memory = \"32 MiB\"           # a subscriber that lags by more is cut off
    seal_rows = 8388608              # a part is sealed at this number of events, ...
    seal_bytes = \"1 GiB\"             # ... or at this size, ...
    seal_after = \"15min\"             # ... or at this age
    keep_bytes = \"0 B\"               # maximum size of the sealed parts, the oldest are removed; 0: no limit
    keep_for = \"0s\"                  # parts whose last event is older are removed; 0: never

Example: receive the events of this machine's log-client and display them

    log-server --trace /data/trace &
    log-client &
    miot tail -f /data/trace

Example: serve other machines, encrypted; see miot pki --help

    miot pki init /etc/miot/pki
    miot pki server /etc/miot/pki --name logs.example.org
    log-server --listen 0.0.0.0:4747 --trace /data/trace --tls-certificate /etc/miot/pki/server/logs.example.org.pem \
        --tls-key /etc/miot/pki/server/logs.example.org.key --tls-authority /etc/miot/pki/ca.pem

SIGHUP reads the configuration again and applies silent_after, clock_uncertainty, merge_every, commit_every,
node_connections, rate, node_rate, seal_* and keep_*. Other changed keys are logged, because they need a restart.
SIGHUP also reads certificate, key and authority again, for new connections. After an error all settings stay
unchanged; use --check to verify the configuration beforehand.
SIGINT and SIGTERM stop the log-server cleanly: events already sent by nodes are written, acknowledged and sealed.
If the trace directory, or a file in it that is being written, is deleted, renamed or replaced, the log-server logs
an error, acknowledges nothing more for that trace, and creates a new trace at the same path or continues the
remaining one. The nodes send all events again that were not acknowledged.
Exit codes: 0 stopped cleanly; 1 the trace could not be written or sealed at the end (no acknowledged event is
lost); 2 wrong options or configuration, address in use, or unusable trace directory.";

/// Receives the events of all nodes, merges them by time and writes them to a trace directory.
#[derive(Parser, Debug)]
#[command(name = "log-server", version, about, after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Configuration file [default: /etc/miot/log-server.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_SERVER_CONFIG")]
    config: Option<PathBuf>,
    /// Log level: error, warn, info, debug, or a filter, e.g. miot_log_server=debug [default:
    /// $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_SERVER_LOG")]
    log: Option<String>,
    /// Check the configuration, print it with all defaults, and exit
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    flags: Flags,
}

/// Settings as options: they override all others.
#[derive(clap::Args, Serialize, Debug)]
struct Flags {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
    /// Address and port for metrics, health and status over HTTP, or off [default: 127.0.0.1:4748, if it is free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// Trace directory
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<PathBuf>,
    /// Listen on an address that other machines can reach, without encryption and authentication
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_insecure: bool,
    /// Certificate of this server, a PEM file created by `miot pki server`
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<PathBuf>,
    /// Authority whose nodes and readers are served, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_authority: Option<PathBuf>,
    /// User to switch to when started as root, once the server listens
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Time for which a silent node holds back the others, e.g. 5s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_after: Option<String>,
    /// Memory for events that are not durable yet, e.g. "512 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
}

fn main() -> ExitCode {
    miot_log_server::keep_freed_memory();
    let options = Options::parse();
    run_main("log-server", options.log.as_deref(), || {
        if options.check { check(&options) } else { run(&options) }
    })
}

fn check(options: &Options) -> Result<(), Failure<Error>> {
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    print!("{}", config.to_toml());
    Ok(())
}

/// An error before the server runs.
fn setup(error: Error) -> Failure<Error> {
    (WRONG_USAGE, error)
}

fn cannot_start(what: &'static str) -> impl Fn(io::Error) -> Failure<Error> {
    move |source| setup(Error::Start { what, source })
}

fn run(options: &Options) -> Result<(), Failure<Error>> {
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    // The store has its own thread; all connections share this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(cannot_start("the runtime"))?.block_on(serve(options, config))
}

/// Serves until a signal, with a new server whenever the trace is deleted, renamed or replaced.
async fn serve(options: &Options, config: Config) -> Result<(), Failure<Error>> {
    let stop = signals::stop().map_err(cannot_start("watching for signals"))?;
    let mut hangup = Reload::watch().map_err(cannot_start("watching for signals"))?;
    let mut watchdog = Watchdog::from_env();
    let listening = LogServer::listen(config.clone()).await.map_err(setup)?;
    drop_privileges(&config).map_err(|reason| setup(Error::Privileges(reason)))?;
    let liveness = watchdog.register("store");
    let mut server = listening.open().map_err(setup)?.with_liveness(liveness.clone());
    let address = server.local_addr();
    if let Some(Err(error)) = server.tls().as_deref().map(TlsServer::reload) {
        tracing::warn!(%error, "the key cannot be read again as this user: restart the log-server to renew it");
    }
    notify::ready(&format!("serving {address}, trace {}", config.trace.display()));
    let stopping = AtomicBool::new(false);
    let mut stop = std::pin::pin!(async {
        stop.await;
        stopping.store(true, Ordering::Relaxed);
        notify::stopping();
    });
    let mut watching = std::pin::pin!(watchdog.watch());
    let summary = loop {
        let ended = {
            let (tls, tuning) = (server.tls(), server.tuning());
            let mut running = std::pin::pin!(server.run(stop.as_mut()));
            loop {
                tokio::select! {
                    ended = &mut running => break ended,
                    never = &mut watching => match never {},
                    () = hangup.wanted() => {
                        let _reloading = notify::reloading();
                        reload(options, &tuning);
                        if let Some(tls) = &tls {
                            reload_tls(|| tls.reload());
                        }
                    }
                    () = tokio::time::sleep(DAY) => if let Some(tls) = &tls { tls.warn_of_end() },
                }
            }
        };
        match ended {
            Err(error) if error.is_trace_gone() && !stopping.load(Ordering::Relaxed) => {
                log_trace_gone(&error)
            }
            ended => break ended.map_err(|error| (1, error))?,
        }
        let config = Config { listen: address.to_string(), ..config.clone() };
        server = tokio::select! {
            server = restart(&config, &liveness) => server,
            never = &mut watching => match never {},
            () = &mut stop => return Ok(()),
        };
        reload(options, &server.tuning());
    };
    tracing::info!(
        events = summary.events,
        losses = summary.losses,
        parts = summary.parts,
        bytes = units::format_bytes(summary.bytes),
        seconds = summary.seconds,
        "stopped"
    );
    Ok(())
}

fn log_trace_gone(error: &Error) {
    tracing::error!(
        %error,
        "another program changed the trace; no event since the last commit was acknowledged, so the nodes keep these \
         events; acknowledged events are in the files that were moved away: restore them while no log-server runs, or \
         leave them; creating a new trace, or continuing the remaining one"
    );
}

/// Listens again, and creates or continues the trace, as soon as possible.
async fn restart(config: &Config, liveness: &Liveness) -> LogServer {
    let mut logged = String::new();
    loop {
        liveness.beat();
        let opened = LogServer::listen(config.clone()).await.and_then(ListeningServer::open);
        match opened {
            Ok(server) => return server.with_liveness(liveness.clone()),
            Err(error) => {
                let reason = error.to_string();
                if reason != logged {
                    tracing::error!(%error, "cannot create or continue the trace, retrying every second");
                }
                logged = reason;
            }
        }
        tokio::time::sleep(RESTART_EVERY).await;
    }
}

/// Switches to an ordinary user without capabilities, if one is configured.
fn drop_privileges(config: &Config) -> Result<(), String> {
    let user = config.user.as_deref().map(User::find).transpose()?;
    match &user {
        Some(user) => create_dir_for(user, &config.trace)
            .map_err(|error| format!("cannot create {}: {error}", config.trace.display()))?,
        None if rustix::process::geteuid().is_root() => {
            tracing::warn!("running as root: set `user` to a user that owns the trace directory");
            // Without capabilities the server could not write where root can.
            return reduce_to(None, CapabilitySet::all());
        }
        None => {}
    }
    reduce_to(user.as_ref(), CapabilitySet::empty())
}

/// Reads the configuration again and applies the keys that can change at run time. After an error
/// all settings stay unchanged.
fn reload(options: &Options, tuning: &Tuning) {
    let loaded = Config::load(options.config.as_deref(), &options.flags);
    match loaded.and_then(|config| tuning.change(&config)) {
        Ok((changed, need_restart)) => {
            tracing::info!(changed = changed.join(", "), "the configuration was read again");
            if !need_restart.is_empty() {
                tracing::warn!(keys = need_restart.join(", "), "these settings changed but need a restart");
            }
        }
        Err(error) => tracing::error!(%error, "cannot read the configuration again, settings unchanged"),
    }
}

//! `log-server`: the daemon.

use clap::Parser;
use miot_daemon::User;
use miot_daemon::privileges::{create_dir_for, reduce_to};
use miot_daemon::signals::{self, Reload};
use miot_daemon::{Liveness, Watchdog, logging, notify};
use miot_log_server::{Config, Error, Listening, LogServer, Tuning};
use miot_proto::units;
use miot_tls::TlsServer;
use rustix::thread::CapabilitySet;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it is looked whether the certificate expires soon.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Between two attempts to go on where the trace was taken away.
const BEGIN_AGAIN: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_SERVER_ and the key in
capitals), overridden by options. All keys of the file, with their defaults:

    listen = \"127.0.0.1:4747\"        # address and port
    allow_insecure = false           # true: listen on an address that other machines can reach
    # http = \"127.0.0.1:4748\"        # metrics, health, status; \"off\" for none
    trace = \"/var/lib/miot/trace\"    # begun if it is not there, continued if it is
    # user = \"miot\"                  # when started as root: who it becomes once it listens
    # tls_certificate = \"FILE\"       # PEM files (`miot pki`), all three or none: encrypts, and
    # tls_key = \"FILE\"               # serves only who has a certificate of the authority; read
    # tls_authority = \"FILE\"         # again on SIGHUP
    silent_after = \"5s\"              # a silent node holds back the others for so long
    clock_uncertainty = \"10ms\"       # a node whose times may be more wrong is warned of
    memory = \"512 MiB\"               # for events that are not durable yet
    # node_memory = \"128 MiB\"        # of one node; a quarter of `memory` if nothing is said
    merge_every = \"20ms\"             # at least 1ms
    commit_every = \"50ms\"            # one sync of the disk for all that came in between
    connections = 1024
    node_connections = 8             # of one node
    rate = \"0\"                       # bytes per second of all nodes together, such as \"100 MiB\"; 0: no limit
    node_rate = \"0\"                  # bytes per second of one node, such as \"20 MiB\"; 0: no limit
    node_streams = 262144            # of one node, that have not ended; more are refused
    tail_memory = \"32 MiB\"           # a subscriber that lags by more is cut off
    seal_rows = 8388608              # a part is sealed at so many events, ...
    seal_bytes = \"1 GiB\"             # ... or at this size, ...
    seal_after = \"15min\"             # ... or at this age
    keep_bytes = \"0 B\"               # the oldest parts are removed while the sealed ones take more; 0: never
    keep_for = \"0s\"                  # parts whose last event is older are removed; 0: never

Example: receive the events of this machine's log-client and watch them

    log-server --trace /data/trace &
    log-client &
    miot tail -f /data/trace

Example: for other machines, encrypted; miot pki --help has the rest

    miot pki init /etc/miot/pki
    miot pki server /etc/miot/pki --name logs.example.org
    log-server --listen 0.0.0.0:4747 --trace /data/trace --tls-certificate /etc/miot/pki/server/logs.example.org.pem \
        --tls-key /etc/miot/pki/server/logs.example.org.key --tls-authority /etc/miot/pki/ca.pem

SIGHUP reads the configuration again and applies silent_after, clock_uncertainty, merge_every, commit_every,
node_connections, rate, node_rate, seal_* and keep_*, and says which other keys have changed, that need a restart; it
reads certificate, key and authority again, for connections from then on. After a mistake all stays as it is; --check
says beforehand.
SIGINT and SIGTERM stop it cleanly: what nodes have sent is put into the trace, acknowledged and sealed.
If the trace directory, or a file in it that is being written, is deleted, renamed or replaced, it says so, acknowledges nothing
more into it, and begins a new trace at the same place or continues what is left; the nodes send again what was not acknowledged.
Exit codes: 0 stopped cleanly; 1 the trace could not be written or sealed at the end (nothing that was
acknowledged is lost); 2 wrong options or configuration, address in use, or unusable trace directory.";

/// Receives the events of all nodes, merges them by time and writes them to a trace directory.
#[derive(Parser, Debug)]
#[command(name = "log-server", version, about, after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Configuration file [default: /etc/miot/log-server.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_SERVER_CONFIG")]
    config: Option<PathBuf>,
    /// What to log: error, warn, info, debug, or a filter such as miot_log_server=debug
    /// [default: $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_SERVER_LOG")]
    log: Option<String>,
    /// Say whether the configuration is right, print it with all its defaults, and end
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    flags: Flags,
}

/// Settings that are given as options override all others.
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
    /// This server's certificate, a PEM file made by `miot pki server`
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_certificate: Option<PathBuf>,
    /// Its private key, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<PathBuf>,
    /// The authority whose nodes and readers are served, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_authority: Option<PathBuf>,
    /// When started as root: the user who it becomes once it listens
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// How long a silent node holds back the others, such as 5s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_after: Option<String>,
    /// Memory for events that are not durable yet, such as "512 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
}

fn main() -> ExitCode {
    miot_log_server::keep_freed_memory();
    let options = Options::parse();
    if let Err(error) = logging::start("log-server", options.log.as_deref()) {
        eprintln!("log-server: {error}");
        return ExitCode::from(2);
    }
    match if options.check { check(&options) } else { run(&options) } {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("log-server: {error}");
            ExitCode::from(code)
        }
    }
}

fn check(options: &Options) -> Result<(), (u8, Error)> {
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(|error| (2, error))?;
    print!("{}", config.to_toml());
    Ok(())
}

fn run(options: &Options) -> Result<(), (u8, Error)> {
    let setup = |error| (2, error);
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    // The store has a thread of its own; all connections share this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| setup(Error::Start { what: "the runtime", source }))?;
    runtime.block_on(async {
        let watch = |source| setup(Error::Start { what: "watching for signals", source });
        let stop = signals::stop().map_err(watch)?;
        let mut hangup = Reload::watch().map_err(watch)?;
        let mut watchdog = Watchdog::from_env();
        let listening = LogServer::listen(config.clone()).await.map_err(setup)?;
        reduce(&config).map_err(|reason| setup(Error::Privileges(reason)))?;
        let heart = watchdog.register("store");
        let mut server = listening.open().map_err(setup)?.with_heart(heart.clone());
        let address = server.local_addr();
        if let Some(Err(error)) = server.tls().as_deref().map(TlsServer::reload) {
            tracing::warn!(%error, "as this user the key cannot be read again: to renew it, restart");
        }
        notify::ready(&format!("serving {address}, trace {}", config.trace.display()));
        let stopping = AtomicBool::new(false);
        let mut stop = std::pin::pin!(async {
            stop.await;
            stopping.store(true, Ordering::Relaxed);
            notify::stopping();
        });
        let mut watching = std::pin::pin!(watchdog.watch());
        let report = loop {
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
                            reload_tls(tls.as_deref());
                        }
                        () = tokio::time::sleep(DAY) => if let Some(tls) = &tls { tls.warn_of_end() },
                    }
                }
            };
            match ended {
                Err(error) if error.is_trace_gone() && !stopping.load(Ordering::Relaxed) => tracing::error!(
                    %error,
                    "the trace was changed by somebody else; nothing since the last commit was acknowledged, so the nodes \
                     keep it; what was acknowledged before is in the files that were taken away: put them back while \
                     no log-server runs, or leave it; a new trace is begun, or what is left of this one continued"
                ),
                ended => break ended.map_err(|error| (1, error))?,
            }
            let config = Config { listen: address.to_string(), ..config.clone() };
            server = tokio::select! {
                server = begin_again(&config, &heart) => server,
                never = &mut watching => match never {},
                () = &mut stop => return Ok(()),
            };
            reload(options, &server.tuning());
        };
        tracing::info!(
            events = report.events,
            losses = report.losses,
            parts = report.parts,
            bytes = units::format_bytes(report.bytes),
            seconds = report.seconds,
            "stopped"
        );
        Ok(())
    })
}

/// Listens again, and begins or continues the trace, as soon as that can be done.
async fn begin_again(config: &Config, heart: &Liveness) -> LogServer {
    let mut said = String::new();
    loop {
        heart.beat();
        let begun = LogServer::listen(config.clone()).await.and_then(Listening::open);
        match begun {
            Ok(server) => return server.with_heart(heart.clone()),
            Err(error) => {
                let why = error.to_string();
                if why != said {
                    tracing::error!(%error, "the trace cannot be gone on with; it is tried again every second");
                }
                said = why;
            }
        }
        tokio::time::sleep(BEGIN_AGAIN).await;
    }
}

/// From here on the daemon is an ordinary user, if it can be.
fn reduce(config: &Config) -> Result<(), String> {
    let user = config.user.as_deref().map(User::find).transpose()?;
    match &user {
        Some(user) => create_dir_for(user, &config.trace)
            .map_err(|error| format!("cannot create {}: {error}", config.trace.display()))?,
        None if rustix::process::geteuid().is_root() => {
            tracing::warn!("running as root: name a user with `user`, who owns the trace directory");
            // Without capabilities it could not write where root can.
            return reduce_to(None, CapabilitySet::all());
        }
        None => {}
    }
    reduce_to(user.as_ref(), CapabilitySet::empty())
}

/// Reads the configuration again and applies what can change at run time. On an error all stays as it is.
fn reload(options: &Options, tuning: &Tuning) {
    let loaded = Config::load(options.config.as_deref(), &options.flags);
    match loaded.and_then(|config| tuning.change(&config)) {
        Ok((changed, left)) => {
            tracing::info!(changed = changed.join(", "), "the configuration was read again");
            if !left.is_empty() {
                let keys = left.join(", ");
                tracing::warn!(keys, "these keys have changed too: they count from the next start");
            }
        }
        Err(error) => tracing::error!(%error, "the configuration is not read again, the settings stay"),
    }
}

/// Reads certificate, key and authority again. On an error all stays as it is.
fn reload_tls(tls: Option<&TlsServer>) {
    match tls.map(TlsServer::reload) {
        None => {}
        Some(Ok(())) => {
            tracing::info!("certificate, key and authority were read again, for connections from now on")
        }
        Some(Err(error)) => tracing::error!(%error, "certificate, key and authority stay as they were"),
    }
}

//! `log-server`: the daemon.

use clap::Parser;
use miot_log_server::{Config, Error, LogServer};
use miot_proto::units;
use serde::Serialize;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_SERVER_ and the key in
capitals), overridden by options. All keys of the file, with their defaults:

    listen = \"127.0.0.1:4747\"        # address and port
    allow_insecure = false           # true: listen on an address that other machines can reach
    trace = \"/var/lib/miot/trace\"    # begun if it is not there, continued if it is
    silent_after = \"5s\"              # a silent node holds back the others for so long
    memory = \"512 MiB\"               # for events that are not durable yet
    merge_every = \"20ms\"
    commit_every = \"50ms\"            # one sync of the disk for all that came in between
    connections = 1024
    tail_memory = \"32 MiB\"           # a subscriber that lags by more is cut off
    seal_rows = 8388608              # a part is sealed at so many events, ...
    seal_bytes = \"1 GiB\"             # ... or at this size, ...
    seal_after = \"15min\"             # ... or at this age

Example: receive the events of this machine's log-client and watch them

    log-server --trace /data/trace &
    log-client &
    miot tail -f /data/trace

SIGINT and SIGTERM stop it cleanly: what nodes have sent is put into the trace, acknowledged and sealed.
Exit codes: 0 stopped cleanly; 1 the trace could not be written or sealed at the end (nothing that was
acknowledged is lost); 2 wrong options or configuration, address in use, or unusable trace directory.";

/// Receives the events of all nodes, merges them by time and writes them to a trace directory.
#[derive(Parser, Debug)]
#[command(name = "log-server", version, about, after_help = AFTER_HELP)]
struct Options {
    /// Configuration file [default: /etc/miot/log-server.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_SERVER_CONFIG")]
    config: Option<PathBuf>,
    /// What to log: error, warn, info, debug, or a filter such as miot_log_server=debug
    #[arg(long, value_name = "LEVEL", env = "MIOT_SERVER_LOG", default_value = "info")]
    log: String,
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
    /// Trace directory
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<PathBuf>,
    /// Listen on an address that other machines can reach, without encryption and authentication
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_insecure: bool,
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
    let filter = match EnvFilter::try_new(&options.log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("log-server: --log: {error}");
            return ExitCode::from(2);
        }
    };
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("log-server: {error}");
            ExitCode::from(code)
        }
    }
}

fn run(options: &Options) -> Result<(), (u8, Error)> {
    let setup = |error| (2, error);
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    // The store has a thread of its own; all connections share this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| setup(Error::Thread(format!("cannot be started: {e}"))))?;
    runtime.block_on(async {
        let server = LogServer::bind(config).await.map_err(setup)?;
        let signals = signals().map_err(|e| setup(Error::Thread(format!("cannot watch signals: {e}"))))?;
        let report = server.run(signals).await.map_err(|error| (1, error))?;
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

/// Ends with the first SIGINT or SIGTERM.
fn signals() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

//! `log-client`: the daemon.

use clap::Parser;
use miot_log_client::{Config, Error, LogClient};
use miot_proto::units;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_CLIENT_ and the key in
capitals), overridden by options. All keys of the file, with their defaults:

    dir = \"/dev/shm/miot\"            # or $MIOT_DIR; programs look there for the log-client
    node = \"...\"                     # the host name
    server = \"localhost:4747\"        # the log-server
    layers = []                      # of app, mpi-io, stdio, posix, fuse, client, block; none: all
    when_full = \"drop-newest\"        # or \"wait\": a complete trace, at the application's cost
    wait = \"10s\"                     # ... at most so long for a record
    lane_slots = 512                 # first lane of a thread, in slots of 64 bytes
    lane_slots_max = 32768           # a lane that fills grows up to this
    process_bytes = \"64 MiB\"         # shared memory of one process
    segments = 8192                  # processes read at a time
    memory = \"64 MiB\"                # for what the log-server has not acknowledged
    idle = \"20ms\"                    # longest sleep on an idle node
    stop = \"10s\"                     # longest clean stop

Example: trace what a program does, with both daemons on this machine

    log-server --trace /data/trace &
    log-client &
    LD_PRELOAD=libmiot_posix.so ./my_app
    miot stat /data/trace

SIGINT and SIGTERM stop it cleanly: recording ends, what processes have committed is delivered.
Exit codes: 0 stopped cleanly (what could not be delivered in time is logged); 1 failed while running;
2 wrong options or configuration, or the directory cannot be served; 3 refused by the log-server.";

/// Reads the events of all traced processes of this node and ships them to the log-server.
#[derive(Parser, Debug)]
#[command(name = "log-client", version, about, after_help = AFTER_HELP)]
struct Options {
    /// Configuration file [default: /etc/miot/log-client.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_CLIENT_CONFIG")]
    config: Option<PathBuf>,
    /// What to log: error, warn, info, debug, or a filter such as miot_log_client=debug
    /// [default: $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_CLIENT_LOG")]
    log: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

/// Settings that are given as options override all others.
#[derive(clap::Args, Serialize, Debug)]
struct Flags {
    /// MIOT directory of the node
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
    /// Name of this node in the trace
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// The log-server
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// What a producer does whose lane is full: drop-newest or wait
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    when_full: Option<String>,
    /// Memory for what the log-server has not acknowledged, such as "64 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    /// Longest clean stop, such as 10s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let filter = match &options.log {
        Some(log) => EnvFilter::try_new(log).map_err(|error| error.to_string()),
        None => Ok(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"))),
    };
    let filter = match filter {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("log-client: --log: {error}");
            return ExitCode::from(2);
        }
    };
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("log-client: {error}");
            ExitCode::from(code)
        }
    }
}

fn run(options: &Options) -> Result<(), (u8, Error)> {
    let setup = |error| (2, error);
    let system = |what| move |source| setup(Error::System { what, source });
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    // The sweeper has a thread of its own; the connection needs no more than this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("cannot start the runtime"))?;
    runtime.block_on(async {
        let signals = signals().map_err(system("cannot watch signals"))?;
        let (dir, node, server) = (config.dir.clone(), config.node.clone(), config.server.clone());
        let client = LogClient::prepare(config).map_err(setup)?;
        tracing::info!(dir = %dir.display(), node, server, "recording");
        let report = client.run(signals).await.map_err(|error| match error {
            Error::Refused { .. } => (3, error),
            error => (1, error),
        })?;
        tracing::info!(
            events = report.events,
            processes = report.processes,
            streams = report.streams,
            shipped = units::format_bytes(report.bytes),
            lost_full = report.lost_full,
            lost_nested = report.lost_nested,
            lost_no_lane = report.lost_no_lane,
            abi_violations = report.abi_violations,
            clamped = report.clamped,
            undelivered = report.undelivered,
            seconds = report.seconds,
            "stopped"
        );
        Ok(())
    })
}

/// Ends with the first SIGINT or SIGTERM.
fn signals() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

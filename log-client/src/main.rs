//! `log-client`: the daemon.

use clap::Parser;
use miot_daemon::User;
use miot_daemon::privileges::{LOG_CLIENT, reduce_to};
use miot_daemon::settings::differences;
use miot_daemon::signals::{self, Reload};
use miot_daemon::{Watchdog, logging, notify};
use miot_log_client::config::recording::when_full_name;
use miot_log_client::{Config, Control, Error, LogClient};
use miot_proto::units;
use miot_tls::TlsClient;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Interval between checks of the certificate's expiry date.
const DAY: Duration = Duration::from_secs(24 * 3600);

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_CLIENT_ and the key in \
capitals), overridden by options. All keys of the file, with their defaults:

    dir = \"/dev/shm/miot\"        # or $MIOT_DIR; programs look there
    node = \"...\"                 # the host name
    server = \"localhost:4747\"    # the log-server
    http = \"127.0.0.1:4749\"      # metrics and health; \"off\" for none
    allow_insecure = false       # true: another machine, without TLS
    tls_certificate = \"...\"      # PEM files (`miot pki`), all three or
    tls_key = \"...\"              # none; read again for each connection
    tls_authority = \"...\"        # and on SIGHUP
    user = \"...\"                 # user to switch to from root; none
    enabled = true               # false: records after `miot ctl on`
    layers = \"all\"               # or [\"posix\", \"stdio\"], [\"-stdio\"], of app,
                                 # mpi-io, stdio, posix, fuse, client, block
    ops = \"all\"                  # or [\"posix.read\", \"posix.write\"], only
                                 # these; [\"-posix.lseek\"], all except this;
                                 # [\"posix.*\"]; names without layer: all layers
    min_duration = \"0\"           # \"100us\": skip shorter requests
    sample = \"1\"                 # \"1/16\": one in a power of two, random
    cpu_time = false             # true: record the CPU time of the thread
    when_full = \"drop-newest\"    # or \"wait\": complete, but programs wait;
                                 # or \"overwrite-oldest\": keep the latest
    wait = \"10s\"                 # ... maximum per record
    flight_recorder = false      # true: overwrite; read lanes only for a
                                 # snapshot and when threads end
    lane_slots = 512             # slots (64 bytes) of a first lane
    lane_slots_max = 32768       # maximum slots of a lane
    process_bytes = \"64 MiB\"     # maximum shared memory of one process
    node_bytes = \"1 GiB\"         # ... and of all processes together
    exclude_programs = []        # [\"sshd\", \"/usr/bin/rsync\"]: not recorded
    exclude_users = []           # [\"root\", \"996\"]
    segments = 8192              # maximum processes read at a time
    spool_dir = \"...\"            # unacknowledged batches; DIR/spool
    spool_full = \"keep-oldest\"   # or \"keep-newest\": drops the oldest
                                 # events, and reports them as lost
    spool_bytes = \"64 MiB\"       # maximum size of the spool
    idle = \"20ms\"                # maximum sleep on an idle node
    devices_every = \"10s\"        # disk and mount counters; 0: never
    dead_after = \"30s\"           # reopens a silent connection
    stop = \"10s\"                 # maximum duration of a clean stop
    hand_over = false            # true: programs continue to record after a
                                 # stop, for the next log-client; see --end

Example: trace a program, with both daemons on this machine

    log-server --trace /data/trace &
    log-client &
    LD_PRELOAD=/path/to/libmiot_posix.so ./my_app
    miot stat /data/trace

Signals:
  SIGINT, SIGTERM  stop cleanly: deliver all committed records
  SIGHUP           reload the configuration and the TLS files, and apply the
                   recording settings; on an error all settings stay
                   unchanged (check first with log-client --check).
                   `miot ctl set` changes settings until the next restart
  SIGUSR1          deliver the content of the lanes, like `miot ctl snapshot`

Exit codes: 0 stopped cleanly (undelivered messages are logged); 1 failed while running; 2 invalid options \
or configuration, or the directory is not usable; 3 refused by the log-server.";

/// Reads the events of all traced processes of this node and ships them to the log-server.
#[derive(Parser, Debug)]
#[command(name = "log-client", version, about, after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Configuration file [default: /etc/miot/log-client.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_CLIENT_CONFIG")]
    config: Option<PathBuf>,
    /// Log level or filter: error, warn, info, debug, or e.g. miot_log_client=debug [default:
    /// $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_CLIENT_LOG")]
    log: Option<String>,
    /// Check the configuration, print it with all defaults, and exit
    #[arg(long)]
    check: bool,
    /// End recording that a log-client has handed over, deliver the remaining events, and exit
    #[arg(long, conflicts_with_all = ["check", "hand_over"])]
    end: bool,
    #[command(flatten)]
    flags: Flags,
}

/// Settings given as options override all other sources.
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
    /// Address of the log-server
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// Address and port for metrics and health over HTTP, or off [default: 127.0.0.1:4749, if it is
    /// free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// Allow a log-server on another machine without encryption and authentication
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_insecure: bool,
    /// User to switch to when started as root
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Certificate of this node, a PEM file made by `miot pki node`
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<PathBuf>,
    /// Certificate of the authority that signed the log-server's certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_authority: Option<PathBuf>,
    /// Policy of a producer whose lane is full: drop-newest, wait or overwrite-oldest
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    when_full: Option<String>,
    /// Directory for batches that the log-server has not acknowledged
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spool_dir: Option<PathBuf>,
    /// Policy for a full spool: keep-oldest stops reading lanes, keep-newest drops the oldest
    /// events
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spool_full: Option<String>,
    /// Maximum size of the spool, e.g. "64 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spool_bytes: Option<String>,
    /// Maximum duration of a clean stop, e.g. 10s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
    /// Leave programs recording on a clean stop, for the next log-client: for restarts and upgrades
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hand_over: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(error) = logging::start("log-client", options.log.as_deref()) {
        eprintln!("log-client: {error}");
        return ExitCode::from(2);
    }
    let result = if options.check { check(&options) } else { run(&options) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("log-client: {error}");
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
    let system = |what| move |source| setup(Error::System { what, source });
    let mut config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    if options.end {
        if !config.dir.exists() {
            return Ok(());
        }
        // Nothing more is recorded while the remaining events are delivered.
        (config.enabled, config.hand_over) = (false, false);
    }
    config.of_all_users = rustix::process::geteuid().is_root();
    let user = config.user.as_deref().map(User::find).transpose();
    let reduced = user.and_then(|user| reduce_to(user.as_ref(), LOG_CLIENT));
    reduced.map_err(|reason| setup(Error::Privileges(reason)))?;
    // The sweeper has its own thread; the connection needs only this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("cannot start the runtime"))?;
    runtime.block_on(async {
        let stop = signals::stop().map_err(system("cannot watch signals"))?;
        let mut hangup = Reload::watch().map_err(system("cannot watch signals"))?;
        let mut user = signal(SignalKind::user_defined1()).map_err(system("cannot watch signals"))?;
        let mut watchdog = Watchdog::from_env();
        let client = LogClient::prepare(config.clone()).map_err(setup)?.watched_by(&mut watchdog);
        tracing::info!(dir = %config.dir.display(), node = config.node, server = config.server, "recording");
        let (control, tls) = (client.control(), client.tls());
        notify::ready(&format!("recording on {} for {}", config.node, config.server));
        let end = options.end;
        let stop = async {
            if !end {
                stop.await;
            }
            notify::stopping();
        };
        let mut running = std::pin::pin!(client.run(stop));
        let mut watching = std::pin::pin!(watchdog.watch());
        let summary = loop {
            tokio::select! {
                summary = &mut running => break summary,
                never = &mut watching => match never {},
                () = hangup.wanted() => {
                    let _reloading = notify::reloading();
                    reload(options, &config, &control);
                    reload_tls(tls.as_deref());
                }
                () = tokio::time::sleep(DAY) => if let Some(tls) = &tls { tls.warn_of_end() },
                _ = user.recv() => {
                    let snapshot = control.request_snapshot();
                    tracing::info!(snapshot, "snapshot requested");
                }
            }
        };
        let summary = summary.map_err(|error| match error {
            Error::Refused { .. } => (3, error),
            error => (1, error),
        })?;
        tracing::info!(
            events = summary.events,
            processes = summary.processes,
            streams = summary.streams,
            shipped = units::format_bytes(summary.bytes),
            lost_full = summary.lost_full,
            lost_nested = summary.lost_nested,
            lost_no_lane = summary.lost_no_lane,
            abi_violations = summary.abi_violations,
            unknown = summary.unknown,
            other_version = summary.other_version,
            clamped = summary.clamped,
            undelivered = summary.undelivered,
            given_up = summary.given_up,
            seconds = summary.seconds,
            "stopped"
        );
        Ok(())
    })
}

/// Reads the configuration again and applies the settings that the control page holds. On an error
/// all settings stay unchanged.
fn reload(options: &Options, running: &Config, control: &Control) {
    let loaded = Config::load(options.config.as_deref(), &options.flags)
        .and_then(|config| config.settings().map(|settings| (config, settings)));
    let (config, settings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            return tracing::error!(%error, "cannot reload the configuration, settings unchanged");
        }
    };
    if let Err(error) = control.replace(&settings) {
        return tracing::error!(%error, "cannot apply the configuration, settings unchanged");
    }
    tracing::info!(
        enabled = config.enabled,
        layers = %config.layers,
        ops = %config.ops,
        min_duration = units::format_duration(config.min_duration),
        sample = %config.sample,
        cpu_time = config.cpu_time,
        when_full = when_full_name(settings.when_full),
        flight_recorder = config.flight_recorder,
        "configuration reloaded"
    );
    let left = differences(running, &config.with_control_settings_of(running));
    if !left.is_empty() {
        tracing::warn!(keys = left.join(", "), "changed settings require a restart");
    }
}

/// Reads certificate, key and authority again. On an error the loaded ones stay in use.
fn reload_tls(tls: Option<&TlsClient>) {
    match tls.map(|tls| tls.reload().map(|()| tls.warn_of_end())) {
        None => {}
        Some(Ok(())) => {
            tracing::info!("certificate, key and authority reloaded for new connections")
        }
        Some(Err(error)) => {
            tracing::error!(%error, "cannot reload certificate, key and authority, the loaded ones stay in use")
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// The line `key = value` of each key with its default.
    fn keys() -> Vec<String> {
        let file = || Some("/file".into());
        let text = Config {
            spool_dir: file(),
            tls_certificate: file(),
            tls_key: file(),
            tls_authority: file(),
            user: Some("miot".into()),
            http: Some("127.0.0.1:4749".into()),
            ..Config::default()
        }
        .to_toml();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn help_and_example_list_all_keys_and_defaults() {
        let example = include_str!("../../deploy/log-client.toml").replace("\n# ", "\n");
        for line in keys() {
            let (key, _) = line.split_once(' ').unwrap();
            let own = ["dir", "node", "spool_dir", "user"].contains(&key) || key.starts_with("tls_");
            let entry = if own { format!("{key} = ") } else { line.clone() };
            assert!(AFTER_HELP.contains(&format!("\n    {entry}")), "{entry} in the help");
            let listed = ["dir", "node", "segments", "idle", "stop", "hand_over"].contains(&key);
            assert!(listed || example.contains(&format!("\n{entry}")), "{entry} in deploy/log-client.toml");
        }
    }
}

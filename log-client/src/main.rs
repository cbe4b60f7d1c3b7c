//! `log-client`: the daemon.

use clap::Parser;
use miot_daemon::User;
use miot_daemon::privileges::{LOG_CLIENT, reduce_to};
use miot_daemon::settings::differences;
use miot_daemon::signals::{self, Reload};
use miot_daemon::{Watchdog, logging, notify};
use miot_log_client::config::recorded::when_full_name;
use miot_log_client::{Config, Control, Error, LogClient};
use miot_proto::units;
use miot_tls::TlsClient;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often it is looked whether the certificate expires soon.
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
    user = \"...\"                 # started as root: who it becomes; none
    enabled = true               # false: nothing before `miot ctl on`
    layers = \"all\"               # or [\"posix\", \"stdio\"], [\"-stdio\"], of app,
                                 # mpi-io, stdio, posix, fuse, client, block
    ops = \"all\"                  # or [\"posix.read\", \"posix.write\"], only
                                 # these; [\"-posix.lseek\"], all but this;
                                 # [\"posix.*\"]; names without layer: any
    min_duration = \"0\"           # \"100us\": shorter ones are left out
    sample = \"1\"                 # \"1/16\": one in a power of two, by lot
    cpu_time = false             # true: with the CPU time of the thread
    when_full = \"drop-newest\"    # or \"wait\": complete, the program waits;
                                 # or \"overwrite-oldest\": the latest
    wait = \"10s\"                 # ... at most so long for one record
    flight_recorder = false      # true: overwrite; read lanes only on a
                                 # snapshot and when threads end
    lane_slots = 512             # first lane of a thread, 64 bytes each
    lane_slots_max = 32768       # a lane that fills grows up to this
    process_bytes = \"64 MiB\"     # shared memory of one process
    node_bytes = \"1 GiB\"         # ... and of all together
    exclude_programs = []        # [\"sshd\", \"/usr/bin/rsync\"]: not recorded
    exclude_users = []           # [\"root\", \"996\"]
    segments = 8192              # processes read at a time
    spool_dir = \"...\"            # for what is not acknowledged; DIR/spool
    spool_full = \"keep-oldest\"   # or \"keep-newest\": the oldest events in it
                                 # are given up, and told as lost
    spool_bytes = \"64 MiB\"       # at most so much of it
    idle = \"20ms\"                # longest sleep on an idle node
    devices_every = \"10s\"        # counters of disks and mounts; 0: never
    dead_after = \"30s\"           # a silent connection is made anew
    stop = \"10s\"                 # longest clean stop
    hand_over = false            # true: stopping leaves programs recording, for
                                 # the next log-client; --end ends that

Example: trace what a program does, with both daemons on this machine

    log-server --trace /data/trace &
    log-client &
    LD_PRELOAD=/path/to/libmiot_posix.so ./my_app
    miot stat /data/trace

Signals:
  SIGINT, SIGTERM  stop cleanly: what programs have committed is delivered
  SIGHUP           read the configuration and the TLS files again, and tell
                   the programs what is recorded from now on; after a mistake
                   all stays as it is. log-client --check says beforehand.
                   `miot ctl set` does the same without a file, until the next
                   restart
  SIGUSR1          deliver what the lanes hold, as `miot ctl snapshot` does

Exit codes: 0 stopped cleanly (what could not be delivered in time is logged); 1 failed while running; 2 wrong options \
or configuration, or the directory cannot be served; 3 refused by the log-server.";

/// Reads the events of all traced processes of this node and ships them to the log-server.
#[derive(Parser, Debug)]
#[command(name = "log-client", version, about, after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Configuration file [default: /etc/miot/log-client.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_CLIENT_CONFIG")]
    config: Option<PathBuf>,
    /// What to log: error, warn, info, debug, or a filter such as miot_log_client=debug
    /// [default: $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_CLIENT_LOG")]
    log: Option<String>,
    /// Say whether the configuration is right, print it with all its defaults, and end
    #[arg(long)]
    check: bool,
    /// End recording that a log-client has handed over, deliver what it has left, and end
    #[arg(long, conflicts_with_all = ["check", "hand_over"])]
    end: bool,
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
    /// Address and port for metrics and health over HTTP, or off [default: 127.0.0.1:4749, if it is free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// Send to another machine without encryption and authentication
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_insecure: bool,
    /// When started as root: the user who it becomes
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// This node's certificate, a PEM file made by `miot pki node`
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_certificate: Option<PathBuf>,
    /// Its private key, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<PathBuf>,
    /// The authority that signed the log-server's certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_authority: Option<PathBuf>,
    /// What a producer does whose lane is full: drop-newest, wait or overwrite-oldest
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    when_full: Option<String>,
    /// Where to keep what the log-server has not acknowledged
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spool_dir: Option<PathBuf>,
    /// What goes when it is full: keep-oldest takes no more from the lanes, keep-newest gives up the oldest events
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spool_full: Option<String>,
    /// At most so much of it, such as "64 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spool_bytes: Option<String>,
    /// Longest clean stop, such as 10s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
    /// On a clean stop leave programs recording, for the next log-client: for restarts and upgrades
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
    let done = if options.check { check(&options) } else { run(&options) };
    match done {
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
        // Nothing is to be recorded while the rest is delivered.
        (config.enabled, config.hand_over) = (false, false);
    }
    config.of_all_users = rustix::process::geteuid().is_root();
    let user = config.user.as_deref().map(User::find).transpose();
    let reduced = user.and_then(|user| reduce_to(user.as_ref(), LOG_CLIENT));
    reduced.map_err(|reason| setup(Error::Privileges(reason)))?;
    // The sweeper has a thread of its own; the connection needs no more than this one.
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
        let report = loop {
            tokio::select! {
                report = &mut running => break report,
                never = &mut watching => match never {},
                () = hangup.wanted() => {
                    let _reloading = notify::reloading();
                    reload(options, &config, &control);
                    reload_tls(tls.as_deref());
                }
                () = tokio::time::sleep(DAY) => if let Some(tls) = &tls { tls.warn_of_end() },
                _ = user.recv() => {
                    let snapshot = control.request_snapshot();
                    tracing::info!(snapshot, "what the lanes hold is to be delivered");
                }
            }
        };
        let report = report.map_err(|error| match error {
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
            unknown = report.unknown,
            other_version = report.other_version,
            clamped = report.clamped,
            undelivered = report.undelivered,
            given_up = report.given_up,
            seconds = report.seconds,
            "stopped"
        );
        Ok(())
    })
}

/// Reads the configuration again and applies what the control page can say. On an error all stays as it is.
fn reload(options: &Options, running: &Config, control: &Control) {
    let loaded = Config::load(options.config.as_deref(), &options.flags)
        .and_then(|config| config.settings().map(|settings| (config, settings)));
    let (config, settings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            return tracing::error!(%error, "the configuration is not read again, the settings stay");
        }
    };
    if let Err(error) = control.replace(&settings) {
        return tracing::error!(%error, "the settings stay");
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
        "the configuration was read again"
    );
    let left = differences(running, &config.with_steered_of(running));
    if !left.is_empty() {
        tracing::warn!(keys = left.join(", "), "these keys have changed too: they count from the next start");
    }
}

/// Reads certificate, key and authority again. On an error all stays as it is.
fn reload_tls(tls: Option<&TlsClient>) {
    match tls.map(|tls| tls.reload().map(|()| tls.warn_of_end())) {
        None => {}
        Some(Ok(())) => {
            tracing::info!("certificate, key and authority were read again, for connections from now on")
        }
        Some(Err(error)) => tracing::error!(%error, "certificate, key and authority stay as they were"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// The line `key = value` of each key, as it is printed by default.
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
    fn help_and_example_say_all_keys_and_their_defaults() {
        let example = include_str!("../../deploy/log-client.toml").replace("\n# ", "\n");
        for line in keys() {
            let (key, _) = line.split_once(' ').unwrap();
            let own = ["dir", "node", "spool_dir", "user"].contains(&key) || key.starts_with("tls_");
            let said = if own { format!("{key} = ") } else { line.clone() };
            assert!(AFTER_HELP.contains(&format!("\n    {said}")), "{said} in the help");
            let listed = ["dir", "node", "segments", "idle", "stop", "hand_over"].contains(&key);
            assert!(listed || example.contains(&format!("\n{said}")), "{said} in deploy/log-client.toml");
        }
    }
}

//! `log-client`: the daemon.

use clap::Parser as _;
use miot_daemon::User;
use miot_daemon::privileges::{LOG_CLIENT, reduce_to};
use miot_daemon::program::{Failure, WRONG_USAGE, reload_tls, run_main};
use miot_daemon::settings::differences;
use miot_daemon::signals::{self, Reload};
use miot_daemon::{Watchdog, notify};
use miot_log_client::cli::Options;
use miot_log_client::config::recording::when_full_name;
use miot_log_client::{Config, Control, Error, LogClient};
use miot_proto::units;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Interval between checks of the certificate's expiry date.
const DAY: Duration = Duration::from_secs(24 * 3600);

fn main() -> ExitCode {
    let options = Options::parse();
    run_main("log-client", options.log.as_deref(), || {
        if options.check { check(&options) } else { run(&options) }
    })
}

fn check(options: &Options) -> Result<(), Failure<Error>> {
    let config = Config::load(options.config.as_deref(), &options.flags).map_err(setup)?;
    print!("{}", config.to_toml());
    Ok(())
}

/// An error before recording starts.
fn setup(error: Error) -> Failure<Error> {
    (WRONG_USAGE, error)
}

fn run(options: &Options) -> Result<(), Failure<Error>> {
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
    reduced.map_err(|error| setup(error.into()))?;
    // The sweeper has its own thread; the connection needs only this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("cannot start the runtime"))?;
    runtime.block_on(async {
        let stop = signals::stop().map_err(system("cannot watch signals"))?;
        let mut hangup = Reload::watch().map_err(system("cannot watch signals"))?;
        let mut user = signal(SignalKind::user_defined1()).map_err(system("cannot watch signals"))?;
        let mut watchdog = Watchdog::from_env();
        let client = LogClient::prepare(config.clone()).map_err(setup)?.watched_by(&mut watchdog);
        tracing::info!(dir = %config.dir.display(), node = config.node, server = config.members().join(","), "recording");
        let (control, tls) = (client.control(), client.tls());
        notify::ready(&format!("recording on {} for {}", config.node, config.members().join(", ")));
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
                    if let Some(tls) = &tls {
                        reload_tls(|| tls.reload().map(|()| tls.warn_of_end()));
                    }
                }
                () = tokio::time::sleep(DAY) => if let Some(tls) = &tls { tls.warn_of_end() },
                _ = user.recv() => {
                    let snapshot = control.request_snapshot();
                    tracing::info!(snapshot, "snapshot requested");
                }
            }
        };
        let summary = summary.map_err(|error| match error {
            Error::Refused { .. } | Error::Set { .. } => (3, error),
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

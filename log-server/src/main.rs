//! The program `log-server`.

#![expect(clippy::disallowed_types, reason = "whether the server was asked to stop")]

use clap::Parser as _;
use miot_daemon::User;
use miot_daemon::privileges::{create_dir_for, reduce_to};
use miot_daemon::program::{Failure, WRONG_USAGE, reload_tls, run_main};
use miot_daemon::signals::{self, Reload};
use miot_daemon::{Liveness, Watchdog, notify};
use miot_log_server::cli::Options;
use miot_log_server::{Config, Error, ListeningServer, LogServer, Tuning};
use miot_proto::units;
use miot_tls::TlsServer;
use rustix::thread::CapabilitySet;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two checks whether the certificate expires soon.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time between two attempts to restart after the trace was deleted, renamed or replaced.
const RESTART_EVERY: Duration = Duration::from_secs(1);

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
    let collect = miot_log_server::collect_messages;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().on_thread_park(collect).build();
    runtime.map_err(cannot_start("the runtime"))?.block_on(serve(options, config))
}

/// Serves until a signal, with a new server whenever the trace is deleted, renamed or replaced.
async fn serve(options: &Options, config: Config) -> Result<(), Failure<Error>> {
    let stop = signals::stop().map_err(cannot_start("watching for signals"))?;
    let mut hangup = Reload::watch().map_err(cannot_start("watching for signals"))?;
    let mut watchdog = Watchdog::from_env();
    let listening = LogServer::listen(config.clone()).await.map_err(setup)?;
    drop_privileges(&config).map_err(setup)?;
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
fn drop_privileges(config: &Config) -> Result<(), Error> {
    let user = config.user.as_deref().map(User::find).transpose()?;
    match &user {
        Some(user) => create_dir_for(user, &config.trace)
            .map_err(|source| Error::CreateTrace { path: config.trace.clone(), source })?,
        None if rustix::process::geteuid().is_root() => {
            tracing::warn!("running as root: set `user` to a user that owns the trace directory");
            // Without capabilities the server could not write where root can.
            return Ok(reduce_to(None, CapabilitySet::all())?);
        }
        None => {}
    }
    Ok(reduce_to(user.as_ref(), CapabilitySet::empty())?)
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

//! The program `miot-uploader`.

use clap::Parser as _;
use miot_daemon::program::{Failure, WRONG_USAGE, run_main};
use miot_daemon::{notify, signals};
use miot_log_server::Config;
use miot_uploader::address::Store;
use miot_uploader::cli::Options;
use miot_uploader::error::Error;
use miot_uploader::uploader::Uploader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Time between two looks for sealed parts.
const EVERY: Duration = Duration::from_secs(1);
/// Time to the next attempt after repeated errors.
const MAX_WAIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let options = Options::parse();
    run_main("miot-uploader", options.log.as_deref(), || {
        let (dir, store, register) = settings(&options).map_err(|error| (WRONG_USAGE, error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(Error::Settings(format!("no runtime: {error}"))))?;
        let mut uploader = Uploader::new(&dir, store.clone(), register);
        runtime.block_on(async {
            if options.once {
                return copy_once(&mut uploader, &store.name).await;
            }
            let stop = signals::stop().map_err(|error| failed(Error::Settings(error.to_string())))?;
            notify::ready(&format!("copying {} to {}", dir.display(), store.name));
            tokio::select! {
                () = stop => Ok(()),
                never = serve(&mut uploader) => match never {},
            }
        })
    })
}

fn failed(error: Error) -> Failure<Error> {
    (1, error)
}

/// Returns trace directory, store and the command that registers parts.
fn settings(options: &Options) -> Result<(PathBuf, Store, Vec<String>), Error> {
    let config = Config::load(options.config.as_deref(), &options.flags)
        .map_err(|error| Error::Settings(error.to_string()))?;
    let Some(address) = &config.store else {
        return Err(Error::Settings(
            "no store: set `store = \"s3://bucket/prefix\"` in the log-server's configuration, or use --store"
                .to_owned(),
        ));
    };
    let store = Store::open(address)?;
    require_trace(&config.trace, options.once)?;
    Ok((config.trace, store, config.register))
}

/// The service waits for a log-server that has not begun its trace yet.
fn require_trace(dir: &Path, once: bool) -> Result<(), Error> {
    if once { miot_trace_store::Manifest::read(dir).map(drop).map_err(Error::Trace) } else { Ok(()) }
}

async fn copy_once(uploader: &mut Uploader, store: &str) -> Result<(), Failure<Error>> {
    let copied = uploader.pass().await.map_err(failed)?;
    eprintln!("{copied} parts copied; {store} has all parts that are sealed");
    Ok(())
}

/// Copies parts as they are sealed, forever.
async fn serve(uploader: &mut Uploader) -> std::convert::Infallible {
    let mut wait = EVERY;
    loop {
        match uploader.pass().await {
            Ok(_) => wait = EVERY,
            Err(error) => {
                tracing::error!(%error, retry_s = wait.as_secs_f64(), "sealed parts wait");
                notify::status(&format!("sealed parts wait: {error}"));
                tokio::time::sleep(wait.mul_f64(fastrand::f64().mul_add(0.5, 0.75))).await;
                wait = (wait * 2).min(MAX_WAIT);
                continue;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

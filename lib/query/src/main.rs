//! `miot-query`: traces in SQL. `miot query` runs it.
//!
//! | module | role |
//! |---|---|
//! | `cli`, in the library | the command line |
//! | `session` | runs SQL: limits, and the state of the traces at the start of a statement |
//! | `catalog`, `views` | names available in SQL |
//! | `trace` | reading of rows: sealed parts by the query engine, the rest by the trace store |
//! | `live` | rows that the trace store reads |
//! | `output` | results in the requested format |
//! | `statement` | running statements, and notes besides their rows |
//! | `explain` | explanations of errors in queries |
//! | `workers` | queries on several machines, and their connections |
//! | `worker` | the service that runs parts of them |
//! | `temporary` | removal of temporary files |
//! | `shell` | the interactive shell |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod catalog;
mod explain;
mod live;
mod output;
mod session;
mod shell;
mod statement;
mod temporary;
mod trace;
mod views;
#[cfg(feature = "workers")]
mod worker;
#[cfg(feature = "workers")]
mod workers;

use clap::Parser as _;
use miot_query::cli::Options;
use session::Session;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use statement::Failure;
use std::io::{IsTerminal as _, Write as _, read_to_string, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::Builder;

/// Stack size of a thread, bytes: deep expressions are planned recursively.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    #[cfg(feature = "workers")]
    if std::env::args_os().nth(1).is_some_and(|word| word == "worker") {
        let words = std::env::args_os().take(1).chain(std::env::args_os().skip(2));
        return worker::main(&miot_query::cli::WorkerOptions::parse_from(words));
    }
    let ended = run(Options::parse());
    temporary::remove();
    let Err(failed) = ended else { return ExitCode::SUCCESS };
    if !failed.text.is_empty() {
        report(&failed.text);
    }
    ExitCode::from(failed.code)
}

fn run(options: Options) -> Result<(), Failure> {
    if options.check {
        return check(&options);
    }
    let (traces, sql) = options.split().map_err(Failure::usage)?;
    if let Some(to) = &options.copy {
        return copy(&traces, sql.as_deref(), to);
    }
    if options.format.is_binary() && options.output.is_none() && stdout().is_terminal() {
        return Err(Failure::usage("this format is not for terminals: -o FILE, or redirect it"));
    }
    let interactive = sql.is_none() && stdin().is_terminal();
    end_on(if interactive { &[SIGHUP, SIGTERM] } else { &[SIGHUP, SIGTERM, SIGINT] })
        .map_err(Failure::other)?;
    let session = Session::new(options, &traces)?;
    let engine =
        Builder::new_multi_thread().enable_all().thread_stack_size(STACK).build().map_err(Failure::other)?;
    if interactive {
        engine.block_on(session.open())?;
        return Ok(shell::run()?);
    }
    let sql = match sql {
        Some(sql) => sql,
        None => read_to_string(stdin()).map_err(Failure::other)?,
    };
    let all = engine.spawn(async move { statement::all(&session, &sql).await });
    let ended = engine.block_on(all).unwrap_or_else(|error| Err(Failure::other(error)));
    // Not all operators check whether their rows are still needed.
    engine.shutdown_background();
    ended
}

/// Checks the workers.
#[cfg(feature = "workers")]
fn check(options: &Options) -> Result<(), Failure> {
    let workers = workers::Workers::new(options).map_err(|error| Failure::usage(format!("{error:#}")))?;
    let Some(workers) = workers else { return Err(Failure::usage("--check needs --workers")) };
    let engine = Builder::new_current_thread().enable_all().build().map_err(Failure::other)?;
    let (good, failed) = engine.block_on(workers.report());
    for line in good {
        writeln!(stdout(), "{line}").map_err(Failure::other)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::other(anyhow::Error::msg(failed.join("\n")))) }
}

#[cfg(not(feature = "workers"))]
fn check(_: &Options) -> Result<(), Failure> {
    Err(Failure::usage(session::WITHOUT_WORKERS))
}

/// Copies a trace from an object store.
fn copy(traces: &[String], sql: Option<&str>, to: &Path) -> Result<(), Failure> {
    let ([trace], None) = (traces, sql) else {
        return Err(Failure::usage(
            "--copy copies one trace, without SQL: miot query s3://traces/mon --copy DIR",
        ));
    };
    end_on(&[SIGHUP, SIGTERM, SIGINT]).map_err(Failure::other)?;
    let location = trace::Location::parse(trace)?;
    let engine = Builder::new_current_thread().enable_all().build().map_err(Failure::other)?;
    match engine.block_on(trace::copy(&location, to))? {
        None => Ok(()),
        Some(missing) => Err(Failure::incomplete(missing)),
    }
}

/// Ends the process at once at these signals, without waiting for the engine's threads.
fn end_on(signals: &[i32]) -> std::io::Result<()> {
    let mut signals = Signals::new(signals)?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            temporary::remove();
            report("interrupted");
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn report(text: &str) {
    // The terminal may be gone.
    let _ = writeln!(std::io::stderr(), "miot query: {text}");
}

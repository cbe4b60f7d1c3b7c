//! `miot-query`: traces in SQL. `miot query` runs it.
//!
//! | module | role |
//! |---|---|
//! | `options` | the command line |
//! | `session` | what runs SQL: limits, and the traces as they are when a statement begins |
//! | `catalog`, `views` | names that SQL may use |
//! | `trace` | where rows come from: sealed parts by the query engine, the rest by the trace store |
//! | `live`, `convert` | rows of the trace store, in the query engine's version of Arrow |
//! | `output` | results in the format that was asked for |
//! | `explain` | what is wrong with a query, and what to write instead |
//! | `shell` | asking interactively |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod catalog;
mod convert;
mod explain;
mod live;
mod options;
mod output;
mod session;
mod shell;
mod statement;
mod trace;
mod views;

use clap::Parser as _;
use options::Options;
use session::Session;
use statement::{Failed, Runner};
use std::io::{IsTerminal as _, Write as _, read_to_string, stdin, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Deep expressions are planned recursively.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let Err(failed) = run(Options::parse()) else { return ExitCode::SUCCESS };
    if !failed.text.is_empty() {
        // The terminal may be gone.
        let _ = writeln!(std::io::stderr(), "miot query: {}", failed.text);
    }
    ExitCode::from(failed.code)
}

fn run(options: Options) -> Result<(), Failed> {
    let (traces, sql) = options.split().map_err(Failed::usage)?;
    if options.format.is_binary() && options.output.is_none() && stdout().is_terminal() {
        return Err(Failed::usage("this format is not for terminals: -o FILE, or redirect it"));
    }
    let spill = spill(&options)?;
    let session = Session::new(options, &traces, spill.as_ref().map(TempDir::path))?;
    let engine =
        Builder::new_multi_thread().enable_all().thread_stack_size(STACK).build().map_err(Failed::other)?;
    // Of its own, because the engine's threads may all be busy when Ctrl-C comes.
    let control = Builder::new_current_thread().enable_all().build().map_err(Failed::other)?;
    let handle = engine.handle().clone();
    let ended = control.block_on(async {
        let interrupts = signal(SignalKind::interrupt()).map_err(Failed::other)?;
        let mut runner = Runner { session: Arc::new(session), engine: handle, interrupts };
        let sql = match sql {
            Some(sql) => sql,
            None if stdin().is_terminal() => return Ok(shell::run(&mut runner).await?),
            None => read_to_string(stdin()).map_err(Failed::other)?,
        };
        runner.run(sql).await
    });
    engine.shutdown_background();
    ended
}

/// A folder for temporary files, removed when it is dropped. A query that needs none does without it.
fn spill(options: &Options) -> Result<Option<TempDir>, Failed> {
    let mut name = tempfile::Builder::new();
    name.prefix("miot-query-");
    match &options.spill_dir {
        None => Ok(name.tempdir().ok()),
        Some(dir) => name.tempdir_in(dir).map(Some).map_err(|error| {
            Failed::usage(format!(
                "--spill-dir {}: temporary files cannot be made there: {error}",
                dir.display()
            ))
        }),
    }
}

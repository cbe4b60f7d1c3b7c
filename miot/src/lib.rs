//! The command-line tool `miot`: one module for each command.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod bench;
mod cat;
mod check;
mod compact;
mod ctl;
mod devices;
mod doctor;
mod estimate;
mod export;
mod files;
mod filter;
mod fsstats;
mod generate;
mod import;
mod model;
mod numbers;
mod output;
mod phases;
mod pki;
mod query;
mod recorded;
mod remote;
mod replay;
mod report;
mod run;
mod sets;
mod simulate;
mod source;
mod stat;
mod summary;
mod tail;
mod top;
mod tree;
mod unread;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// Exit code for a failure of MIOT. `run` exits with 125 instead, like `env` and `timeout`.
const EXIT_FAILED: u8 = 1;

#[derive(Parser)]
#[command(
    name = "miot",
    version,
    about = "Records every I/O request of programs and file-system clients as one ordered trace",
    after_help = "Example:\n  miot run -- tar -cf /tmp/docs.tar docs     trace one command, no set-up\n  miot cat miot-trace                        print its events\n  miot query miot-trace                      query it in SQL\n  miot tail -f server:4747                   follow the events of a cluster\n  miot top --in-flight --min-age 1s          requests in progress on this node\n  miot ctl off                               stop recording in running programs\n  miot pki init pki                          certificates for a cluster\n  miot fsstats /home                         sizes, ages and names of the files of a file system\n  miot export miot-trace --format ctf -o ctf  for babeltrace2 and Trace Compass\n  miot doctor                                check the setup of this node\n\nExit codes: 0 success, 1 failure, 2 wrong usage, 4 done, but part of the trace is damaged or missing and was not read (it is named on standard error); `run` has its own, see `miot run --help`."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Arguments>),
    Cat(cat::Arguments),
    Tail(tail::Arguments),
    Stat(stat::Arguments),
    Report(report::Arguments),
    Simulate(Box<simulate::Arguments>),
    Generate(generate::Arguments),
    Query(query::Arguments),
    Devices(devices::Arguments),
    Phases(phases::Arguments),
    Model(model::Arguments),
    Estimate(estimate::Arguments),
    Fsck(check::Arguments),
    Compact(compact::Arguments),
    Export(export::Arguments),
    Fsstats(Box<fsstats::Arguments>),
    Import(import::Arguments),
    Ctl(ctl::Arguments),
    Top(top::Arguments),
    Pki(pki::Arguments),
    Doctor(doctor::Arguments),
    Bench(Box<bench::Arguments>),
    Replay(Box<replay::Arguments>),
    #[command(hide = true)]
    BenchRank(bench::Rank),
    #[command(hide = true)]
    ReplayProcess(replay::Process),
    #[command(hide = true)]
    BenchSweep(bench::launched::Sweep),
}

/// Returns the definition of the command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the tool.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A closed pipe (`miot cat | head`) is not an error. SAFETY: restores the default action of a
    // signal, before any thread exists.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    miot_log_server::keep_freed_memory();
    let is_run = matches!(arguments.command, Command::Run(_));
    let (result, failed) = match arguments.command {
        Command::Run(arguments) => (run::run(&arguments), run::EXIT_FAILED),
        Command::Cat(arguments) => (cat::run(&arguments), EXIT_FAILED),
        Command::Tail(arguments) => (tail::run(&arguments), EXIT_FAILED),
        Command::Stat(arguments) => (stat::run(&arguments), EXIT_FAILED),
        Command::Report(arguments) => (report::run(&arguments), EXIT_FAILED),
        Command::Simulate(arguments) => (simulate::run(&arguments), EXIT_FAILED),
        Command::Generate(arguments) => (generate::run(&arguments), EXIT_FAILED),
        Command::Query(arguments) => (query::run(&arguments), EXIT_FAILED),
        Command::Devices(arguments) => (devices::run(&arguments), EXIT_FAILED),
        Command::Phases(arguments) => (phases::run(&arguments), EXIT_FAILED),
        Command::Model(arguments) => (model::run(&arguments), EXIT_FAILED),
        Command::Estimate(arguments) => (estimate::run(&arguments), EXIT_FAILED),
        Command::Compact(arguments) => (compact::run(&arguments), EXIT_FAILED),
        Command::Fsck(arguments) => (check::run(&arguments), EXIT_FAILED),
        Command::Export(arguments) => (export::run(&arguments), EXIT_FAILED),
        Command::Fsstats(arguments) => (fsstats::run(&arguments), EXIT_FAILED),
        Command::Import(arguments) => (import::run(&arguments), EXIT_FAILED),
        Command::Ctl(arguments) => (ctl::run(arguments), EXIT_FAILED),
        Command::Top(arguments) => (top::run(&arguments), EXIT_FAILED),
        Command::Pki(arguments) => (pki::run(&arguments), EXIT_FAILED),
        Command::Doctor(arguments) => (doctor::run(&arguments), EXIT_FAILED),
        Command::Bench(arguments) => (bench::run(&arguments), EXIT_FAILED),
        Command::Replay(arguments) => (replay::run(&arguments), EXIT_FAILED),
        Command::ReplayProcess(arguments) => (replay::process(&arguments), EXIT_FAILED),
        Command::BenchRank(arguments) => (bench::rank(&arguments), EXIT_FAILED),
        Command::BenchSweep(arguments) => (bench::launched::sweep(&arguments), EXIT_FAILED),
    };
    let result = match result {
        Ok(ExitCode::SUCCESS) if unread::report_unread() && !is_run => {
            Ok(ExitCode::from(unread::EXIT_INCOMPLETE))
        }
        other => {
            unread::report_unread();
            other
        }
    };
    result.unwrap_or_else(|error| {
        // The terminal may be gone.
        let _ = writeln!(std::io::stderr(), "miot: {}", chain(&error));
        ExitCode::from(failed)
    })
}

/// Formats an error and its causes, each once: many library errors already contain the text of
/// their cause.
fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_definition_is_valid() {
        super::command().debug_assert();
    }

    #[test]
    fn cause_is_printed_once() {
        let error = anyhow::anyhow!("no space").context("cannot write x: no space").context("not stored");
        assert_eq!(super::chain(&error), "not stored: cannot write x: no space");
    }
}

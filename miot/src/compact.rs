//! `miot compact`: one ordered trace of the traces of several log-servers.

use crate::sets;
use crate::source::bar;
use clap::Args;
use miot_trace_events::TextOrJson;
use miot_trace_store::compact::compact;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the traces of several log-servers as one ordered trace
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot compact /srv/miot/p0,/srv/miot/p1 -o /srv/miot/all\n  miot compact set.toml -o all && miot fsck all\n\nThe log-servers of these traces must not run. OUT appears when it is complete; until then its rows are in OUT.tmp. The same command\ncontinues after an interruption: it writes at most the last part (2 Mi events) again. The traces themselves stay as they are.\n\nA set: directories separated by commas, or a file with tables [[server]] (docs/guide/growing-the-centre.md)."
)]
pub(crate) struct Arguments {
    /// Traces of a set: DIR,DIR or a file set.toml
    #[arg(value_name = "SET")]
    set: PathBuf,
    /// New trace directory
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let bar = bar(0, "events");
    let compacted = compact(&sets::traces(&arguments.set)?, &arguments.output, |events| {
        bar.set_length(events);
        bar.set_position(events);
    })?;
    drop(bar);
    if arguments.format == TextOrJson::Json {
        println!("{}", serde_json::to_string(&compacted)?);
    } else {
        println!("{} events in {}", compacted.events, arguments.output.display());
        if compacted.continued > 0 {
            println!("{} of these were written by an earlier run", compacted.continued);
        }
    }
    Ok(ExitCode::SUCCESS)
}

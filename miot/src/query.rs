//! `miot query`: runs `miot-query`, a separate program because its engine takes long to build.

use crate::sets;
use anyhow::{anyhow, bail};
use clap::Args;
use miot_trace_store::set::SetState;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Name of the program, and of its package.
const NAME: &str = "miot-query";

/// Query a trace in SQL; see `miot query --help`
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Arguments of `miot-query`
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Returns the arguments with the members of a set in place of its name.
fn with_members(arguments: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let Some((first, rest)) =
        arguments.split_first().filter(|(first, _)| !first.as_encoded_bytes().starts_with(b"-"))
    else {
        return Ok(arguments.to_vec());
    };
    let dirs = sets::traces(Path::new(first))?;
    if dirs.len() == 1 {
        return Ok(arguments.to_vec());
    }
    let state = SetState::examine(&dirs)?;
    state.notes().iter().for_each(|note| eprintln!("miot: {note}"));
    let named = state.readable().into_iter().flat_map(|dir| [OsString::from("--trace"), dir.into()]);
    Ok(named.chain(rest.iter().cloned()).collect())
}

/// Replaces this process by `miot-query`; prefers the one in the directory of this program.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let arguments = with_members(&arguments.arguments)?;
    for program in programs()? {
        let error = Command::new(&program).args(&arguments).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(anyhow!(error).context(format!("cannot run {}", program.display())));
        }
    }
    bail!(
        "{NAME} is neither in the directory of miot nor in PATH: install the package {NAME}, or build it: cargo build --release -p {NAME}"
    )
}

/// Returns the names of the program, in the order in which they are tried.
pub(crate) fn programs() -> io::Result<[OsString; 2]> {
    Ok([std::env::current_exe()?.with_file_name(NAME).into_os_string(), NAME.into()])
}

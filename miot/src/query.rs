//! `miot query`: runs `miot-query`, a separate program because its engine takes long to build.

use anyhow::{anyhow, bail};
use clap::Args;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Query a trace in SQL; see `miot query --help`
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Arguments of `miot-query`
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `miot-query`; prefers the one in the directory of this program.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let name = "miot-query";
    let beside = std::env::current_exe()?.with_file_name(name);
    for program in [beside.into_os_string(), name.into()] {
        let error = Command::new(&program).args(&arguments.arguments).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(anyhow!(error).context(format!("cannot run {}", program.display())));
        }
    }
    bail!(
        "{name} is neither in the directory of miot nor in PATH: install the package {name}, or build it: cargo build --release -p {name}"
    )
}

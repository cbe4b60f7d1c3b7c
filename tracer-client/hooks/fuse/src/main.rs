//! `miot-fuse`: the program.

use clap::Parser as _;
use miot_hook_fuse::mounting::{Places, mount};
use miot_hook_fuse::options::Options;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// MIOT's library for programs, which has no business in a file system.
const HOOK: &str = "libmiot_posix.so";
const PRELOAD: &str = "LD_PRELOAD";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("miot-fuse: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut options = Options::parse();
    let flags = options.settle().map_err(anyhow::Error::msg)?;
    without_the_hook()?;
    let places = Places::of(&options)?;
    if options.foreground {
        return mount(&options, &flags, places)?.serve();
    }
    let Some(mut report) = in_background()? else { return Ok(()) };
    match mount(&options, &flags, places) {
        Err(error) => {
            // The parent says it.
            write!(report, "{error:#}")?;
            std::process::exit(1)
        }
        Ok(mounted) => {
            let settled = settle_in_background();
            drop(report);
            match settled {
                Ok(()) => mounted.serve(),
                Err(error) => {
                    mounted.give_up();
                    Err(error.into())
                }
            }
        }
    }
}

/// Under `miot run` this program gets what all get. It starts again without.
fn without_the_hook() -> anyhow::Result<()> {
    let Some(preload) = std::env::var_os(PRELOAD) else { return Ok(()) };
    let preload = preload.to_string_lossy().into_owned();
    let others: Vec<&str> =
        preload.split([':', ' ']).filter(|name| !name.is_empty() && !name.ends_with(HOOK)).collect();
    if !preload.contains(HOOK) {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    again.arg0("miot-fuse").args(std::env::args_os().skip(1)).env_remove(PRELOAD);
    if !others.is_empty() {
        again.env(PRELOAD, others.join(":"));
    }
    Err(anyhow::Error::from(again.exec()).context("cannot start again without the preloaded library"))
}

/// Goes on in a child, which has the end of a pipe for what goes wrong. `None`: this is the parent, and all is well.
fn in_background() -> anyhow::Result<Option<File>> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: there is one thread yet, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            drop(reader);
            let _ = rustix::process::setsid();
            Ok(Some(File::from(writer)))
        }
        _ => {
            drop(writer);
            let mut said = String::new();
            File::from(reader).read_to_string(&mut said)?;
            anyhow::ensure!(said.is_empty(), "{said}");
            Ok(None)
        }
    }
}

/// Holds nothing that belongs to who started it.
fn settle_in_background() -> std::io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}

//! Program `miot-fuse`.

use clap::Parser as _;
use miot_hook_fuse::mounting::{MountPaths, mount};
use miot_hook_fuse::options::Options;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// The preloaded hook of MIOT, which must not run in a file system.
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
    let settings = options.apply_mount_options()?;
    restart_without_hook()?;
    let paths = MountPaths::check(&options)?;
    if options.foreground {
        return mount(&options, &settings, paths)?.serve();
    }
    let Some(mut error_pipe) = daemonize()? else { return Ok(()) };
    match mount(&options, &settings, paths) {
        Err(error) => {
            // The parent prints it.
            write!(error_pipe, "{error:#}")?;
            std::process::exit(1)
        }
        Ok(mounted) => {
            let detached = detach();
            drop(error_pipe);
            match detached {
                Ok(()) => mounted.serve(),
                Err(error) => {
                    mounted.unmount();
                    Err(error.into())
                }
            }
        }
    }
}

/// Restarts this program without the hook, which `miot run` preloads into every program.
fn restart_without_hook() -> anyhow::Result<()> {
    let Some(preload) = std::env::var_os(PRELOAD) else { return Ok(()) };
    let preload = preload.to_string_lossy().into_owned();
    let others: Vec<&str> =
        preload.split([':', ' ']).filter(|name| !name.is_empty() && !name.ends_with(HOOK)).collect();
    if !preload.contains(HOOK) {
        return Ok(());
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("miot-fuse").args(std::env::args_os().skip(1)).env_remove(PRELOAD);
    if !others.is_empty() {
        command.env(PRELOAD, others.join(":"));
    }
    Err(anyhow::Error::from(command.exec()).context("cannot restart without the preloaded library"))
}

/// Continues in a child process. In the child, returns a pipe to which it writes the error of the
/// mount. In the parent, waits for the child and returns `None` if the mount succeeded.
fn daemonize() -> anyhow::Result<Option<File>> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY:
    // - The process has one thread, so the child may make any call.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            drop(reader);
            let _ = rustix::process::setsid();
            Ok(Some(File::from(writer)))
        }
        _ => {
            drop(writer);
            let mut error = String::new();
            File::from(reader).read_to_string(&mut error)?;
            anyhow::ensure!(error.is_empty(), "{error}");
            Ok(None)
        }
    }
}

/// Releases the resources of the starting process: standard streams and working directory.
fn detach() -> std::io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}

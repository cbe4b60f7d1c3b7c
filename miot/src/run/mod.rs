//! `miot run`: all three tiers around one command.

mod command;
mod confined;
pub(crate) mod hook;
mod own_dir;
mod signals;

use crate::recorded::Recorded;
use crate::summary;
use anyhow::Context as _;
use clap::Args;
use command::NotRunnable;
use jiff::Timestamp;
use miot_log_client::LogClient;
use miot_log_server::LogServer;
use miot_proto::control::{DIR_ENV, WhenFull};
use miot_proto::units;
use own_dir::OwnDir;
use signals::Signals;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::oneshot;

/// Exit code if `miot run` itself failed, like that of `env`, `nohup` and `timeout`.
pub(crate) const EXIT_FAILED: u8 = 125;

/// Longest wait of a thread for a full lane before it drops events: longer than any pause of the
/// log-client, but short enough for a user whose disk has filled up.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Longest delivery after the command has ended: enough for a slow disk, or to free space on a full
/// one.
const LONGEST_STOP: Duration = Duration::from_secs(60);

/// Least free memory for segments, bytes; with less, a trace cannot be complete.
const LEAST_SHARED_BYTES: u64 = 1 << 20;

/// Run a command and record every I/O call it makes, and those of the programs it starts
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot run -- tar -cf /tmp/docs.tar docs\n  miot run -o build-trace -- make -j2\n  miot run --ops open,openat -- ./configure    record only opens\n  miot run --min-duration 1ms -- ./my_app      record only slow requests\n  miot run --sample 1/64 --when-full drop-newest -- ./busy\n                                               record a sample, never slow the program down\n\nThe exit code is that of the command, or 128 + n if signal n ended it; 127 if it was not found, 126 if it is \
                  not executable, 125 if miot failed or could not store the whole trace. SIGHUP, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded to the command; SIGINT reaches it from the terminal. \
                  The trace is always finished. Events that are not in the trace yet are kept in temporary files ($TMPDIR, else /tmp), \
                  at most 64 MiB."
)]
pub(crate) struct Arguments {
    /// Directory for the trace; must be new or empty [default: miot-trace-<date>-<time>]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Calls to record: posix (POSIX and STDIO calls), mpi (MPI-IO calls) [default: both]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    hook: Vec<String>,
    /// Also record communication calls of MPI, which separate phases for `miot phases`
    #[arg(long)]
    communication: bool,
    /// Record the CPU time of the thread with each request, at the cost of a system call. `miot
    /// simulate` and Miller's format use it as computing time
    #[arg(long)]
    cpu_time: bool,
    /// Record files that match this glob although they are excluded; may be repeated
    #[arg(long, value_name = "GLOB")]
    include: Vec<OsString>,
    /// Do not record files that match this glob; may be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Directory for shared memory
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    shm_dir: PathBuf,
    #[command(flatten)]
    recorded: Recorded,
    /// Print no summary
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("MIOT_LOG").unwrap_or_else(|_| "error".into()),
        )
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let program = match command::find(&arguments.command[0]) {
        Ok(program) => program,
        Err(refused) => {
            eprintln!("miot: {refused}");
            return Ok(ExitCode::from(refused.exit));
        }
    };
    let reason = command::untraceable_reason(&program).unwrap_or(None);
    if let Some(reason) = reason {
        eprintln!("miot: warning: {} {reason}", program.display());
    }
    let libraries = hook::libraries(&arguments.hook)?;
    let output = output_dir(arguments.output.as_deref())?;
    let existed = output.exists();
    let shared = shared_dir(&arguments.shm_dir)?;
    // Not in shared memory, which the program's threads may use up.
    let spool =
        OwnDir::create(&std::env::temp_dir(), "name another directory for temporary files with TMPDIR")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ran = runtime.block_on(traced(arguments, &program, &libraries, &output, shared.path(), spool.path()));
    // Drop both before printing: SIGPIPE ends this process if the reader is gone.
    drop((shared, spool));
    let status = match ran {
        Ok(status) => status,
        Err(error) => match error.downcast_ref::<NotRunnable>() {
            Some(refused) => {
                eprintln!("miot: {refused}");
                remove_empty_trace(&output, existed);
                return Ok(ExitCode::from(refused.exit));
            }
            None => return Err(error),
        },
    };
    if !arguments.quiet {
        let mut text = Vec::new();
        summary::print(&output, &mut text)?;
        // The terminal may be gone; the command's exit code counts all the same.
        let _ = std::io::stderr().write_all(&text);
    }
    Ok(ExitCode::from(status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1) as u8))
}

/// Returns the requested directory, or a new name that contains the time.
fn output_dir(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(dir) = wanted {
        let used = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        anyhow::ensure!(!used, "{} is not empty: name a new or an empty directory with -o", dir.display());
        return Ok(dir.to_owned());
    }
    let name = Timestamp::now().strftime("miot-trace-%Y%m%d-%H%M%S").to_string();
    (1..100)
        .map(|n| if n == 1 { PathBuf::from(&name) } else { PathBuf::from(format!("{name}-{n}")) })
        .find(|dir| !dir.exists())
        .with_context(|| format!("{name} and a hundred like it exist: name a directory with -o"))
}

/// Removes what the log-server wrote for a command that was never started. A directory that
/// existed, which was empty, stays.
fn remove_empty_trace(output: &Path, existed: bool) {
    if !existed {
        let _ = std::fs::remove_dir_all(output);
        return;
    }
    for entry in std::fs::read_dir(output).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ =
            if is_dir { std::fs::remove_dir_all(entry.path()) } else { std::fs::remove_file(entry.path()) };
    }
}

/// Creates the MIOT directory of this run.
fn shared_dir(parent: &Path) -> anyhow::Result<OwnDir> {
    let advice = "name another tmpfs with --shm-dir";
    // First, because this frees the memory of runs that were killed.
    let dir = OwnDir::create(parent, advice)?;
    let stat = rustix::fs::statvfs(parent)
        .with_context(|| format!("{} cannot be used for shared memory: {advice}", parent.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    anyhow::ensure!(
        free >= LEAST_SHARED_BYTES,
        "{} has {} free, shared memory needs at least {}: free some, or {advice}",
        parent.display(),
        units::format_bytes(free),
        units::format_bytes(LEAST_SHARED_BYTES)
    );
    Ok(dir)
}

async fn traced(
    arguments: &Arguments,
    program: &Path,
    libraries: &[PathBuf],
    output: &Path,
    shared: &Path,
    spool: &Path,
) -> anyhow::Result<ExitStatus> {
    let server = LogServer::bind(miot_log_server::Config {
        listen: "127.0.0.1:0".into(),
        http: Some("off".into()),
        trace: output.to_owned(),
        ..miot_log_server::Config::default()
    })
    .await?;
    let client = LogClient::prepare(miot_log_client::Config {
        dir: shared.to_owned(),
        // A subdirectory, because the run has locked the directory itself.
        spool_dir: Some(spool.join("spool")),
        server: server.local_addr().to_string(),
        http: Some("off".into()),
        layers: arguments.recorded.layers.unwrap_or_default(),
        ops: arguments.recorded.ops.clone().unwrap_or_default(),
        min_duration: arguments.recorded.min_duration.unwrap_or_default(),
        sample: arguments.recorded.sample.unwrap_or_default(),
        cpu_time: arguments.cpu_time,
        when_full: arguments.recorded.when_full.unwrap_or(WhenFull::Wait),
        wait: arguments.recorded.wait.unwrap_or(LONGEST_WAIT),
        stop: LONGEST_STOP,
        ..miot_log_client::Config::default()
    })?;
    let (stop_server, server_stopped) = oneshot::channel::<()>();
    let (stop_client, client_stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(server.run(async { drop(server_stopped.await) }));
    let client = tokio::spawn(client.run(async { drop(client_stopped.await) }));

    let ended = run_command(arguments, program, libraries, shared).await;

    drop(stop_client);
    let delivered = client.await.context("the log-client failed")?;
    drop(stop_server);
    let stored = server.await.context("the log-server failed")?;
    let status = ended?;
    // Report errors of the store first: if the disk is full, delivery fails as well.
    stored.with_context(|| incomplete(output, status))?;
    let delivered = delivered.with_context(|| incomplete(output, status))?;
    anyhow::ensure!(
        delivered.undelivered == 0 && !delivered.left_in_lanes,
        "{}: storing took longer than {} s after its end: the disk is slow or the machine is busy",
        incomplete(output, status),
        LONGEST_STOP.as_secs()
    );
    Ok(status)
}

fn incomplete(output: &Path, status: ExitStatus) -> String {
    format!("the command ended ({status}), but the trace in {} is not complete", output.display())
}

async fn run_command(
    arguments: &Arguments,
    program: &Path,
    libraries: &[PathBuf],
    shared: &Path,
) -> anyhow::Result<ExitStatus> {
    let mut command = Command::new(program);
    command.arg0(&arguments.command[0]).args(&arguments.command[1..]);
    let hooks = libraries.iter().map(|library| library.as_os_str()).collect::<Vec<_>>().join(OsStr::new(":"));
    command.env("LD_PRELOAD", joined(&hooks, std::env::var_os("LD_PRELOAD").as_deref()));
    command.env(DIR_ENV, shared);
    if let Some(value) = confined::seccomp_value(&hooks) {
        command.env(confined::SECCOMP_ENV, value);
    }
    if hook::excludes_mpi(&arguments.hook) {
        command.env(hook::WITHOUT_MPI.0, hook::WITHOUT_MPI.1);
    }
    if arguments.communication {
        command.env("MIOT_MPI_COMMUNICATION", "1");
    }
    for (name, globs) in [("MIOT_INCLUDE", &arguments.include), ("MIOT_EXCLUDE", &arguments.exclude)] {
        let value = globs.join(OsStr::new(":"));
        if !value.is_empty() {
            command.env(name, joined(&value, std::env::var_os(name).as_deref()));
        }
    }
    signals::keep_pipe(&mut command);
    let mut signals = Signals::watch()?;
    let mut child = command.spawn().map_err(|error| NotRunnable::refused(program, &error))?;
    let pid = child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
    loop {
        tokio::select! {
            status = child.wait() => return Ok(status?),
            signal = signals.for_the_command() => {
                if let Some(pid) = pid {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        }
    }
}

/// Joins `first:rest`, the format of `LD_PRELOAD` and of the pattern lists.
fn joined(first: &OsStr, rest: Option<&OsStr>) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = rest.filter(|r| !r.as_bytes().is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

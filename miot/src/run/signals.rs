//! Signals while the command runs: `miot run` survives them in order to finish the trace.

#![expect(clippy::disallowed_types, reason = "disposition of SIGPIPE at the start")]

use anyhow::Context as _;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

/// Signals that would end `miot run`. The terminal sends interrupt and quit to the command as well.
/// The others are forwarded, because their sender means the command.
const WATCHED: [Signal; 6] =
    [Signal::INT, Signal::QUIT, Signal::HUP, Signal::TERM, Signal::USR1, Signal::USR2];

/// True if SIGPIPE was ignored when this process started.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Reads the disposition of SIGPIPE before `main`, because Rust's startup code ignores SIGPIPE.
#[used]
// SAFETY: the loader calls functions listed here once, before other threads exist.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn ask() {
        // SAFETY: all zeros are a valid `sigaction`, which the call fills in; the call changes
        // nothing.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action);
            action
        };
        PIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    ask
};

/// Restores for the command the disposition of SIGPIPE that `miot run` was started with; the
/// standard library gives every command the default.
pub(super) fn keep_pipe(command: &mut tokio::process::Command) {
    if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: signal() may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                Ok(())
            })
        };
    }
}

/// Watched signals; `miot run` survives them.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to watch. Ignored signals stay ignored, for `miot run` and for the command, which
    /// inherits the disposition.
    pub(super) fn watch() -> anyhow::Result<Signals> {
        let ignored = ignored()?;
        let watched = WATCHED.into_iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        let watch = |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(Signals(watched.map(watch).collect::<anyhow::Result<_>>()?))
    }

    /// Waits for the next signal to forward to the command.
    pub(super) async fn for_the_command(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                while stream.poll_recv(context).is_ready() {
                    if ![Signal::INT, Signal::QUIT].contains(signal) {
                        return Poll::Ready(*signal);
                    }
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Returns the signals that this process ignores, signal n at bit n - 1: `SigIgn` of
/// proc_pid_status(5).
fn ignored() -> anyhow::Result<u64> {
    const FILE: &str = "/proc/self/status";
    let text = std::fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.with_context(|| format!("{FILE} has no SigIgn"))
}

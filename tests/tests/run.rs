//! `miot run` between a command and its parent process: signals, exit codes, the terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::process::{Background, run, signal_id, until};
use miot_tests::test_dir::fresh;
use miot_tests::tmux::Terminal;
use miot_tests::traced::{assert_good, command, events};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Command run by a shell that ignores `signals`, as nohup does with SIGHUP.
fn ignoring(signals: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("trap '' {signals}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell
}

/// `miot run` of a shell script in its own process group, as a shell starts jobs.
struct Job {
    miot: Background,
    place: PathBuf,
}

impl Job {
    /// Starts the script. It continues from `ready` on request, and ends with code 7 when the file
    /// `go` exists, if not by a signal.
    fn start(name: &str, ignored: &str) -> Job {
        let place = fresh(name);
        let script = "ulimit -c 0; echo written > file; until [ -e go ]; do sleep 0.05; done; exit 7";
        let miot = command(&place, Path::new("trace"), &["sh", "-c", script]);
        let mut miot = if ignored.is_empty() { miot } else { ignoring(ignored, &miot) };
        let miot = Background::start(miot.current_dir(&place).process_group(0));
        let job = Job { miot, place };
        until("the command has written", || {
            fs::read_to_string(job.place.join("file")).is_ok_and(|text| text == "written\n")
        });
        job
    }

    fn signal_all(&self, signal: Signal) {
        kill_process_group(Pid::from_raw(self.miot.id() as i32).unwrap(), signal).unwrap();
    }

    fn go(&self) {
        fs::write(self.place.join("go"), "").unwrap();
    }

    /// Returns the exit code. The trace is complete by then.
    fn end(mut self) -> i32 {
        until("miot run has ended", || !self.miot.running());
        until("the summary is there", || self.miot.printed().contains("events lost: 0"));
        let trace = self.place.join("trace");
        assert_good(&trace);
        assert!(events(&trace).iter().any(|row| row.op == "write"));
        let (status, text) = self.miot.stop(Signal::KILL);
        status.code().unwrap_or_else(|| panic!("{status}\n{text}"))
    }
}

/// Masks of signals without 32 and 33, which are reserved for the C library: no program can use
/// them, and `posix_spawn` ignores them.
fn programs_own(masks: &str) -> Vec<(&str, u64)> {
    let masks = masks.lines().map(|line| line.split_once(":\t").unwrap());
    masks.map(|(name, mask)| (name, u64::from_str_radix(mask, 16).unwrap() & !(3 << 31))).collect()
}

#[test]
fn command_has_the_same_signals_as_without_miot() {
    let place = fresh("run-dispositions");
    let lists = ["0", "INT QUIT", "HUP", "PIPE", "INT TERM USR1 USR2 ALRM PIPE"];
    for (number, ignored) in lists.iter().enumerate() {
        let words = ["grep", "^Sig[BIC]", "/proc/self/status"];
        let mut plain = Command::new(words[0]);
        let plain = run(&mut ignoring(ignored, plain.args(&words[1..]))).success().stdout;
        let trace = place.join(format!("trace-{number}"));
        let traced = run(&mut ignoring(ignored, &command(&place, &trace, &words))).success().stdout;
        assert_eq!(programs_own(&traced), programs_own(&plain), "with {ignored} ignored");
    }
    // With and without SIGPIPE, a write to a closed pipe ends the command or is an error. The
    // shell's own echo may ignore it.
    for ignored in ["0", "PIPE"] {
        let words = ["sh", "-c", "(sleep 0.2; /bin/echo late; echo $? >&2) | true"];
        let mut plain = Command::new(words[0]);
        let plain = run(&mut ignoring(ignored, plain.args(&words[1..]))).success().stderr;
        let trace = place.join(format!("pipe-{ignored}"));
        let traced = command(&place, &trace, &words);
        let traced = run(&mut ignoring(ignored, &traced)).success().stderr;
        assert!(traced.starts_with(&plain), "{plain} with {ignored} ignored: {traced}");
    }
}

#[test]
fn signal_to_miot_run_ends_the_command_only() {
    for (signal, code) in [(Signal::HUP, 129), (Signal::TERM, 143), (Signal::USR1, 138), (Signal::USR2, 140)]
    {
        let job = Job::start("run-passed-on", "");
        signal_id(job.miot.id(), signal);
        assert_eq!(job.end(), code, "{signal:?}");
    }
}

#[test]
fn signal_of_the_terminal_ends_the_command_once() {
    for (signal, code) in [(Signal::INT, 130), (Signal::QUIT, 131), (Signal::HUP, 129)] {
        let job = Job::start("run-group", "");
        job.signal_all(signal);
        assert_eq!(job.end(), code, "{signal:?}");
    }
    // Not passed on, because the command would get it twice.
    let job = Job::start("run-alone", "");
    signal_id(job.miot.id(), Signal::INT);
    signal_id(job.miot.id(), Signal::QUIT);
    job.go();
    assert_eq!(job.end(), 7);
}

#[test]
fn job_that_ignores_signals_continues() {
    let job = Job::start("run-ignored", "HUP INT QUIT");
    [Signal::HUP, Signal::INT, Signal::QUIT].into_iter().for_each(|signal| job.signal_all(signal));
    job.go();
    assert_eq!(job.end(), 7);
}

/// Line that runs `miot run` on a terminal. The terminal shows the line as well, so the expected
/// text must not be part of it, nor appear earlier.
fn typed(place: &Path, trace: &str, command: &str) -> String {
    format!("{} run -o {} -- {command}", built().miot.display(), place.join(trace).display())
}

#[test]
fn command_controls_the_terminal() {
    let place = fresh("run-terminal");
    let terminal = Terminal::new(160, 100);
    terminal.line(&typed(&place, "asked", "sh -c 'echo as\"\"ks; read x; echo got-$x'"));
    let _ = terminal.shows("asks");
    terminal.line("answer");
    let _ = terminal.shows("got-answer");
    terminal.line("echo end-1-$?");
    let _ = terminal.shows("end-1-0");

    terminal.line(&typed(&place, "interrupted", "sh -c 'echo sl\"\"eeps; sleep 1000'"));
    let _ = terminal.shows("sleeps");
    terminal.keys(&["C-c"]);
    terminal.line("echo end-2-$?");
    let _ = terminal.shows("end-2-130");

    terminal.line(&typed(&place, "stopped", "sh -c 'echo re\"\"ads; while read x; do echo got-$x; done'"));
    let _ = terminal.shows("reads");
    terminal.keys(&["C-z"]);
    let _ = terminal.shows("Stopped");
    terminal.line("echo shell-$((6 * 7))");
    let _ = terminal.shows("shell-42");
    terminal.line("fg");
    terminal.line("again");
    let _ = terminal.shows("got-again");
    terminal.keys(&["C-d"]);
    terminal.line("echo end-3-$?");
    let _ = terminal.shows("end-3-0");
    ["asked", "interrupted", "stopped"].iter().for_each(|trace| assert_good(&place.join(trace)));
}

#[test]
fn closed_terminal_leaves_a_complete_trace() {
    let place = fresh("run-hangup");
    let terminal = Terminal::new(160, 100);
    let command = format!("sh -c 'echo $PPID > {0}; mv {0} {1}; sleep 1000'", "pid.new", "pid");
    terminal.line(&format!("cd {}", place.display()));
    terminal.line(&typed(&place, "trace", &command));
    until("the command has begun", || place.join("pid").exists());
    let miot = fs::read_to_string(place.join("pid")).unwrap();
    drop(terminal);
    until("miot run has ended", || !Path::new("/proc").join(miot.trim()).exists());
    assert_good(&place.join("trace"));
    assert!(events(&place.join("trace")).iter().any(|row| row.op == "write"));
}

//! A Debian container that boots with systemd: systemd-nspawn over a root file system that
//! `tests/debian-root.sh` makes once. Changes go to an overlay, so nothing remains after the test.

use crate::built::root;
use crate::process::{Background, Ended, run, signal_id, until};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A booted machine.
#[derive(Debug)]
pub struct Machine {
    /// Process of systemd-nspawn, until the machine is shut down.
    nspawn: Option<Background>,
    /// Its first process, by its process id outside.
    init: u32,
    /// Directory that is `/shared` inside the machine.
    pub shared: PathBuf,
    place: PathBuf,
}

/// Reason why no machine can be booted here, if there is one.
#[must_use]
pub fn cannot_boot() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    if !root().join("target/debian-root/made").exists() {
        return Some("there is no target/debian-root: tests/debian-root.sh makes it".into());
    }
    let there = Command::new("systemd-nspawn").arg("--version").output();
    there.is_err().then(|| "there is no systemd-nspawn: install systemd-container".into())
}

impl Machine {
    /// Boots a machine in `place`, with a network of its own (loopback).
    ///
    /// Each of `mounts` is a folder outside and its path inside, mounted read-only. All users must
    /// be able to enter `place`. The path of a clone, e.g. below `/root`, often does not permit
    /// that.
    ///
    /// # Panics
    /// If it does not boot.
    #[must_use]
    pub fn boot(place: &Path, name: &str, mounts: &[(&Path, &str)]) -> Machine {
        let _ = fs::remove_dir_all(place);
        let [upper, work, merged, shared] = ["upper", "work", "merged", "shared"].map(|part| {
            let dir = place.join(part);
            fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
            dir
        });
        let base = root().join("target/debian-root");
        let layers =
            format!("lowerdir={},upperdir={},workdir={}", base.display(), upper.display(), work.display());
        let mut command = Command::new("unshare");
        // The mount belongs to the namespace, so it always disappears with it.
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount -t overlay overlay -o \"$1\" \"$2\" && shift 2 && exec \"$@\"",
        ]);
        command.arg("sh").arg(layers).arg(&merged);
        command.args(["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"]);
        command.args(["--private-network", "--console=pipe", "--machine", name, "--directory"]).arg(&merged);
        for (folder, inside) in mounts {
            command.arg(format!("--bind-ro={}:{inside}", folder.display()));
        }
        command.arg(format!("--bind={}:/shared", shared.display()));
        let mut nspawn = Background::start(&mut command);
        let mut init = None;
        until("the machine has a first process", || {
            assert!(nspawn.running(), "systemd-nspawn ended\n{}", nspawn.printed());
            init = first_process(nspawn.id());
            init.is_some()
        });
        let init = init.unwrap_or_default();
        let machine = Machine { nspawn: Some(nspawn), init, shared, place: place.to_owned() };
        until("the machine has booted", || {
            let state = machine.run(["systemctl", "is-system-running"]).stdout;
            matches!(state.trim(), "running" | "degraded")
        });
        machine
    }

    /// Command line that runs a command in the machine as root.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "--root", "--wd"]);
        command
            .args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"])
            .args(words);
        command
    }

    /// Runs a command in the machine as root, to its end.
    #[must_use]
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Ended {
        run(&mut self.command(words))
    }

    /// Runs a line of shell in the machine as root. Returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn shell(&self, line: &str) -> String {
        let ended = self.run(["sh", "-ec", line]);
        let (code, out) = (ended.code(), ended.stdout);
        assert_eq!(code, 0, "{line}\n{out}{}\n{}", ended.stderr, self.journal());
        out
    }

    /// Command line that runs a program from outside in the network of the machine.
    #[must_use]
    pub fn beside(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--net"]).arg(program);
        command
    }

    /// Journal of the machine's services.
    #[must_use]
    pub fn journal(&self) -> String {
        self.run(["journalctl", "--no-pager", "--quiet", "--boot", "--lines=200", "--unit=miot-*"]).stdout
    }

    /// Shuts the machine down and removes the files that it has written.
    ///
    /// # Panics
    /// If it does not shut down.
    pub fn off(mut self) {
        if let Some(nspawn) = self.nspawn.take() {
            // systemd-nspawn treats SIGTERM as the power button.
            let (_, _) = nspawn.stop(rustix::process::Signal::TERM);
        }
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Drop for Machine {
    /// After a failed test, ends the machine: it outlives a killed systemd-nspawn, but not its own
    /// first process.
    fn drop(&mut self) {
        if self.nspawn.is_some() {
            signal_id(self.init, rustix::process::Signal::KILL);
        }
    }
}

/// Returns the process that has number 1 in the container of this systemd-nspawn.
fn first_process(nspawn: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let name = status.lines().next().unwrap_or_default();
        numbers.split_whitespace().nth(1) == Some("1") && name.ends_with("systemd")
    })
}

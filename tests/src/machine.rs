//! A Debian of a test's own, booted with its systemd: a container of systemd-nspawn over a file
//! system that is made once (`tests/debian-root.sh`) and written above (overlay), so that nothing
//! of it is left when the test ends.

use crate::built::root;
use crate::process::{Background, Ended, run, signal_id, until};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A machine that has booted.
#[derive(Debug)]
pub struct Machine {
    /// Until it is shut down.
    nspawn: Option<Background>,
    /// Its first process, as seen from here.
    init: u32,
    /// Directory of the machine that is `/shared` inside.
    pub shared: PathBuf,
    place: PathBuf,
}

/// Why no machine can be booted here, if so.
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
    /// Boots one in `place`, with a network of its own (loopback). Each of `mounts` is a
    /// folder of this machine and its place inside, read-only. The place must be one that all users
    /// may enter, which the path of a clone (below `/root`, for instance) is not.
    ///
    /// # Panics
    /// If it does not come up.
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
        // The mount goes with the namespace, whatever happens.
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

    /// How a command is run in it, as root.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "--root", "--wd"]);
        command
            .args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"])
            .args(words);
        command
    }

    /// Runs a command in it, as root, to its end.
    #[must_use]
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Ended {
        run(&mut self.command(words))
    }

    /// Runs a line of shell in it, as root. What it printed.
    ///
    /// # Panics
    /// If it fails.
    pub fn shell(&self, line: &str) -> String {
        let ended = self.run(["sh", "-ec", line]);
        let (code, out) = (ended.code(), ended.stdout);
        assert_eq!(code, 0, "{line}\n{out}{}\n{}", ended.stderr, self.journal());
        out
    }

    /// How a command of this machine is run in the network of that one: "from outside".
    #[must_use]
    pub fn beside(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--net"]).arg(program);
        command
    }

    /// What its services have logged.
    #[must_use]
    pub fn journal(&self) -> String {
        self.run(["journalctl", "--no-pager", "--quiet", "--boot", "--lines=200", "--unit=miot-*"]).stdout
    }

    /// Shuts it down and removes what it has written.
    ///
    /// # Panics
    /// If it does not come to an end.
    pub fn off(mut self) {
        if let Some(nspawn) = self.nspawn.take() {
            // What systemd-nspawn takes for the button.
            let (_, _) = nspawn.stop(rustix::process::Signal::TERM);
        }
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Drop for Machine {
    /// A test has failed: nothing goes on. The machine outlives a killed systemd-nspawn, but not
    /// its own first process.
    fn drop(&mut self) {
        if self.nspawn.is_some() {
            signal_id(self.init, rustix::process::Signal::KILL);
        }
    }
}

/// The process that has number 1 in a container of this systemd-nspawn.
fn first_process(nspawn: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let name = status.lines().next().unwrap_or_default();
        numbers.split_whitespace().nth(1) == Some("1") && name.ends_with("systemd")
    })
}

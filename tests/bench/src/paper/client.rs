//! The client of the paper: the stub of PVFS's library with its preloaded hook, and passes over a
//! file.

use crate::daemons::built;
use crate::worker;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bits of the masks of the stub.
pub(super) const IO: u64 = 1 << 26;
const ALL: u64 = u64::MAX;

/// A variant of the client.
pub(super) struct Way {
    pub(super) name: &'static str,
    /// The hook is preloaded and records requests.
    pub(super) is_hooked: bool,
    /// Mask of the log.
    pub(super) mask: u64,
    /// Whether the log is recorded (`record`) or formatted (`pass`).
    log: &'static str,
}

const fn way(name: &'static str, is_hooked: bool, mask: u64, log: &'static str) -> Way {
    Way { name, is_hooked, mask, log }
}

pub(super) const WAYS: [Way; 6] = [
    way("nothing", false, 0, "pass"),
    way("MIOT", true, 0, "record"),
    way("MIOT, log of I/O raw", true, IO, "record"),
    way("MIOT, log of everything raw", true, ALL, "record"),
    way("log of I/O, formatted", false, IO, "pass"),
    way("log of everything, formatted", false, ALL, "pass"),
];

/// Number of log lines of one read or write, as OrangeFS 2.10 writes them with the masks `io` and
/// `all`.
pub(super) const LINES: (u64, u64) = (32, 290);

/// How long a request takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// As long as the file of this machine takes.
    Undelayed,
    /// As long as the servers of the paper take: a millisecond per 64 KiB.
    Paper,
}

impl Service {
    pub(super) const BOTH: [Service; 2] = [Service::Paper, Service::Undelayed];
    /// Nanoseconds of a request, and more of them per 64 KiB, at the rate of gigabit Ethernet.
    const DELAY: (u64, u64) = (440_000, 560_000);

    pub(super) fn name(self) -> &'static str {
        match self {
            Service::Undelayed => "undelayed",
            Service::Paper => "as in the paper",
        }
    }

    /// Seconds of a request of this size, at least.
    pub(super) fn seconds(self, bytes: u64) -> f64 {
        let (request, per_64_kib) = Service::DELAY;
        match self {
            Service::Undelayed => 0.0,
            Service::Paper => (request as f64 + per_64_kib as f64 * bytes as f64 / 65536.0) / 1e9,
        }
    }
}

/// A pass over a file.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub(super) pattern: &'static str,
    pub(super) bytes: u64,
    pub(super) transfer: u64,
    pub(super) service: Service,
}

/// Programs of the measurement.
pub(super) struct Client {
    pub(super) program: PathBuf,
    pub(super) log: PathBuf,
    pub(super) node: PathBuf,
    hook: PathBuf,
    data: PathBuf,
}

impl Client {
    pub(super) fn build(dir: &Path, node: &Path) -> Result<Client> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (hooks, library) = (root.join("tracer-client/hooks/pvfs"), built("libmiot.a")?);
        let hook = dir.join("libmiot_pvfs.so");
        succeed(Command::new(hooks.join("build.sh")).arg(&library).arg(&hook))?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-std=gnu11", "-w", "-pthread", "-o"])
            .arg(dir.join("libpvfs2.so"));
        succeed(cc.arg("-I").arg(&hooks).arg(root.join("tests/programs/pvfs/library.c")))?;
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        let flags = [
            format!("-I{}", text(&hooks)?),
            format!("-I{}", text(&root.join("tracer-client/include"))?),
            text(&library)?,
            format!("-L{}", text(dir)?),
            format!("-Wl,-rpath,{}", text(dir)?),
            "-lpvfs2".into(),
            "-lgcc_s".into(),
            "-ldl".into(),
            "-lm".into(),
        ];
        let program = worker::compile("paper", dir, &flags.each_ref().map(String::as_str))?;
        Ok(Client { program, hook, data: dir.join("data"), log: dir.join("log"), node: node.into() })
    }

    /// Seconds of a pass over a file.
    pub(super) fn pass(&self, way: &Way, pass: Pass) -> Result<f64> {
        std::fs::create_dir_all(&self.data)?;
        let mut command = Command::new(&self.program);
        command.args(["io", pass.pattern, &pass.bytes.to_string(), &pass.transfer.to_string()]);
        command
            .env("PVFS_STANDIN_DIR", &self.data)
            .env("PVFS_STANDIN_LOG", &self.log)
            .env("PVFS_STANDIN_MASK", way.mask.to_string())
            .env("PVFS_STANDIN_LINES", format!("{},{}", LINES.0, LINES.1))
            .env("MIOT_PVFS_DEBUG", way.log)
            .env("MIOT_DIR", &self.node)
            .env_remove("TZ")
            .env_remove("LD_PRELOAD");
        if pass.service == Service::Paper {
            let (request, per_64_kib) = Service::DELAY;
            command.env("PVFS_STANDIN_DELAY", format!("{request},{per_64_kib}"));
        }
        if way.is_hooked {
            command.env("LD_PRELOAD", &self.hook);
        }
        let nanoseconds: f64 = succeed(&mut command)?.trim().parse()?;
        let _ = std::fs::remove_file(&self.log);
        let least = (pass.bytes / pass.transfer) as f64 * pass.service.seconds(pass.transfer);
        ensure!(nanoseconds / 1e9 >= least, "a pass of {nanoseconds} ns, which must take {least} s");
        Ok(nanoseconds / 1e9)
    }
}

/// Returns the output of a command that must exit with code 0.
pub(super) fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?}: {}: {}",
        command.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

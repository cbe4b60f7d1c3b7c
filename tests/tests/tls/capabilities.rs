//! Capabilities that a log-client keeps of root: three are sufficient, and each is necessary.

use crate::privileges::{NOBODY, capabilities, may_be_root, status};
use crate::site::{place, writes};
use miot_proto::control::DIR_ENV;
use miot_tests::built::built;
use miot_tests::daemons::{free_port, server, started, until_all_inspected};
use miot_tests::process::{Background, run, until};
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;

/// Another user than [`NOBODY`].
const DAEMON: u32 = 1;
/// `CAP_DAC_OVERRIDE`, `CAP_SYS_PTRACE`, `CAP_LEASE`.
const NEEDED: u64 = 1 << 1 | 1 << 19 | 1 << 28;

/// A log-server, and a log-client that root has started and that may run as another user. Programs
/// of all users may record.
struct Node {
    trace: PathBuf,
    dir: PathBuf,
    /// Copy of the hook that all users may read.
    hook: PathBuf,
    out: tempfile::TempDir,
    server: Background,
    client: Background,
    _shared: tempfile::TempDir,
}

impl Node {
    /// Starts a node. `user`: user of the log-client. `without`: a capability that it lacks.
    fn start(name: &str, user: Option<&str>, without: Option<&str>) -> Node {
        let place = place(name);
        let (trace, port) = (place.join("trace"), free_port());
        let server = server(port, &trace);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // The log-client makes the default directory accessible to all users in the same way.
        let dir = shared.path().join("miot");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
        let uid = user.map_or(0, |_| NOBODY);
        chown(&dir, Some(uid), Some(uid)).unwrap();
        // All users may write here, and files here are recorded.
        let out = tempfile::tempdir().unwrap();
        fs::set_permissions(out.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let hook = shared.path().join("libmiot_posix.so");
        fs::copy(&built().hook, &hook).unwrap();

        let mut command = Command::new("setpriv");
        if let Some(without) = without {
            command.arg(format!("--inh-caps=-{without}")).arg(format!("--bounding-set=-{without}"));
        }
        command.arg("--").arg(&built().log_client);
        command.args(["--node", "node", "--server", &format!("127.0.0.1:{port}")]).arg("--dir").arg(&dir);
        let client = started(command.args(user.iter().flat_map(|user| ["--user", user])), &dir);
        Node { trace, dir, hook, out, server, client, _shared: shared }
    }

    /// Makes ten writes of 512 bytes by a program of this user, run by `wrapper`.
    fn dd(&self, wrapper: &[&str], user: u32) {
        let mut words: Vec<String> = wrapper.iter().map(|word| (*word).to_owned()).collect();
        words.extend(["setpriv".into(), format!("--reuid={user}"), format!("--regid={user}")]);
        words.extend(["--clear-groups".into(), "env".into(), format!("LD_PRELOAD={}", self.hook.display())]);
        let of = format!("of={}", self.out.path().join(user.to_string()).display());
        words.extend(["dd", "if=/dev/zero", &of, "bs=512", "count=10"].map(str::to_owned));
        let mut command = Command::new(&words[0]);
        let _ = run(command.args(&words[1..]).env(DIR_ENV, &self.dir).env("LD_PRELOAD", "")).success();
    }

    fn segments(&self) -> usize {
        let names = fs::read_dir(&self.dir).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with(miot_proto::segment::SUFFIX)).count()
    }

    /// Events in the trace so far.
    fn so_far(&self) -> Vec<PrintedEvent> {
        if self.trace.join("miot-trace.json").exists() { events(&self.trace) } else { Vec::new() }
    }

    fn end(self) -> Vec<PrintedEvent> {
        self.client.end();
        self.server.end();
        assert_good(&self.trace);
        events(&self.trace)
    }
}

/// True if root of this machine has the capabilities that a log-client keeps.
fn has_what_is_needed() -> bool {
    if !may_be_root() {
        return false;
    }
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let ours = own.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
    let has = u64::from_str_radix(ours.trim(), 16).unwrap() & NEEDED == NEEDED;
    if !has {
        println!("SKIPPED: root of this machine does not have the capabilities {NEEDED:x}");
    }
    has
}

#[test]
fn log_client_keeps_three_capabilities_and_reads_all() {
    if !has_what_is_needed() {
        return;
    }
    for user in [None, Some("nobody")] {
        let node = Node::start(&format!("client-{}", user.unwrap_or("root")), user, None);
        for writer in [0, DAEMON, NOBODY] {
            node.dd(&[], writer);
        }
        let status = status(&node.client);
        let uid = user.map_or(0, |_| NOBODY);
        assert_eq!(status("Uid"), format!("{uid} {uid} {uid} {uid}"));
        for (which, expected) in
            [("CapInh", 0), ("CapPrm", NEEDED), ("CapEff", NEEDED), ("CapBnd", NEEDED), ("CapAmb", 0)]
        {
            assert_eq!(capabilities(&status, which), expected, "{which} as {user:?}");
        }
        assert_eq!(status("NoNewPrivs"), "1");
        until("the segments of all are gone", || node.segments() == 0);
        assert_eq!(writes(&node.end(), "node"), 30, "as {user:?}");
    }
}

/// Segments of other users are accessible only to them.
#[test]
fn without_dac_override_others_are_not_recorded() {
    if !has_what_is_needed() {
        return;
    }
    for (name, without, recorded) in [("dac", None, 20), ("dac-without", Some("dac_override"), 10)] {
        let node = Node::start(name, Some("nobody"), without);
        node.dd(&[], DAEMON);
        node.dd(&[], NOBODY);
        until_all_inspected(&node.dir);
        assert_eq!(node.client.printed().contains("cannot be opened"), without.is_some(), "{name}");
        assert_eq!(writes(&node.end(), "node"), recorded, "{name}");
    }
}

/// Where a process id has no meaning, only the kernel can report whether the process still has its
/// segment open.
#[test]
fn without_lease_segments_of_foreign_namespaces_stay() {
    if !has_what_is_needed() {
        return;
    }
    for (name, without, left) in [("lease", None, 0), ("lease-without", Some("lease"), 1)] {
        let node = Node::start(name, Some("nobody"), without);
        node.dd(&["unshare", "--pid", "--fork", "--kill-child"], DAEMON);
        until("its writes are in the trace", || writes(&node.so_far(), "node") == 10);
        until_all_inspected(&node.dir);
        assert_eq!(node.segments(), left, "{name}");
        assert_eq!(writes(&node.end(), "node"), 10, "{name}");
    }
}

/// A process of root may have changed its user. Only its memory shows whether it created a segment.
#[test]
fn without_sys_ptrace_a_forged_owner_is_accepted() {
    if !has_what_is_needed() {
        return;
    }
    for (name, without, recorded) in [("ptrace", None, 0), ("ptrace-without", Some("sys_ptrace"), 7)] {
        let node = Node::start(name, Some("nobody"), without);
        let of_root = Background::start(Command::new("sleep").arg("1000"));
        let mut forge = Command::new("setpriv");
        forge.args([format!("--reuid={DAEMON}"), format!("--regid={DAEMON}"), "--clear-groups".into()]);
        forge.arg(env!("CARGO_BIN_EXE_hostile")).args(["forge", "7", &of_root.id().to_string(), "1"]);
        let liar = Background::start(forge.env(DIR_ENV, &node.dir));
        until("the forged segment exists", || liar.printed().contains("forged"));
        until_all_inspected(&node.dir);
        drop(liar);
        until("the forged segment is removed with its creator", || node.segments() == 0);
        let told = node.client.printed().contains("another user's process");
        assert_eq!(told, without.is_none(), "{name}");
        let rows = node.end();
        assert_eq!(rows.iter().filter(|row| row.pid == of_root.id()).count(), recorded, "{name}");
    }
}

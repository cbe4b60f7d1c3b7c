//! Ways to trace all programs of a node (docs/guide/node-wide.md). Slurm and PBS do not run here;
//! their scripts are run in the same way as they would run them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::daemons::{client_command, free_port, server, started};
use miot_tests::process::{Background, run};
use miot_tests::test_dir::fresh;
use miot_tests::traced::events;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn deployed(name: &str) -> PathBuf {
    root().join("deploy/everywhere").join(name)
}

/// Both daemons.
struct Node {
    place: PathBuf,
    dir: PathBuf,
    server: Background,
    client: Background,
    _shared: tempfile::TempDir,
}

impl Node {
    fn new(name: &str, configure: impl FnOnce(&mut Command)) -> Node {
        let place = fresh(&format!("everywhere-{name}"));
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let (dir, port) = (shared.path().join("miot"), free_port());
        let server = server(port, &place.join("trace"));
        let mut command = client_command(&format!("127.0.0.1:{port}"), "node", &dir);
        configure(&mut command);
        let client = started(&mut command, &dir);
        Node { place, dir, server, client, _shared: shared }
    }

    /// Runs a shell script with the variables by which the node's files find the library and the
    /// MIOT directory.
    fn shell(&self, shell: &str, script: &str) -> Command {
        let mut command = Command::new(shell);
        command.args(["-c", script]).current_dir(&self.place).env_remove("LD_PRELOAD");
        command.env("MIOT_DIR", &self.dir).env("MIOT_LIBRARY", &built().hook).env("HOME", &self.place);
        command.env("MIOT_MIN_UID", "0");
        command
    }

    /// Names of the files in `place` that the trace contains.
    fn end(self) -> Vec<String> {
        assert!(self.client.stop(Signal::TERM).0.success());
        assert!(self.server.stop(Signal::TERM).0.success());
        let prefix = format!("{}/", self.place.display());
        let rows = events(&self.place.join("trace"));
        let paths = rows.iter().filter_map(|row| row.path.as_deref()?.strip_prefix(&prefix));
        let mut names: Vec<String> = paths.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }
}

#[test]
fn shells_with_the_profile_trace_their_programs() {
    let node = Node::new("profile", |_| {});
    let profile = deployed("profile.d-miot.sh");
    let with = |shell: &str, name: &str, before: &str| {
        let script = format!("{before} . {} ; touch {name}; echo \"[$LD_PRELOAD]\"", profile.display());
        run(&mut node.shell(shell, &script)).success().stdout
    };
    let hook = built().hook.display().to_string();
    for shell in ["sh", "bash"] {
        assert_eq!(with(shell, &format!("in-{shell}"), "").trim(), format!("[{hook}]"));
        assert_eq!(with(shell, "off", "MIOT_TRACE=off;").trim(), "[]");
        assert_eq!(with(shell, "no-user", "MIOT_MIN_UID=999999;").trim(), "[]");
        assert_eq!(with(shell, "no-library", "MIOT_LIBRARY=/nonexistent;").trim(), "[]");
        let twice = format!(". {};", profile.display());
        assert_eq!(with(shell, &format!("twice-{shell}"), &twice).trim(), format!("[{hook}]"), "once");
    }
    fs::write(node.place.join(".miot-off"), "").unwrap();
    assert_eq!(with("sh", "by-file", "").trim(), "[]");
    assert_eq!(node.end(), ["in-bash", "in-sh", "twice-bash", "twice-sh"]);
}

#[test]
fn module_traces_until_it_is_unloaded() {
    let init = ["/usr/share/modules/init/bash", "/usr/share/Modules/init/bash"];
    let init = init.into_iter().find(|path| Path::new(path).exists());
    let init = init.expect("no environment-modules: run tests/setup.sh");
    let node = Node::new("module", |_| {});
    let modules = node.place.join("modules");
    fs::create_dir(&modules).unwrap();
    fs::copy(deployed("modulefile"), modules.join("miot")).unwrap();
    let script = format!(
        ". {init}; module use {}; touch before; export LD_PRELOAD=; module load miot || exit 3; touch loaded; \
         module unload miot; touch after; echo \"[$LD_PRELOAD]\"; \
         MIOT_LIBRARY=/nonexistent; module load miot 2>&1; echo \"[$LD_PRELOAD]\"",
        modules.display()
    );
    let output = run(&mut node.shell("bash", &script));
    assert!(output.stdout.contains("not installed"), "{}\n{}", output.stdout, output.stderr);
    assert_eq!(output.stdout.lines().filter(|line| *line == "[]").count(), 2, "{}", output.stdout);
    // The module command that unloads is itself a traced program.
    let names = node.end();
    let touched: Vec<_> = names.iter().filter(|name| !name.contains("module")).collect();
    assert_eq!(touched, ["loaded"], "{names:?}");
}

/// Like slurmd: runs the script in the task's environment, and sets the variables that it prints as
/// `export`.
#[test]
fn slurm_prolog_traces_tasks() {
    let node = Node::new("slurm", |_| {});
    let prolog = deployed("slurm-taskprolog.sh");
    let task = |name: &str, env: &str| {
        let script = format!(
            "{env} export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1; said=$(sh {}); \
             case \"$said\" in export*) eval \"$said\" ;; esac; touch {name}",
            prolog.display()
        );
        let _ = run(&mut node.shell("sh", &script)).success();
    };
    task("traced", "");
    task("not", "export MIOT_TRACE=off;");
    task("not-by-default", "export MIOT_DEFAULT=off;");
    task("by-comment", "export MIOT_DEFAULT=off SLURM_JOB_COMMENT=a,miot;");
    // A failing epilog would drain the node. It must not fail, even without a log-client.
    let epilog = deployed("slurm-epilog.sh");
    let path = format!("PATH={}:$PATH;", built().folder.display());
    for env in ["", "MIOT_DIR=/nonexistent;"] {
        let _ = run(&mut node.shell("sh", &format!("{path} {env} sh {}", epilog.display()))).success();
    }
    assert_eq!(node.end(), ["by-comment", "traced"]);
}

#[test]
fn pbs_hook_adds_the_library() {
    let script = format!(
        "import importlib.util, sys\n\
         spec = importlib.util.spec_from_file_location('hook', {:?})\n\
         hook = importlib.util.module_from_spec(spec); spec.loader.exec_module(hook)\n\
         lib = [{:?}]\n\
         assert hook.environment({{}}, lib) == {{'LD_PRELOAD': lib[0]}}\n\
         assert hook.environment({{'LD_PRELOAD': '/a.so'}}, lib) == {{'LD_PRELOAD': '/a.so:' + lib[0]}}\n\
         assert hook.environment({{'LD_PRELOAD': lib[0]}}, lib) == {{}}\n\
         assert hook.environment({{'MIOT_TRACE': 'off'}}, lib) == {{}}\n\
         assert hook.environment({{}}, ['/nonexistent/*.so']) == {{}}\n",
        deployed("pbs-hook.py"),
        built().hook
    );
    let _ = run(Command::new("python3").args(["-B", "-c", &script])).success();
}

/// In a mount namespace in which `/etc/ld.so.preload` is another file: **never the machine's own**.
#[test]
fn loader_traces_all_programs_except_excluded_ones() {
    let before = fs::read("/etc/ld.so.preload").ok();
    let node = Node::new("preload", |command| {
        command.env("MIOT_CLIENT_EXCLUDE_PROGRAMS", "[\"mkdir\", \"/nonexistent/touch\"]");
        command.env("MIOT_CLIENT_EXCLUDE_USERS", "[\"65534\"]");
    });
    fs::set_permissions(&node.place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("NOT TESTED HERE: only root can have a mount namespace in which programs of others run");
        return;
    }
    // A copy covers the machine's /etc, so that none of its files are changed.
    let script = "mount -t tmpfs none /mnt && mkdir /mnt/etc && cp -a /etc/. /mnt/etc/ && mount --bind /mnt/etc /etc && \
                  echo \"$MIOT_LIBRARY\" > /etc/ld.so.preload && \
                  touch traced && mkdir left-out && \
                  sh -c 'echo > by-shell; mkdir left-out-2' && \
                  setpriv --reuid 65534 --regid 65534 --clear-groups touch left-out-user && \
                  setpriv --reuid 65533 --regid 65533 --clear-groups touch another-user; cat /etc/ld.so.preload";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).current_dir(&node.place).env_remove("LD_PRELOAD");
    command.env("MIOT_DIR", &node.dir).env("MIOT_LIBRARY", &built().hook);
    fs::set_permissions(&node.dir, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    fs::set_permissions(node.dir.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let output = run(&mut command).success();
    assert!(output.stdout.contains("libmiot_posix.so") && output.stderr.is_empty(), "{}", output.stderr);
    assert_eq!(fs::read("/etc/ld.so.preload").ok(), before, "the machine's own was never touched");
    assert_eq!(node.end(), ["another-user", "by-shell", "traced"]);
}

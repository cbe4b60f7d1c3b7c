//! A private GlusterFS: management daemon, volumes, bricks and mounts inside namespaces. Nothing
//! outside sees its network and mounts, so nothing is installed and two tests do not collide.

use crate::built::{built, root};
use crate::namespaces::Namespaces;
use crate::process::{Background, Ended, run, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of a volume whose client graph passes every request on unchanged: no caches, no
/// aggregation, no read-ahead.
pub const PLAIN_GRAPH: [&str; 9] = [
    "performance.write-behind",
    "performance.open-behind",
    "performance.quick-read",
    "performance.io-cache",
    "performance.read-ahead",
    "performance.readdir-ahead",
    "performance.stat-prefetch",
    "performance.nl-cache",
    "performance.client-io-threads",
];

/// A management daemon with its volumes. The GlusterFS files of `/usr/lib` are a copy here, which
/// also holds the translator `debug/miot` and its filter.
#[derive(Debug)]
pub struct Gluster {
    /// Namespaces of the daemon. Mounts are visible only inside, see [`Gluster::inside`].
    pub room: Namespaces,
    place: PathBuf,
    /// Host name under which the bricks are served.
    pub host: String,
    daemon: Option<Background>,
    volumes: Vec<String>,
}

/// Reason why GlusterFS cannot run here, if there is one.
fn missing() -> Option<&'static str> {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    if !there("glusterd") || !Path::new("/usr/include/glusterfs/xlator.h").exists() {
        return Some("GlusterFS or its headers are not installed: tests/setup.sh");
    }
    None
}

/// Folder of the GlusterFS translators of the installed version: `/usr/lib/…/glusterfs/10.3`.
fn library() -> Option<PathBuf> {
    let below =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    below("/usr/lib".into())
        .flat_map(|architecture| below(architecture.join("glusterfs")))
        .find(|version| version.join("xlator").is_dir())
}

/// Builds the translator in `place`.
///
/// # Panics
/// If the build fails.
#[must_use]
pub fn translator(place: &Path) -> PathBuf {
    let made = place.join("miot.so");
    let mut build = Command::new(root().join("tracer-client/hooks/gluster/build.sh"));
    let _ = run(build.arg(built().library.join("libmiot.a")).arg(&made)).success();
    made
}

impl Gluster {
    /// Starts the daemon with its files in `place`. Prints a message and returns `None` where this
    /// is impossible.
    ///
    /// # Panics
    /// On an unexpected error.
    #[must_use]
    pub fn start(place: &Path) -> Option<Gluster> {
        let library = library();
        if let Some(why) = missing().or(library.is_none().then_some("GlusterFS has no translators")) {
            eprintln!("NOT TESTED: no GlusterFS: {why}");
            return None;
        }
        let (library, room) = (library?, Namespaces::new(&["--net", "--mount"])?);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let [own, log] = ["library", "log"].map(|name| place.join(name));
        fs::create_dir_all(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let hosts = place.join("hosts");
        fs::write(&hosts, format!("127.0.0.1 localhost\n127.0.0.1 {host}\n"))
            .unwrap_or_else(|e| panic!("{e}"));
        room.shell(&format!(
            "ip link set lo up
             mount -t tmpfs tmpfs /run; mkdir /run/gluster
             mount -t tmpfs tmpfs /var/lib/glusterd
             mount --bind {} /var/log/glusterfs
             mount --bind {} /etc/hosts
             cp -a {} {own}
             install -D -m 755 {} {own}/filter/miot
             install -m 755 {} {own}/xlator/debug/
             mount --bind {own} {}",
            log.display(),
            hosts.display(),
            library.display(),
            root().join("tracer-client/hooks/gluster/filter.sh").display(),
            translator(place).display(),
            library.display(),
            own = own.display(),
        ));
        let daemon = Background::start(&mut room.inside(Command::new("glusterd").arg("--no-daemon")));
        let gluster =
            Gluster { room, place: place.to_owned(), host, daemon: Some(daemon), volumes: Vec::new() };
        until("glusterd answers", || gluster.ask(&["volume", "info"]).code() == 0);
        Some(gluster)
    }

    fn ask(&self, words: &[&str]) -> Ended {
        run(&mut self.room.inside(Command::new("gluster").arg("--mode=script").args(words)))
    }

    /// Runs `gluster WORDS…` and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn cli(&self, words: &[&str]) -> String {
        self.ask(words).success().stdout
    }

    /// Creates and starts a volume of one brick. Without `cached` its client graph is
    /// [`PLAIN_GRAPH`].
    pub fn volume(&mut self, name: &str, cached: bool) {
        let brick = format!("{}:{}", self.host, self.place.join("brick").join(name).display());
        fs::create_dir_all(self.place.join("brick")).unwrap_or_else(|e| panic!("{e}"));
        self.cli(&["volume", "create", name, &brick, "force"]);
        self.volumes.push(name.to_owned());
        if !cached {
            let pairs: Vec<&str> = PLAIN_GRAPH.into_iter().flat_map(|option| [option, "off"]).collect();
            self.cli(&[&["volume", "set", name], &pairs[..]].concat());
        }
        self.cli(&["volume", "start", name]);
    }

    /// Ids of the processes that serve the bricks of a volume.
    #[must_use]
    pub fn bricks(&self, volume: &str) -> Vec<u32> {
        let folder = self.room.seen(&Path::new("/run/gluster/vols").join(volume));
        let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let text = files.flatten().map(|file| fs::read_to_string(file.path()).unwrap_or_default());
        text.filter_map(|text| text.trim().parse().ok()).collect()
    }

    /// Sets a volume option for the translator. An administrator must set it twice as well.
    pub fn ask_for(&self, volume: &str, option: &str, value: &str) {
        for _ in 0..2 {
            self.cli(&["volume", "set", volume, option, value]);
        }
    }

    /// Volume file of mounts and libgfapi programs.
    #[must_use]
    pub fn volume_file(&self, volume: &str) -> String {
        let path = format!("/var/lib/glusterd/vols/{volume}/trusted-{volume}.tcp-fuse.vol");
        fs::read_to_string(self.room.seen(Path::new(&path))).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Counters of the brick since its start: calls by file operation, `bytes read`, `bytes
    /// written`, and `fd cleanup` from its log. The last one counts the brick's own flushes of
    /// descriptors that a disconnected client had not released. The volume's profile must have been
    /// started.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn profile(&self, volume: &str) -> BTreeMap<String, u64> {
        let text = self.cli(&["volume", "profile", volume, "info", "cumulative"]);
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |word: &str| word.parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"));
            match words[..] {
                ["Data", "Read:", bytes, "bytes"] => counts.insert("bytes read".into(), number(bytes)),
                ["Data", "Written:", bytes, "bytes"] => counts.insert("bytes written".into(), number(bytes)),
                [_, _, "ns" | "us", _, "ns" | "us", _, "ns" | "us", calls, operation] => {
                    counts.insert(operation.to_owned(), number(calls))
                }
                _ => None,
            };
        }
        assert!(counts.contains_key("bytes read"), "{text}");
        counts.insert("fd cleanup".into(), self.cleanups(volume));
        counts
    }

    fn cleanups(&self, volume: &str) -> u64 {
        let log = self.room.seen(Path::new("/var/log/glusterfs/bricks"));
        let logs = fs::read_dir(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display())).flatten();
        let text = logs.map(|log| fs::read_to_string(log.path()).unwrap_or_default()).collect::<String>();
        let server = format!("-{volume}-server: fd cleanup");
        text.lines().filter(|line| line.contains(&server)).count() as u64
    }

    /// Mounts a volume whose process records for the log-client of this directory.
    #[must_use]
    pub fn mount(&self, volume: &str, miot: &Path) -> Mount<'_> {
        self.mount_with(volume, Command::new("glusterfs").env("MIOT_DIR", miot))
    }

    /// Mounts a volume with a command that lacks only its arguments.
    ///
    /// # Panics
    /// If the mount fails.
    #[must_use]
    pub fn mount_with(&self, volume: &str, glusterfs: &mut Command) -> Mount<'_> {
        let dir = self.place.join(format!("mnt-{volume}"));
        fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let log = self.place.join(format!("log/mount-{volume}"));
        glusterfs.arg("--no-daemon").arg("-l").arg(&log);
        glusterfs.args([&format!("--volfile-server={}", self.host), &format!("--volfile-id={volume}")]);
        let process = Background::start(&mut self.room.inside(glusterfs.arg(&dir)));
        let mut mount = Mount { gluster: self, process: Some(process), dir, log };
        until("the volume is mounted", || {
            assert!(mount.process.as_mut().is_some_and(Background::running), "{}", mount.logged());
            mount.is_there()
        });
        mount
    }

    /// Shell command inside the namespaces, in a folder.
    #[must_use]
    pub fn inside(&self, folder: &Path, script: &str) -> Command {
        self.room.inside(Command::new("sh").args(["-ec", &format!("cd '{}'; {script}", folder.display())]))
    }
}

impl Drop for Gluster {
    fn drop(&mut self) {
        for volume in &self.volumes {
            let stopped = self.ask(&["volume", "stop", volume, "force"]);
            if stopped.code() != 0 {
                eprintln!("the brick of {volume} may be left: {}{}", stopped.stdout, stopped.stderr);
            }
        }
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.stop(Signal::TERM);
        }
    }
}

/// A mounted volume, unmounted when dropped.
#[derive(Debug)]
pub struct Mount<'a> {
    gluster: &'a Gluster,
    process: Option<Background>,
    /// Mount point inside the namespaces.
    pub dir: PathBuf,
    log: PathBuf,
}

impl Mount<'_> {
    /// Id of the process that serves the mount.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.as_ref().map_or(0, Background::id)
    }

    /// Log of the process.
    #[must_use]
    pub fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Mount point as seen from outside.
    #[must_use]
    pub fn seen(&self) -> PathBuf {
        self.gluster.room.seen(&self.dir)
    }

    fn is_there(&self) -> bool {
        let mounts =
            fs::read_to_string(format!("/proc/{}/mounts", self.gluster.room.id())).unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(1) == self.dir.to_str())
    }

    /// Runs a shell script in the mount.
    ///
    /// # Panics
    /// If it fails.
    pub fn shell(&self, script: &str) -> Ended {
        run(&mut self.gluster.inside(&self.dir, script)).success()
    }

    /// Kills the process that serves the mount, and removes its leftovers.
    pub fn kill(mut self) {
        if let Some(process) = self.process.take() {
            let _ = process.stop(Signal::KILL);
        }
    }

    /// Unmounts. The process must exit by itself, without an error.
    ///
    /// # Panics
    /// If it does not.
    pub fn end(mut self) {
        self.gluster.room.shell(&format!("umount '{}'", self.dir.display()));
        if let Some(mut process) = self.process.take() {
            until("the mount process ends", || !process.running());
            let (status, text) = process.stop(Signal::TERM);
            // GlusterFS sends itself SIGTERM, and the status shows it.
            assert!(matches!(status.code(), Some(0 | 15)), "{status}\n{text}\n{}", self.logged());
        }
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if self.is_there() {
            let line = format!("umount -l '{}' || true", self.dir.display());
            let _ = run(&mut self.gluster.inside(Path::new("/"), &line));
        }
    }
}

//! File systems of the benchmarks: ext4 on a loop device, and GlusterFS with one brick on this
//! host.
//!
//! Both need root. A dropped value unmounts, stops and removes everything that it created.

use crate::process;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a command. Returns its output or its error.
fn tool(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("`{name}` is not installed"))?;
    ensure!(
        output.status.success(),
        "{name}: {}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Unmounts a file system, also if it is busy for a moment.
fn unmount(dir: &Path) {
    let patience = Instant::now() + Duration::from_secs(10);
    while let Err(error) = tool(Command::new("umount").arg(dir)) {
        if Instant::now() > patience {
            eprintln!("{} stays mounted: {error:#}", dir.display());
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A new ext4 file system in an image file.
pub(crate) struct Ext4 {
    image: PathBuf,
    device: String,
    dir: PathBuf,
}

impl Ext4 {
    /// Creates the sparse image in `scratch` and mounts it. The loop device passes requests on
    /// directly, so that direct requests are direct down to the disk below.
    pub(crate) fn mount(scratch: &Path) -> Result<Ext4> {
        /// Size of the image. The large tree of `git status` needs the most.
        const BYTES: u64 = 4 << 30;
        let image = scratch.join("ext4.img");
        File::create(&image)?.set_len(BYTES)?;
        Ext4::mount_image(image, scratch.join("ext4"), "defaults", "lazy_itable_init=0")
    }

    /// Like [`Ext4::mount`], with mount options and an image of `bytes` bytes whose blocks are all
    /// allocated, so that the first write does not wait for the file system below.
    pub(crate) fn mount_whole(scratch: &Path, bytes: u64, options: &str) -> Result<Ext4> {
        let image = scratch.join("ext4.img");
        let zeros = vec![0; 1 << 20];
        let mut file = File::create(&image)?;
        for _ in 0..bytes >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        Ext4::mount_image(image, scratch.join("ext4"), options, "lazy_itable_init=0,nodiscard")
    }

    fn mount_image(image: PathBuf, dir: PathBuf, options: &str, make: &str) -> Result<Ext4> {
        std::fs::create_dir_all(&dir)?;
        tool(Command::new("mkfs.ext4").args(["-q", "-F", "-E", make]).arg(&image))?;
        let device = tool(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image))?;
        let ext4 = Ext4 { image, device, dir };
        if let Err(error) = tool(Command::new("mount").args(["-o", options]).arg(&ext4.device).arg(&ext4.dir))
        {
            // The mount failed, so dropping the value must not unmount.
            let _ = tool(Command::new("losetup").arg("--detach").arg(&ext4.device));
            std::mem::forget(ext4);
            bail!("{error:#}");
        }
        Ok(ext4)
    }

    /// Mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        unmount(&self.dir);
        if let Err(error) = tool(Command::new("losetup").arg("--detach").arg(&self.device)) {
            eprintln!("{} stays attached: {error:#}", self.device);
        }
        let _ = std::fs::remove_file(&self.image);
    }
}

/// A GlusterFS volume of one brick, served and mounted on this host.
pub(crate) struct Gluster {
    daemon: Child,
    dir: PathBuf,
    mount: Option<Mount>,
}

const VOLUME: &str = "miot-bench";

fn gluster(args: &[&str]) -> Result<String> {
    tool(Command::new("timeout").args(["60", "gluster", "--mode=script"]).args(args))
}

impl Gluster {
    /// Starts a management daemon with its files in `scratch`, a volume, its brick and a mount.
    pub(crate) fn mount(scratch: &Path) -> Result<Gluster> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_string();
        ensure!(
            std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), 0)).is_ok(),
            "this host's name, {host}, is not in /etc/hosts"
        );
        tool(Command::new("glusterd").arg("--version"))?;
        ensure!(gluster(&["volume", "info"]).is_err(), "a glusterd runs here already and is left alone");
        let [home, brick, dir] = ["gluster-home", "gluster-brick", "gluster"].map(|name| scratch.join(name));
        for dir in [&home, &brick, &dir] {
            std::fs::create_dir_all(dir)?;
        }
        let settings = scratch.join("glusterd.vol");
        std::fs::write(
            &settings,
            format!(
                "volume management\n type mgmt/glusterd\n option working-directory {}\n option transport-type socket\n \
                 option transport.socket.listen-port 24007\n option max-port 60999\nend-volume\n",
                home.display()
            ),
        )?;
        let log = |name: &str| scratch.join(name);
        let daemon = process::ends_with_us(&mut Command::new("glusterd"))
            .arg("--no-daemon")
            .arg("-f")
            .arg(&settings)
            .arg("-p")
            .arg(log("glusterd.pid"))
            .arg("-l")
            .arg(log("glusterd.log"))
            .stdin(Stdio::null())
            .spawn()
            .context("glusterd")?;
        let mut volume = Gluster { daemon, dir, mount: None };
        let patience = Instant::now() + Duration::from_secs(20);
        while gluster(&["volume", "info"]).is_err() {
            ensure!(Instant::now() < patience, "glusterd does not answer");
            std::thread::sleep(Duration::from_millis(200));
        }
        gluster(&["volume", "create", VOLUME, &format!("{host}:{}", brick.display()), "force"])?;
        gluster(&["volume", "start", VOLUME])?;
        let mut mount = Command::new("glusterfs");
        mount.args([&format!("--volfile-server={host}"), &format!("--volfile-id={VOLUME}")]);
        volume.mount = Some(Mount::make(&mut mount, &volume.dir)?);
        Ok(volume)
    }

    /// Mounts the volume once more, with a translator on top that records for the log-client of
    /// `node`.
    pub(crate) fn mount_again(&self, dir: &Path, translator: &Path, node: &Path) -> Result<Mount> {
        std::fs::create_dir_all(dir)?;
        // Types of translators are paths below a folder of GlusterFS. This path leaves that folder.
        let place = translator.with_extension("");
        let file = dir.with_extension("vol");
        let text = gluster(&["system::", "getspec", VOLUME])?;
        let top = text.lines().filter_map(|line| line.strip_prefix("volume ")).next_back();
        let top = top.with_context(|| format!("no volume file: {text}"))?;
        let added = format!(
            "\n\nvolume {top}-miot\n type {}{}\n subvolumes {top}\nend-volume\n",
            "../".repeat(9).trim_end_matches('/'),
            place.display()
        );
        std::fs::write(&file, text.clone() + &added)?;
        Mount::make(Command::new("glusterfs").arg("-f").arg(&file).env("MIOT_DIR", node), dir)
    }

    /// Mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// An additional mount, unmounted when dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// Mounts with a command that lacks only the mount point.
    fn make(glusterfs: &mut Command, dir: &Path) -> Result<Mount> {
        tool(glusterfs.arg("-l").arg(dir.with_extension("log")).arg(dir))?;
        let patience = Instant::now() + Duration::from_secs(20);
        while !is_mount(dir) {
            ensure!(Instant::now() < patience, "the GlusterFS volume cannot be mounted");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Mount(dir.to_path_buf()))
    }

    /// Mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

fn is_mount(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == dir.canonicalize().ok().as_deref().and_then(Path::to_str))
}

impl Drop for Gluster {
    fn drop(&mut self) {
        self.mount = None;
        for step in [["volume", "stop", VOLUME, "force"].as_slice(), &["volume", "delete", VOLUME]] {
            if let Err(error) = gluster(step) {
                eprintln!("gluster {}: {error:#}", step.join(" "));
            }
        }
        process::terminate(&mut self.daemon);
    }
}

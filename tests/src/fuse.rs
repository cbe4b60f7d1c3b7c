//! A FUSE file system of a test's own that answers when the test wants it to: `Documentation/filesystems/fuse.rst` and
//! `include/uapi/linux/fuse.h` of the kernel. Every file is missing from it.

use crate::process::until;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

const FORGET: u32 = 2;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;
/// Requests on one directory do not wait for each other.
const PARALLEL_DIROPS: u32 = 1 << 18;
/// Of `struct fuse_in_header`.
const IN_HEADER: usize = 40;
/// The kernel refuses to read into less.
const BUFFER: usize = 64 << 10;

/// Where its connections are told of is not mounted where no systemd does it.
const MOUNT: &str = "mount -i -t fuse.test -o \"$1\" \"$2\" \"$3\"
    mountpoint -q /sys/fs/fuse/connections || mount -t fusectl fusectl /sys/fs/fuse/connections
    shift 3
    exec \"$@\"";

/// Numbers of the requests that wait; `None`: none is to wait any more.
type Waiting = Arc<Mutex<Option<Vec<u64>>>>;

/// See the module.
#[derive(Debug)]
pub struct Fuse {
    device: Arc<File>,
    waiting: Waiting,
}

impl Fuse {
    /// Makes `command` run in a mount namespace where it is mounted at `directory`, as `name`. Needs root.
    ///
    /// # Errors
    /// If this machine has no FUSE.
    pub fn mount<S: AsRef<OsStr>>(
        name: &str,
        directory: &Path,
        command: &[S],
    ) -> io::Result<(Fuse, Command)> {
        let device = Arc::new(File::options().read(true).write(true).open("/dev/fuse")?);
        // mount(8) gives it to the kernel.
        fcntl_setfd(&device, FdFlags::empty())?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", MOUNT]);
        unshare.args(["sh", &options, name]).arg(directory).args(command);
        let waiting = Waiting::new(Mutex::new(Some(Vec::new())));
        let fuse = Fuse { device: device.clone(), waiting: waiting.clone() };
        std::thread::spawn(move || serve(&device, &waiting));
        Ok((fuse, unshare))
    }

    /// How many requests wait for an answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.lock().map_or(0, |waiting| waiting.as_ref().map_or(0, Vec::len))
    }

    /// Answers all requests that wait, and from now on each at once.
    pub fn answer(&self) {
        let waiting = self.waiting.lock().ok().and_then(|mut waiting| waiting.take());
        waiting.into_iter().flatten().for_each(|request| answer(&self.device, request, Err(Errno::NOENT)));
    }
}

/// Reads requests until it is unmounted.
fn serve(device: &File, waiting: &Waiting) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut read = Err(Errno::PERM);
        // Until it is mounted.
        until("the FUSE file system is mounted", || {
            read = rustix::io::read(device, &mut buffer);
            read != Err(Errno::PERM)
        });
        match read {
            Ok(length) if length >= IN_HEADER => {}
            Err(Errno::INTR | Errno::NOENT) => continue,
            _ => return,
        }
        let word =
            |at: usize| u32::from_ne_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
        let unique = u64::from(word(8)) | u64::from(word(12)) << 32;
        match word(4) {
            INIT => {
                // `struct fuse_init_out`: version, readahead, flags, background, largest write, times in ns.
                let init = [7, 31, 0, PARALLEL_DIROPS, 12 | 9 << 16, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                answer(device, unique, Ok(&init.map(u32::to_ne_bytes).concat()));
            }
            FORGET | BATCH_FORGET => {}
            _ => match waiting.lock().as_deref_mut() {
                Ok(Some(waiting)) => waiting.push(unique),
                _ => answer(device, unique, Err(Errno::NOENT)),
            },
        }
    }
}

/// `struct fuse_out_header`, and what follows it. A request that was interrupted meanwhile takes no answer.
fn answer(device: &File, unique: u64, result: Result<&[u8], Errno>) {
    let (error, body) = result.map_or_else(|error| (-error.raw_os_error(), &[][..]), |body| (0, body));
    let length = (16 + body.len()) as u32;
    let message = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes(), body].concat();
    let _ = rustix::io::write(device, &message);
}

//! A FUSE file system with one file, `file`, that can delay its answers. It follows
//! `Documentation/filesystems/fuse.rst` and `include/uapi/linux/fuse.h` of the kernel. `reluctant
//! NAME DIRECTORY` mounts it; this needs root.
//!
//! It prints `mounted` and answers the first request for the attributes of the file. Later requests
//! wait until it reads `answer`. It ends with its standard input, and in any case after some
//! minutes. The kernel then fails the waiting requests, because no other process has the device
//! open.

use rustix::mount::{MountFlags, mount};
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Size of `struct fuse_in_header`.
const IN_HEADER: usize = 40;
/// Size of the read buffer. The kernel refuses reads into a smaller one.
const BUFFER: usize = 64 << 10;
/// Node numbers.
const ROOT: u64 = 1;
const THE_FILE: u64 = 2;
/// Validity of names in seconds, so that only the first lookup takes the lock of the directory.
const LONG: u64 = 86_400;
/// Longest lifetime in seconds.
const LIFE: u32 = 600;

#[derive(Debug, Default)]
struct Waiting {
    /// The first request for attributes was answered.
    asked: bool,
    /// Numbers of the waiting requests.
    requests: Vec<u64>,
}

fn main() {
    // SAFETY: SIGALRM has its default action, which ends the process, as intended.
    unsafe { libc::alarm(LIFE) };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, directory] = &arguments[..] else { fail("name and directory") };
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = Arc::new(device.unwrap_or_else(|e| fail(&format!("/dev/fuse: {e}"))));
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = CString::new(options).unwrap_or_default();
    if let Err(error) =
        mount(name.as_str(), directory.as_str(), "fuse.test", MountFlags::empty(), options.as_c_str())
    {
        fail(&format!("{directory}: {error}"));
    }
    let waiting = Arc::<Mutex<Waiting>>::default();
    let server = (Arc::clone(&device), Arc::clone(&waiting));
    std::thread::spawn(move || serve(&server.0, &server.1));
    println!("mounted");
    let _ = std::io::stdout().flush();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == "answer" {
            let requests = waiting.lock().map(|mut waiting| std::mem::take(&mut waiting.requests));
            for request in requests.unwrap_or_default() {
                answer(&device, request, 0, &attributes_answer(THE_FILE));
            }
        }
    }
}

fn fail(problem: &str) -> ! {
    eprintln!("reluctant: {problem}");
    std::process::exit(1)
}

/// Reads requests until the connection ends.
fn serve(mut device: &File, waiting: &Mutex<Waiting>) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match device.read(&mut buffer) {
            Ok(length) if length >= IN_HEADER => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => continue,
            _ => return,
        }
        let word =
            |at: usize| u32::from_ne_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (request, node) = (long(8), long(16));
        match word(4) {
            INIT => {
                // `struct fuse_init_out`: version, readahead, flags, background, largest write,
                // times in ns.
                let init = [7, 31, 0, 0, 12 | 9 << 16, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                answer(device, request, 0, &init.map(u32::to_ne_bytes).concat());
            }
            LOOKUP if buffer[IN_HEADER..].starts_with(b"file\0") => {
                // `struct fuse_entry_out`: node, generation, validity of name and of attributes.
                let entry = [THE_FILE, 0, LONG, 0, 0].map(u64::to_ne_bytes).concat();
                answer(device, request, 0, &[entry, attributes(THE_FILE)].concat());
            }
            LOOKUP => answer(device, request, libc::ENOENT, &[]),
            GETATTR if node == THE_FILE => {
                let first = waiting.lock().map(|mut waiting| {
                    let first = !std::mem::replace(&mut waiting.asked, true);
                    if !first {
                        waiting.requests.push(request);
                    }
                    first
                });
                if first.unwrap_or(true) {
                    answer(device, request, 0, &attributes_answer(THE_FILE));
                }
            }
            GETATTR => answer(device, request, 0, &attributes_answer(node)),
            FORGET | BATCH_FORGET | INTERRUPT => {}
            _ => answer(device, request, libc::ENOSYS, &[]),
        }
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    // Number, size, blocks and three times; their nanoseconds, mode, links, owner, group, device,
    // block size, flags.
    let longs = [node, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    [longs, [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat()].concat()
}

/// `struct fuse_attr_out`, valid for zero seconds, so that each stat is a request.
fn attributes_answer(node: u64) -> Vec<u8> {
    [vec![0; 16], attributes(node)].concat()
}

/// Writes `struct fuse_out_header` and the body. The kernel takes no answer to a request that was
/// interrupted.
fn answer(mut device: &File, request: u64, error: i32, body: &[u8]) {
    let length = (16 + body.len()) as u32;
    let message = [&length.to_ne_bytes()[..], &(-error).to_ne_bytes(), &request.to_ne_bytes(), body].concat();
    let _ = device.write(&message);
}

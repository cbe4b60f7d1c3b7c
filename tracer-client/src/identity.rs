//! Who this process is, and where its node's MIOT directory is.
//!
//! The environment is read once, by a constructor that runs before `main`, while there is one thread:
//! later reads would race with `setenv`. Nothing here allocates.

use crate::file::File;
use miot_proto::control::{DEFAULT_DIR, DIR_ENV};
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// Bytes of a directory name that is accepted from the environment.
const MAX_DIR: usize = 256;
const MAX_JOB: usize = 64;

/// Where schedulers leave the job id, and MPI launchers the rank, in the order of preference.
const JOB_ENV: [&[u8]; 6] =
    [b"MIOT_JOB", b"SLURM_JOB_ID", b"PBS_JOBID", b"FLUX_JOB_ID", b"LSB_JOBID", b"JOB_ID"];
const RANK_ENV: [&[u8]; 7] = [
    b"MIOT_RANK",
    b"PMIX_RANK",
    b"OMPI_COMM_WORLD_RANK",
    b"PMI_RANK",
    b"MV2_COMM_WORLD_RANK",
    b"SLURM_PROCID",
    b"FLUX_TASK_RANK",
];

/// A NUL-terminated byte string of bounded length.
#[derive(Clone, Copy)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Text { bytes: [0; N], len: 0 }
    }

    /// Appends; what does not fit makes the text unusable as a path rather than another path.
    pub(crate) fn push(&mut self, more: &[u8]) {
        match self.bytes.get_mut(self.len..self.len + more.len()) {
            Some(room) if self.len + more.len() < N => {
                room.copy_from_slice(more);
                self.len += more.len();
            }
            _ => self.len = N,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).filter(|b| b.len() < N).unwrap_or(&[])
    }

    /// `None` if it is empty or did not fit.
    pub(crate) fn as_c_str(&self) -> Option<&CStr> {
        if self.len == 0 || self.len >= N {
            return None;
        }
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}

#[derive(Clone, Copy)]
struct Environment {
    dir: Text<MAX_DIR>,
    job: Text<MAX_JOB>,
    /// Rank + 1.
    rank: u64,
}

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// glibc calls the functions of `.init_array` with the arguments of `main`.
extern "C" fn capture(_: c_int, _: *const *const c_char, env: *const *const c_char) {
    // SAFETY: the loader passes the environment of the process; nothing runs beside a constructor.
    let _ = ENVIRONMENT.set(unsafe { read_environment(env) });
}

#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = capture;

/// # Safety
/// `env` is null, or a null-terminated array of C strings that nobody changes meanwhile.
unsafe fn read_environment(env: *const *const c_char) -> Environment {
    let mut found = Environment { dir: Text::new(), job: Text::new(), rank: 0 };
    let (mut job_at, mut rank_at) = (JOB_ENV.len(), RANK_ENV.len());
    let mut at = env;
    // SAFETY: by the contract above, each entry up to the null one is a C string.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: as above.
        let entry = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        // SAFETY: not past the null entry, which ended the loop.
        at = unsafe { at.add(1) };
        let Some(equals) = entry.iter().position(|b| *b == b'=') else { continue };
        let (name, value) = (&entry[..equals], &entry[equals + 1..]);
        if value.is_empty() {
            continue;
        }
        if name == DIR_ENV.as_bytes() {
            found.dir = Text::new();
            found.dir.push(value);
        } else if let Some(i) = JOB_ENV.iter().position(|n| *n == name).filter(|i| *i < job_at) {
            job_at = i;
            found.job = Text::new();
            found.job.push(&value[..value.len().min(MAX_JOB - 1)]);
        } else if let Some(i) = RANK_ENV.iter().position(|n| *n == name).filter(|i| *i < rank_at)
            && let Some(rank) = number(value)
        {
            rank_at = i;
            found.rank = rank + 1;
        }
    }
    if found.dir.len == 0 {
        found.dir.push(DEFAULT_DIR.as_bytes());
    }
    found
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse::<u32>().ok().map(u64::from)
}

unsafe extern "C" {
    /// The environment as the C library has it, which it sets before any other library's constructor runs.
    static environ: *const *const c_char;
}

fn environment() -> &'static Environment {
    // Libraries the program is linked with may do I/O in constructors that run before ours (libselinux
    // does), and musl passes no environment to constructors.
    // SAFETY: nobody changes the environment while the first constructors run.
    ENVIRONMENT.get_or_init(|| unsafe { read_environment(environ) })
}

/// The MIOT directory, a slash, and `name`.
pub(crate) fn path_in_dir(name: &[u8]) -> Text<{ MAX_DIR + 64 }> {
    let mut path = Text::new();
    path.push(environment().dir.as_bytes());
    path.push(b"/");
    path.push(name);
    path
}

/// Id of the batch job, empty if none.
pub(crate) fn job() -> &'static [u8] {
    environment().job.as_bytes()
}

/// MPI rank + 1, 0 if none.
pub(crate) fn rank() -> u64 {
    environment().rank
}

// /proc/self is empty once the main thread has ended, /proc/thread-self is not.

/// The executable's path.
pub(crate) fn exe(buffer: &mut [u8; 1024]) -> &[u8] {
    link(c"/proc/thread-self/exe", buffer)
}

/// The command line, arguments separated by NUL; cut to the buffer.
pub(crate) fn cmdline(buffer: &mut [u8; 2048]) -> &[u8] {
    let file = File::open(c"/proc/thread-self/cmdline", OFlags::RDONLY, Mode::empty()).ok();
    let read = file.as_ref().and_then(File::fd).and_then(|fd| rustix::io::read(fd, &mut buffer[..]).ok());
    let line = &buffer[..read.unwrap_or(0)];
    line.strip_suffix(b"\0").unwrap_or(line)
}

/// The working directory.
pub(crate) fn cwd(buffer: &mut [u8; 1024]) -> &[u8] {
    link(c"/proc/thread-self/cwd", buffer)
}

fn link<'a>(path: &CStr, buffer: &'a mut [u8; 1024]) -> &'a [u8] {
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut buffer[..]).unwrap_or(0);
    &buffer[..length]
}

/// The name of the calling thread.
pub(crate) fn comm() -> [u64; 2] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes to the buffer. `prctl` is no I/O call, so no hook.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let (low, high) = name.split_at(8);
    [low, high].map(|half| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_gives_directory_job_and_rank_by_preference() {
        let lines = [
            c"PMI_RANK=9",
            c"SLURM_JOB_ID=77",
            c"MIOT_DIR=/dev/shm/x",
            c"OMPI_COMM_WORLD_RANK=3",
            c"JOB_ID=1",
            c"NOT",
        ];
        let mut env: Vec<_> = lines.iter().map(|l| l.as_ptr()).collect();
        env.push(std::ptr::null());
        // SAFETY: a null-terminated array of C strings.
        let found = unsafe { read_environment(env.as_ptr()) };
        assert_eq!(
            (found.dir.as_bytes(), found.job.as_bytes(), found.rank),
            (&b"/dev/shm/x"[..], &b"77"[..], 4)
        );
    }

    #[test]
    fn a_text_that_does_not_fit_is_no_path() {
        let mut text = Text::<8>::new();
        text.push(b"1234");
        assert!(text.as_c_str().is_some());
        text.push(b"5678");
        assert_eq!((text.as_c_str(), text.as_bytes()), (None, &b""[..]));
    }

    #[test]
    fn this_process_knows_itself() {
        assert!(exe(&mut [0; 1024]).starts_with(b"/"));
        assert!(!cmdline(&mut [0; 2048]).is_empty());
        assert!(cwd(&mut [0; 1024]).starts_with(b"/"));
        assert_ne!(comm()[0], 0);
    }
}

//! Identity of this process, and the MIOT directory of its node.
//!
//! The environment is read once, by a constructor that runs before `main` while there is one
//! thread: later reads would race with `setenv`. Nothing here allocates, and little is read from
//! `/proc`: at the first access of a process the kernel builds its directory there, which would be
//! most of the cost for a short program.

use crate::file::File;
use crate::gate::{self, Calls};
use crate::once::Once;
use miot_proto::control::{DEFAULT_DIR, DIR_ENV};
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, c_char, c_int};

/// Maximum length of the MIOT directory's path from the environment, bytes.
const MAX_DIR: usize = 256;
/// Maximum recorded length of a job's id and of a step's name, bytes.
const MAX_JOB: usize = 64;
const MAX_STEP: usize = 128;
/// Maximum length of a job in the format of [`miot_proto::job`] (id, system, step, number of
/// ranks), bytes.
const MAX_JOB_LINE: usize = MAX_JOB + MAX_STEP + 32;
/// Maximum recorded length of a command line, bytes.
const MAX_LINE: usize = 2048;

/// Environment variables with the job id, in order of preference, and the batch system of each.
const JOB_ENV: [(&[u8], &[u8]); 7] = [
    (b"MIOT_JOB", b"miot"),
    (b"SLURM_JOB_ID", b"slurm"),
    (b"PBS_JOBID", b"pbs"),
    (b"FLUX_JOB_ID", b"flux"),
    (b"LSB_JOBID", b"lsf"),
    (b"COBALT_JOBID", b"cobalt"),
    (b"JOB_ID", b"sge"),
];
/// Environment variables in which batch systems and launchers of parallel programs pass the name of
/// one run within the job.
const STEP_ENV: [&[u8]; 4] = [SLURM_STEP, b"PALS_APID", b"PMIX_NAMESPACE", b"TORCHELASTIC_RUN_ID"];
/// Name that torchrun gives all runs without a name.
const NO_STEP: &[u8] = b"none";

/// Environment variables with the rank and the number of ranks.
struct RankEnv {
    rank: &'static [u8],
    /// Empty if the launcher passes none.
    size: &'static [u8],
    /// The rank counts only with the number of ranks: other programs use a variable with this name
    /// too.
    needs_size: bool,
}

impl RankEnv {
    const fn new(rank: &'static [u8], size: &'static [u8]) -> RankEnv {
        RankEnv { rank, size, needs_size: false }
    }
}

/// Variables of the launchers, in order of preference. torchrun and DeepSpeed, the first after
/// MIOT's own, may start the processes of a node within a rank of another launcher. `LOCAL_RANK`
/// alone is a rank if all ranks are on this node. The variables of Slurm and Flux come last: they
/// also start the daemons of other launchers, whose children inherit the variables.
const RANK_ENV: [RankEnv; 12] = [
    RankEnv::new(b"MIOT_RANK", b"MIOT_WORLD_SIZE"),
    RankEnv { needs_size: true, ..RankEnv::new(b"RANK", b"WORLD_SIZE") },
    RankEnv::new(b"PMIX_RANK", b"OMPI_COMM_WORLD_SIZE"),
    RankEnv::new(b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_SIZE"),
    RankEnv::new(b"PMI_RANK", b"PMI_SIZE"),
    RankEnv::new(b"MV2_COMM_WORLD_RANK", b"MV2_COMM_WORLD_SIZE"),
    RankEnv::new(b"PALS_RANKID", b""),
    RankEnv::new(b"JSM_NAMESPACE_RANK", b"JSM_NAMESPACE_SIZE"),
    RankEnv::new(b"ALPS_APP_PE", b""),
    RankEnv { needs_size: true, ..RankEnv::new(b"LOCAL_RANK", b"LOCAL_WORLD_SIZE") },
    RankEnv::new(SLURM_RANK, b"SLURM_NTASKS"),
    RankEnv::new(b"FLUX_TASK_RANK", b"FLUX_JOB_SIZE"),
];
/// A batch script has this variable too, with the value 0, although it is not a rank. Only a step
/// has [`SLURM_STEP`].
const SLURM_RANK: &[u8] = b"SLURM_PROCID";
const SLURM_STEP: &[u8] = b"SLURM_STEP_ID";

/// Environment variable: `record` trusts inherited seccomp filters, `try` makes the process probe
/// them.
const SECCOMP_ENV: &[u8] = b"MIOT_SECCOMP";

/// First letters of the variables above.
const INITIALS: &[u8] = b"ACFJLMOPRSTW";

/// A NUL-terminated byte string of at most `N` - 1 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Text { bytes: [0; N], len: 0 }
    }

    /// Appends. If the text does not fit, it becomes unusable as a path instead of a different
    /// path.
    pub(crate) fn push(&mut self, more: &[u8]) {
        match self.bytes.get_mut(self.len..self.len + more.len()) {
            Some(space) if self.len + more.len() < N => {
                space.copy_from_slice(more);
                self.len += more.len();
            }
            _ => self.len = N,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).filter(|b| b.len() < N).unwrap_or(&[])
    }

    /// Returns the text as a C string; `None` if it is empty or did not fit.
    pub(crate) fn as_c_str(&self) -> Option<&CStr> {
        if self.len == 0 || self.len >= N {
            return None;
        }
        // Not by `CStr::from_bytes_until_nul`, which is far away from the code of a start.
        // SAFETY: `from_ptr` requires
        // - a string that ends in NUL: the bytes after the first `len` are zero, and `len` < `N`.
        Some(unsafe { CStr::from_ptr(self.bytes.as_ptr().cast()) })
    }
}

#[derive(Clone, Copy)]
struct Environment {
    dir: Text<MAX_DIR>,
    /// Id, system, step and number of ranks.
    job: Text<MAX_JOB_LINE>,
    /// Rank + 1; 0 if there is none.
    rank: u64,
    /// The user states that inherited filters allow the tracer's system calls.
    trusts_inherited_filters: bool,
    /// This process only finds out whether inherited filters allow them.
    probes_calls: bool,
}

/// Beside the other words that each program touches at its start, see [`crate::node`].
#[unsafe(link_section = ".data.miot")]
static ENVIRONMENT: Once<Environment> = Once::new();

/// Command line at the start, arguments ended by NUL; empty if unknown.
static CMDLINE: Once<Text<MAX_LINE>> = Once::new();

/// Constructor: reads the environment, and looks for a log-client. If there is one, it also reads
/// the command line. glibc calls the functions of `.init_array` with the arguments of `main`. The
/// functions that it calls lie in the same section, so that a starting program touches few pages.
#[unsafe(link_section = ".text.startup")]
extern "C" fn capture(count: c_int, arguments: *const *const c_char, env: *const *const c_char) {
    // SAFETY: `join_arguments` and `read_environment` require
    // - valid arrays of C strings: the loader passes arguments and environment of the process;
    // - that no other code changes them meanwhile: no other thread runs during constructors.
    unsafe {
        ENVIRONMENT.init(|| read_environment(env));
        if crate::thread::look_for_log_client() && !env.is_null() {
            CMDLINE.init(|| join_arguments(count, arguments));
        }
    }
    if environment().probes_calls {
        gate::probe_all();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = capture;

/// Returns the command line in the format of `/proc/self/cmdline`.
///
/// # Safety
/// - `arguments` points to `count` C strings.
#[unsafe(link_section = ".text.startup")]
unsafe fn join_arguments(count: c_int, arguments: *const *const c_char) -> Text<MAX_LINE> {
    let mut line = Text::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `add` and `from_ptr` require
        // - an index within the array, and a C string there: required by this function.
        let argument = unsafe { CStr::from_ptr(*arguments.add(at)) }.to_bytes_with_nul();
        let space = MAX_LINE - 1 - line.len;
        line.push(&argument[..argument.len().min(space)]);
    }
    line
}

/// Extracts MIOT's settings, the job and the rank from an environment.
///
/// # Safety
/// - `env` is null, or a null-terminated array of C strings.
/// - Nobody changes it meanwhile.
#[unsafe(link_section = ".text.startup")]
unsafe fn read_environment(env: *const *const c_char) -> Environment {
    let mut found = Environment {
        dir: Text::new(),
        job: Text::new(),
        rank: 0,
        trusts_inherited_filters: false,
        probes_calls: false,
    };
    // Values in order of preference. A value that is not used costs only its parsing.
    let (mut jobs, mut steps) = ([None; JOB_ENV.len()], [None; STEP_ENV.len()]);
    let (mut ranks, mut sizes) = ([None; RANK_ENV.len()], [None; RANK_ENV.len()]);
    let mut at = env;
    // SAFETY: `as_ref` requires
    // - a valid pointer or null: `at` points to an entry of the array, up to and including the null
    //   entry.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: `add` requires
        // - a result within the array: this entry is not the null one, so another follows.
        at = unsafe { at.add(1) };
        // Every program pays for this loop at its start.
        // SAFETY: dereferencing requires
        // - a readable byte: the entry is a C string.
        if !INITIALS.contains(&unsafe { **entry }.cast_unsigned()) {
            continue;
        }
        // SAFETY: `from_ptr` requires
        // - a C string that no other code changes: required by this function.
        let entry = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        let Some(equals) = entry.iter().position(|b| *b == b'=') else { continue };
        let (name, value) = (&entry[..equals], &entry[equals + 1..]);
        if value.is_empty() {
            continue;
        }
        if name == DIR_ENV.as_bytes() {
            found.dir = Text::new();
            found.dir.push(value);
        } else if name == SECCOMP_ENV {
            found.trusts_inherited_filters = value == b"record";
            found.probes_calls = value == b"try";
        } else if let Some(i) = JOB_ENV.iter().position(|(n, _)| *n == name) {
            jobs[i] = Some(value);
        } else if let Some(i) = STEP_ENV.iter().position(|n| *n == name) {
            steps[i] = Some(value).filter(|value| *value != NO_STEP);
        } else {
            // Two launchers share the name of a size.
            for (i, of) in RANK_ENV.iter().enumerate() {
                if of.rank == name {
                    ranks[i] = number(value);
                } else if of.size == name {
                    sizes[i] = number(value).map(|_| value);
                }
            }
        }
    }
    let in_step = steps[0].is_some();
    let is_rank = |i: &usize| {
        let of = &RANK_ENV[*i];
        let is_meant = (in_step || of.rank != SLURM_RANK) && (!of.needs_size || sizes[*i].is_some());
        is_meant && ranks[*i].is_some()
    };
    let launcher = (0..RANK_ENV.len()).find(is_rank);
    found.rank = launcher.and_then(|i| ranks[i]).map_or(0, |rank| rank + 1);
    let size = launcher.and_then(|i| sizes[i]).unwrap_or_default();
    let job = jobs.iter().zip(JOB_ENV).find_map(|(job, (_, system))| Some((job.as_ref()?, system)));
    let (id, system): (&[u8], &[u8]) = job.map_or((b"", b""), |(id, system)| (id, system));
    let step = steps.iter().flatten().next().copied().unwrap_or_default();
    found.job = job_line(id, system, step, size);
    if found.dir.len == 0 {
        found.dir.push(DEFAULT_DIR.as_bytes());
    }
    found
}

/// Returns a job in the format of [`miot_proto::job`].
#[unsafe(link_section = ".text.startup")]
fn job_line(id: &[u8], system: &[u8], step: &[u8], size: &[u8]) -> Text<MAX_JOB_LINE> {
    let mut line = Text::new();
    if !id.is_empty() || !step.is_empty() || !size.is_empty() {
        line.push(&id[..id.len().min(MAX_JOB)]);
        line.push(b"\0");
        line.push(system);
    }
    if !step.is_empty() || !size.is_empty() {
        line.push(b"\0");
        line.push(&step[..step.len().min(MAX_STEP)]);
    }
    if !size.is_empty() {
        // The fields between are the log-client's.
        line.push(b"\0\0\0\0");
        line.push(size);
    }
    line
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse::<u32>().ok().map(u64::from)
}

unsafe extern "C" {
    /// The environment of the C library, which sets it before any other library's constructor runs.
    static environ: *const *const c_char;
}

fn environment() -> &'static Environment {
    // Libraries that the program is linked with may do I/O in constructors that run before this one
    // (libselinux does), and musl passes no environment to constructors.
    // SAFETY: `read_environment` requires
    // - an array of C strings: `environ` is one;
    // - that no other code changes it meanwhile: no other thread runs during the first
    //   constructors.
    ENVIRONMENT.get_or_init(|| unsafe { read_environment(environ) })
}

/// Returns the MIOT directory of the node, from `$MIOT_DIR` at program start or the default.
#[must_use]
#[unsafe(link_section = ".text.startup")]
pub fn directory() -> &'static [u8] {
    environment().dir.as_bytes()
}

/// Returns the path of the file `name` in the MIOT directory.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn path_in_dir(name: &[u8]) -> Text<{ MAX_DIR + 64 }> {
    let mut path = Text::new();
    path.push(directory());
    path.push(b"/");
    path.push(name);
    path
}

/// Returns id, system, step and number of ranks of the job in the format of [`miot_proto::job`];
/// empty if there is none.
pub(crate) fn job() -> &'static [u8] {
    environment().job.as_bytes()
}

/// Returns the id of the job; empty if there is none.
pub(crate) fn job_id() -> &'static [u8] {
    miot_proto::job::Job::from_bytes(job()).id
}

/// True if the environment states that an inherited seccomp filter allows the system calls of
/// recording.
pub(crate) fn trusts_inherited_filters() -> bool {
    environment().trusts_inherited_filters
}

/// Returns the rank + 1; 0 if there is none.
pub(crate) fn rank() -> u64 {
    environment().rank
}

/// Chooses between a path in /proc/self and one in /proc/thread-self. The former is empty after the
/// main thread has ended; the latter makes the kernel build one more directory.
fn proc_link<'a>(of_process: &'a CStr, of_thread: &'a CStr) -> &'a CStr {
    let main = syscall0(libc::SYS_gettid) == syscall0(libc::SYS_getpid);
    if main { of_process } else { of_thread }
}

/// Returns the path of the executable.
pub(crate) fn exe(buffer: &mut [u8; 1024]) -> &[u8] {
    read_link(proc_link(c"/proc/self/exe", c"/proc/thread-self/exe"), buffer)
}

/// Returns the command line, arguments separated by NUL, truncated to the buffer. `forked`: read
/// the current one, because many programs change it in their children to describe them.
pub(crate) fn cmdline(buffer: &mut [u8; MAX_LINE], forked: bool) -> &[u8] {
    // In a program that started without a log-client, the current one.
    let first = CMDLINE.get_or_init(Text::new).as_bytes();
    if !forked && !first.is_empty() {
        return first.strip_suffix(b"\0").unwrap_or(first);
    }
    let file = File::open(c"/proc/thread-self/cmdline", OFlags::RDONLY, Mode::empty()).ok();
    let read = file.as_ref().and_then(File::fd).and_then(|fd| rustix::io::read(fd, &mut buffer[..]).ok());
    let line = &buffer[..read.unwrap_or(0)];
    line.strip_suffix(b"\0").unwrap_or(line)
}

/// Returns the working directory.
pub(crate) fn cwd(buffer: &mut [u8; 1024]) -> &[u8] {
    // SAFETY: the system call and `errno` require
    // - a writable buffer of the given length: `buffer`;
    // - a valid pointer to `errno`: libc returns the calling thread's.
    // `errno` is restored, because the application's call has not been made yet.
    let length = unsafe {
        let before = *libc::__errno_location();
        let length = libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len());
        *libc::__errno_location() = before;
        length
    };
    match usize::try_from(length) {
        Ok(length @ 1..) if buffer[0] == b'/' => &buffer[..length - 1],
        // The directory is not in the tree any more. The link contains its last path.
        _ => read_link(c"/proc/thread-self/cwd", buffer),
    }
}

fn read_link<'a>(path: &CStr, buffer: &'a mut [u8; 1024]) -> &'a [u8] {
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut buffer[..]).unwrap_or(0);
    &buffer[..length]
}

/// Returns the inode of the process id namespace, which identifies it; 0 if it cannot be read.
pub(crate) fn pid_namespace() -> u64 {
    let mut buffer = [0; 1024];
    let digits = read_link(proc_link(c"/proc/self/ns/pid", c"/proc/thread-self/ns/pid"), &mut buffer)
        .strip_prefix(b"pid:[");
    let digits =
        digits.and_then(|rest| rest.strip_suffix(b"]")).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Makes a system call without arguments. `None` if it failed, which happens only under a filter.
pub(crate) fn syscall0(call: libc::c_long) -> Option<u32> {
    // SAFETY: the system call and `errno` require
    // - a call without arguments: the caller passes one;
    // - a valid pointer to `errno`: libc returns the calling thread's.
    // `errno` is restored.
    unsafe {
        let before = *libc::__errno_location();
        let answer = libc::syscall(call);
        *libc::__errno_location() = before;
        u32::try_from(answer).ok()
    }
}

/// Returns the id of the calling thread. If a filter denies the system call, the id comes from
/// libc: `pthread_getcpuclockid` encodes it in its result and makes no system call.
pub(crate) fn tid() -> u64 {
    if let Some(_pass) = gate::permit(Calls::TID) {
        return u64::from(syscall0(libc::SYS_gettid).unwrap_or(0));
    }
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `pthread_getcpuclockid` requires
    // - a live thread: the calling one;
    // - a valid out-pointer: a local variable.
    let failed = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    if failed == 0 { u64::from(!(clock >> 3) as u32) } else { 0 }
}

/// Returns the name of the calling thread; zeros if a filter denies the system call.
pub(crate) fn comm() -> [u64; 2] {
    let Some(_pass) = gate::permit(Calls::NAME) else { return [0; 2] };
    let mut name = [0u8; 16];
    // SAFETY: the system call requires
    // - a writable buffer of 16 bytes, the most that PR_GET_NAME writes: a local variable.
    // It cannot fail, so `errno` is not changed.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    let (low, high) = name.split_at(8);
    [low, high].map(|half| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_yields_directory_job_and_rank_by_preference() {
        let found = read(&[
            c"PMI_RANK=9",
            c"SLURM_JOB_ID=77",
            c"MIOT_DIR=/dev/shm/x",
            c"OMPI_COMM_WORLD_RANK=3",
            c"JOB_ID=1",
            c"NOT",
        ]);
        assert_eq!(
            (found.dir.as_bytes(), found.job.as_bytes(), found.rank),
            (&b"/dev/shm/x"[..], &b"77\0slurm"[..], 4)
        );
    }

    /// The variables are those in the documentation of each batch system and launcher.
    #[test]
    fn batch_systems_and_launchers_are_recognized() {
        let cases: [(&[&CStr], &[u8], u64); 20] = [
            (&[c"SLURM_JOB_ID=7", c"SLURM_STEP_ID=2", c"SLURM_PROCID=5"], b"7\0slurm\x002", 6),
            // A batch script is not a rank.
            (&[c"SLURM_JOB_ID=7", c"SLURM_PROCID=0"], b"7\0slurm", 0),
            // Open MPI's daemon was started by srun.
            (
                &[c"SLURM_JOB_ID=7", c"SLURM_STEP_ID=0", c"SLURM_PROCID=1", c"OMPI_COMM_WORLD_RANK=17"],
                b"7\0slurm\x000",
                18,
            ),
            (&[c"PBS_JOBID=12.pbs01", c"PMI_RANK=3"], b"12.pbs01\0pbs", 4),
            (&[c"PBS_JOBID=12.pbs01", c"PALS_APID=ab-1", c"PALS_RANKID=0"], b"12.pbs01\0pbs\0ab-1", 1),
            (&[c"FLUX_JOB_ID=f2AX", c"FLUX_TASK_RANK=8"], b"f2AX\0flux", 9),
            (&[c"PMIX_NAMESPACE=prterun-n1-9@1", c"PMIX_RANK=2"], b"\0\0prterun-n1-9@1", 3),
            (&[c"LSB_JOBID=4"], b"4\0lsf", 0),
            (&[c"MIOT_JOB=nightly", c"SLURM_JOB_ID=7"], b"nightly\0miot", 0),
            (&[c"PMI_RANK=x", c"PATH=/bin"], b"", 0),
            // torchrun, without and with a name of the run.
            (
                &[c"RANK=3", c"LOCAL_RANK=1", c"WORLD_SIZE=8", c"TORCHELASTIC_RUN_ID=none"],
                b"\0\0\0\0\0\x008",
                4,
            ),
            (
                &[c"RANK=0", c"LOCAL_WORLD_SIZE=2", c"WORLD_SIZE=2", c"TORCHELASTIC_RUN_ID=a7"],
                b"\0\0a7\0\0\0\x002",
                1,
            ),
            // torchrun in a step of Slurm with one task per node.
            (
                &[c"SLURM_JOB_ID=7", c"SLURM_STEP_ID=0", c"SLURM_PROCID=1", c"RANK=5", c"WORLD_SIZE=8"],
                b"7\0slurm\x000\0\0\0\x008",
                6,
            ),
            // DeepSpeed's launcher.
            (&[c"WORLD_SIZE=16", c"CROSS_RANK=0", c"RANK=9", c"LOCAL_RANK=1"], b"\0\0\0\0\0\x0016", 10),
            // Some other program's variable.
            (&[c"RANK=captain"], b"", 0),
            (&[c"RANK=3"], b"", 0),
            (&[c"LOCAL_RANK=1", c"LOCAL_WORLD_SIZE=4"], b"\0\0\0\0\0\x004", 2),
            (&[c"JSM_NAMESPACE_RANK=2", c"JSM_NAMESPACE_SIZE=6"], b"\0\0\0\0\0\x006", 3),
            (&[c"ALPS_APP_PE=11"], b"", 12),
            (&[c"PMIX_RANK=1", c"OMPI_COMM_WORLD_RANK=1", c"OMPI_COMM_WORLD_SIZE=2"], b"\0\0\0\0\0\x002", 2),
        ];
        for (lines, job, rank) in cases {
            let found = read(lines);
            assert_eq!((found.job.as_bytes(), found.rank), (job, rank), "{lines:?}");
        }
    }

    #[test]
    fn long_job_and_step_names_are_truncated() {
        let long = |name: &str| std::ffi::CString::new(format!("{name}={}", "x".repeat(5000))).unwrap();
        let (job, step) = (long("FLUX_JOB_ID"), long("PMIX_NAMESPACE"));
        let found = read(&[&job, &step]);
        let fields: Vec<usize> = found.job.as_bytes().split(|b| *b == 0).map(<[u8]>::len).collect();
        assert_eq!(fields, [MAX_JOB, 4, MAX_STEP]);
    }

    fn read(lines: &[&CStr]) -> Environment {
        let mut env: Vec<_> = lines.iter().map(|line| line.as_ptr()).collect();
        env.push(std::ptr::null());
        // SAFETY: `read_environment` requires
        // - a null-terminated array of C strings: built above;
        // - that no other code changes it meanwhile: it is local.
        unsafe { read_environment(env.as_ptr()) }
    }

    #[test]
    fn initials_cover_every_variable() {
        let jobs = JOB_ENV.iter().map(|(name, _)| *name);
        let names = jobs.chain(STEP_ENV).chain([DIR_ENV.as_bytes(), SECCOMP_ENV]);
        let names =
            names.chain(RANK_ENV.iter().flat_map(|of| [of.rank, of.size])).filter(|name| !name.is_empty());
        assert_eq!(names.filter(|name| !INITIALS.contains(&name[0])).count(), 0);
    }

    #[test]
    fn text_that_does_not_fit_is_not_a_path() {
        let mut text = Text::<8>::new();
        text.push(b"1234");
        assert!(text.as_c_str().is_some());
        text.push(b"5678");
        assert_eq!((text.as_c_str(), text.as_bytes()), (None, &b""[..]));
    }

    #[test]
    fn identity_of_this_process_is_found() {
        crate::gate::detect_inherited_filter();
        assert!(exe(&mut [0; 1024]).starts_with(b"/"));
        let (mut first, mut now) = ([0; MAX_LINE], [0; MAX_LINE]);
        assert!(!cmdline(&mut now, true).is_empty());
        assert_eq!(cmdline(&mut first, false), cmdline(&mut now, true));
        assert_eq!(cwd(&mut [0; 1024]), std::env::current_dir().unwrap().as_os_str().as_encoded_bytes());
        assert_ne!(comm()[0], 0);
        assert_ne!(pid_namespace(), 0);
    }
}

//! Who this process is, and where its node's MIOT directory is.
//!
//! The environment is read once, by a constructor that runs before `main`, while there is one thread:
//! later reads would race with `setenv`. Nothing here allocates, and little looks into `/proc`: a process's
//! first look there makes the kernel build the folder, which is most of what a short program pays.

use crate::file::File;
use crate::gate::{self, Calls};
use miot_proto::control::{DEFAULT_DIR, DIR_ENV};
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// Bytes of a directory name that is accepted from the environment.
const MAX_DIR: usize = 256;
/// Bytes of a job's id, and of a step's name, that are recorded.
const MAX_JOB: usize = 64;
const MAX_STEP: usize = 128;
/// Bytes of a job as [`miot_proto::job`] has it: id, system and step.
const MAX_JOB_LINE: usize = MAX_JOB + MAX_STEP + 16;
/// Bytes of a command line that are recorded.
const MAX_LINE: usize = 2048;

/// Where batch systems leave the job id, in the order of preference, and which one that is.
const JOB_ENV: [(&[u8], &[u8]); 7] = [
    (b"MIOT_JOB", b"miot"),
    (b"SLURM_JOB_ID", b"slurm"),
    (b"PBS_JOBID", b"pbs"),
    (b"FLUX_JOB_ID", b"flux"),
    (b"LSB_JOBID", b"lsf"),
    (b"COBALT_JOBID", b"cobalt"),
    (b"JOB_ID", b"sge"),
];
/// Where they, and launchers of parallel programs, leave the name of one run within the job.
const STEP_ENV: [&[u8]; 3] = [SLURM_STEP, b"PALS_APID", b"PMIX_NAMESPACE"];
/// Where launchers of parallel programs leave the rank: Slurm's and Flux's own last, for they also start the daemons of
/// other launchers, whose children inherit it.
const RANK_ENV: [&[u8]; 8] = [
    b"MIOT_RANK",
    b"PMIX_RANK",
    b"OMPI_COMM_WORLD_RANK",
    b"PMI_RANK",
    b"MV2_COMM_WORLD_RANK",
    b"PALS_RANKID",
    SLURM_RANK,
    b"FLUX_TASK_RANK",
];
/// A batch script has it too, though it is no rank: it says 0 there. Only a step has this:
const SLURM_RANK: &[u8] = b"SLURM_PROCID";
const SLURM_STEP: &[u8] = b"SLURM_STEP_ID";

/// Says that inherited filters of seccomp are no reason not to record.
const SECCOMP_ENV: &[u8] = b"MIOT_SECCOMP";

/// First letters of the variables that are looked for.
const INITIALS: &[u8] = b"CFJLMOPS";

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
    /// Id, system and step.
    job: Text<MAX_JOB_LINE>,
    /// Rank + 1.
    rank: u64,
    /// The command line at the start, arguments ended by NUL; empty if it is not known.
    line: Text<MAX_LINE>,
    /// Somebody vouches for filters that the process inherits.
    under_filters: bool,
    /// This process is there to find out whether they allow our calls.
    tries: bool,
}

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// glibc calls the functions of `.init_array` with the arguments of `main`. What they run lies together in one section:
/// a program that starts touches few pages.
#[unsafe(link_section = ".text.startup")]
extern "C" fn capture(count: c_int, arguments: *const *const c_char, env: *const *const c_char) {
    // SAFETY: the loader passes arguments and environment of the process; nothing runs beside a constructor.
    let environment = ENVIRONMENT.get_or_init(|| unsafe {
        let line = if env.is_null() { Text::new() } else { read_line(count, arguments) };
        Environment { line, ..read_environment(env) }
    });
    if environment.tries {
        gate::try_all();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = capture;

/// The command line as the kernel would tell it.
///
/// # Safety
/// `arguments` points to `count` C strings.
#[unsafe(link_section = ".text.startup")]
unsafe fn read_line(count: c_int, arguments: *const *const c_char) -> Text<MAX_LINE> {
    let mut line = Text::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by the contract above.
        let argument = unsafe { CStr::from_ptr(*arguments.add(at)) }.to_bytes_with_nul();
        let room = MAX_LINE - 1 - line.len;
        line.push(&argument[..argument.len().min(room)]);
    }
    line
}

/// # Safety
/// `env` is null, or a null-terminated array of C strings that nobody changes meanwhile.
#[unsafe(link_section = ".text.startup")]
unsafe fn read_environment(env: *const *const c_char) -> Environment {
    let mut found = Environment {
        dir: Text::new(),
        job: Text::new(),
        rank: 0,
        line: Text::new(),
        under_filters: false,
        tries: false,
    };
    // Values by preference; those that are never used cost a look.
    let (mut jobs, mut steps) = ([None; JOB_ENV.len()], [None; STEP_ENV.len()]);
    let mut ranks = [None; RANK_ENV.len()];
    let mut at = env;
    // SAFETY: by the contract above, each entry up to the null one is a C string.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: not past the null entry, which ended the loop.
        at = unsafe { at.add(1) };
        // Every program that starts pays for this loop.
        // SAFETY: as above.
        if !INITIALS.contains(&unsafe { **entry }.cast_unsigned()) {
            continue;
        }
        // SAFETY: as above.
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
            found.under_filters = value == b"record";
            found.tries = value == b"try";
        } else if let Some(i) = JOB_ENV.iter().position(|(n, _)| *n == name) {
            jobs[i] = Some(value);
        } else if let Some(i) = STEP_ENV.iter().position(|n| *n == name) {
            steps[i] = Some(value);
        } else if let Some(i) = RANK_ENV.iter().position(|n| *n == name) {
            ranks[i] = number(value);
        }
    }
    let in_step = steps[0].is_some();
    let ranks = ranks.iter().zip(RANK_ENV).filter(|(_, name)| in_step || *name != SLURM_RANK);
    found.rank = ranks.filter_map(|(rank, _)| *rank).next().map_or(0, |rank| rank + 1);
    let job = jobs.iter().zip(JOB_ENV).find_map(|(job, (_, system))| Some((job.as_ref()?, system)));
    let (id, system): (&[u8], &[u8]) = job.map_or((b"", b""), |(id, system)| (id, system));
    let step = steps.iter().flatten().next().copied().unwrap_or_default();
    if !id.is_empty() || !step.is_empty() {
        found.job.push(&id[..id.len().min(MAX_JOB)]);
        found.job.push(b"\0");
        found.job.push(system);
    }
    if !step.is_empty() {
        found.job.push(b"\0");
        found.job.push(&step[..step.len().min(MAX_STEP)]);
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

/// The MIOT directory of the node, as `$MIOT_DIR` named it at the start.
#[must_use]
pub fn directory() -> &'static [u8] {
    environment().dir.as_bytes()
}

/// The MIOT directory, a slash, and `name`.
pub(crate) fn path_in_dir(name: &[u8]) -> Text<{ MAX_DIR + 64 }> {
    let mut path = Text::new();
    path.push(directory());
    path.push(b"/");
    path.push(name);
    path
}

/// Id of the job, its system and its step, as [`miot_proto::job`] has them; empty if there are none.
pub(crate) fn job() -> &'static [u8] {
    environment().job.as_bytes()
}

/// Id of the job, empty if there is none.
pub(crate) fn job_id() -> &'static [u8] {
    miot_proto::job::Job::from_bytes(job()).id
}

/// True if the environment says that a filter of seccomp that the process has inherited allows what recording takes.
pub(crate) fn records_under_filters() -> bool {
    environment().under_filters
}

/// MPI rank + 1, 0 if none.
pub(crate) fn rank() -> u64 {
    environment().rank
}

/// /proc/self is empty once the main thread has ended, and /proc/thread-self costs the kernel one folder more.
fn own<'a>(of_process: &'a CStr, of_thread: &'a CStr) -> &'a CStr {
    let main = asked(libc::SYS_gettid) == asked(libc::SYS_getpid);
    if main { of_process } else { of_thread }
}

/// The executable's path.
pub(crate) fn exe(buffer: &mut [u8; 1024]) -> &[u8] {
    link(own(c"/proc/self/exe", c"/proc/thread-self/exe"), buffer)
}

/// The command line, arguments separated by NUL; cut to the buffer. `forked`: the process may have another than
/// at the start, many programs say there what their children are for.
pub(crate) fn cmdline(buffer: &mut [u8; MAX_LINE], forked: bool) -> &[u8] {
    let first = environment().line.as_bytes();
    if !forked && !first.is_empty() {
        return first.strip_suffix(b"\0").unwrap_or(first);
    }
    let file = File::open(c"/proc/thread-self/cmdline", OFlags::RDONLY, Mode::empty()).ok();
    let read = file.as_ref().and_then(File::fd).and_then(|fd| rustix::io::read(fd, &mut buffer[..]).ok());
    let line = &buffer[..read.unwrap_or(0)];
    line.strip_suffix(b"\0").unwrap_or(line)
}

/// The working directory.
pub(crate) fn cwd(buffer: &mut [u8; 1024]) -> &[u8] {
    // SAFETY: the kernel writes at most the buffer's length. `errno` is put back: the application's call has not
    // been made yet.
    let length = unsafe {
        let before = *libc::__errno_location();
        let length = libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len());
        *libc::__errno_location() = before;
        length
    };
    match usize::try_from(length) {
        Ok(length @ 1..) if buffer[0] == b'/' => &buffer[..length - 1],
        // It is not in the tree any more: the link says where it was.
        _ => link(c"/proc/thread-self/cwd", buffer),
    }
}

fn link<'a>(path: &CStr, buffer: &'a mut [u8; 1024]) -> &'a [u8] {
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut buffer[..]).unwrap_or(0);
    &buffer[..length]
}

/// Inode of the process id namespace, which tells it from others; 0 if it cannot be seen.
pub(crate) fn pid_namespace() -> u64 {
    let mut buffer = [0; 1024];
    let digits =
        link(own(c"/proc/self/ns/pid", c"/proc/thread-self/ns/pid"), &mut buffer).strip_prefix(b"pid:[");
    let digits =
        digits.and_then(|rest| rest.strip_suffix(b"]")).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The answer of a call without arguments, which cannot fail but where a filter makes it.
pub(crate) fn asked(call: libc::c_long) -> Option<u32> {
    // SAFETY: the caller passes a call without arguments. `errno` is put back.
    unsafe {
        let before = *libc::__errno_location();
        let answer = libc::syscall(call);
        *libc::__errno_location() = before;
        u32::try_from(answer).ok()
    }
}

/// The number of the calling thread. Where the call is denied, the one that libc knows: `pthread_getcpuclockid` puts it into
/// what it returns, and asks nobody.
pub(crate) fn tid() -> u64 {
    if let Some(_pass) = gate::pass(Calls::TID) {
        return u64::from(asked(libc::SYS_gettid).unwrap_or(0));
    }
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the calling thread, and an out-pointer of the right type.
    let failed = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    if failed == 0 { u64::from(!(clock >> 3) as u32) } else { 0 }
}

/// The name of the calling thread; zeros where the call is denied.
pub(crate) fn comm() -> [u64; 2] {
    let Some(_pass) = gate::pass(Calls::NAME) else { return [0; 2] };
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes to the buffer. It cannot fail, so that `errno` stays.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    let (low, high) = name.split_at(8);
    [low, high].map(|half| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_gives_directory_job_and_rank_by_preference() {
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

    /// As the documentation of each says what it sets.
    #[test]
    fn batch_systems_and_launchers_are_known_by_their_variables() {
        let cases: [(&[&CStr], &[u8], u64); 10] = [
            (&[c"SLURM_JOB_ID=7", c"SLURM_STEP_ID=2", c"SLURM_PROCID=5"], b"7\0slurm\x002", 6),
            // A batch script is no rank of anything.
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
        ];
        for (lines, job, rank) in cases {
            let found = read(lines);
            assert_eq!((found.job.as_bytes(), found.rank), (job, rank), "{lines:?}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        let long = |name: &str| std::ffi::CString::new(format!("{name}={}", "x".repeat(5000))).unwrap();
        let (job, step) = (long("FLUX_JOB_ID"), long("PMIX_NAMESPACE"));
        let found = read(&[&job, &step]);
        let fields: Vec<usize> = found.job.as_bytes().split(|b| *b == 0).map(<[u8]>::len).collect();
        assert_eq!(fields, [MAX_JOB, 4, MAX_STEP]);
    }

    fn read(lines: &[&CStr]) -> Environment {
        let mut env: Vec<_> = lines.iter().map(|line| line.as_ptr()).collect();
        env.push(std::ptr::null());
        // SAFETY: a null-terminated array of C strings.
        unsafe { read_environment(env.as_ptr()) }
    }

    #[test]
    fn no_variable_is_passed_over() {
        let jobs = JOB_ENV.iter().map(|(name, _)| *name);
        let names = jobs.chain(STEP_ENV).chain(RANK_ENV).chain([DIR_ENV.as_bytes(), SECCOMP_ENV]);
        assert_eq!(names.filter(|name| !INITIALS.contains(&name[0])).count(), 0);
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
        crate::gate::ask();
        assert!(exe(&mut [0; 1024]).starts_with(b"/"));
        let (mut first, mut now) = ([0; MAX_LINE], [0; MAX_LINE]);
        assert!(!cmdline(&mut now, true).is_empty());
        assert_eq!(cmdline(&mut first, false), cmdline(&mut now, true));
        assert_eq!(cwd(&mut [0; 1024]), std::env::current_dir().unwrap().as_os_str().as_encoded_bytes());
        assert_ne!(comm()[0], 0);
        assert_ne!(pid_namespace(), 0);
    }
}

//! Differences by design between a trace (calls of the program) and strace (calls to the kernel).
//! Each rule explains one request that only one of them recorded. `docs/hooks/posix.md` gives the
//! reasons.

use crate::fact::Fact;
use crate::strace::Seen;

/// Reason why a difference is not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// `opendir` and `fdopendir` check with `fstat` and `fcntl`.
    OpendirChecks,
    /// One `getdents64` serves many `readdir`.
    Getdents,
    /// The C library reads its own files: locales, message catalogues, time zones, user names.
    LibraryFiles,
    /// `shm_open`, `sem_open` and similar functions open and remove files in `/dev/shm` inside the
    /// C library.
    SharedMemory,
    /// `posix_spawn` duplicates and closes descriptors inside the C library.
    SpawnActions,
    /// `realpath` reads links inside the C library.
    Realpath,
    /// Reads and writes of streams, compared by totals per file.
    StreamTotals,
    /// `getc_unlocked` and `putc_unlocked` access the stream's buffer without a call.
    InlineCharacters,
    /// `munmap` of anonymous memory; `malloc` does it too.
    AnonymousMemory,
    /// Requests for descriptor flags (`F_GETFD`, `F_SETFD`, `F_GETFL`, `F_SETFL`) are not I/O and
    /// are not recorded.
    DescriptorFlags,
    /// `fchmodat` without following links: the C library opens, checks, and changes
    /// `/proc/self/fd/N`.
    Fchmodat,
    /// The dynamic loader searches folders for libraries.
    Loader,
    /// `nftw` and `fts` of the C library walk a tree with internal calls.
    TreeWalk,
}

/// Files that only the C library itself reads.
const LIBRARY_FILES: &[&str] = &[
    "/usr/lib/locale",
    "/usr/share/locale",
    "/usr/lib/x86_64-linux-gnu/gconv",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
];

fn below(path: &[u8], directory: &str) -> bool {
    path.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns the rule that explains why the trace has no event for this call.
#[must_use]
pub fn strace_alone(seen: &[Seen], at: usize) -> Option<Rule> {
    let Seen { fact, borrowed, .. } = &seen[at];
    let path = fact.path.as_deref().unwrap_or_default();
    let op = fact.op.as_ref();
    if op == "getdents" {
        return Some(Rule::Getdents);
    }
    // To read /etc/nsswitch.conf, the C library also checks whether the root has changed.
    if LIBRARY_FILES.iter().any(|file| below(path, file)) || (op == "stat" && path == b"/") {
        return Some(Rule::LibraryFiles);
    }
    if below(path, "/dev/shm")
        && matches!(op, "openat" | "unlink" | "link" | "fstat" | "stat" | "lstat" | "access")
    {
        return Some(Rule::SharedMemory);
    }
    if *borrowed && matches!(op, "close" | "dup2" | "openat" | "fcntl") {
        return Some(Rule::SpawnActions);
    }
    if op == "readlink" && fact.length == Some(1023) {
        return Some(Rule::Realpath);
    }
    if op == "munmap" || op == "msync" {
        return Some(Rule::AnonymousMemory);
    }
    if op == "stat" && (below(path, "/lib") || below(path, "/usr/lib")) {
        return Some(Rule::Loader);
    }
    let walks = |s: &Seen| s.fact.op == "fchdir" && s.fact.path == fact.path;
    if matches!(op, "openat" | "fchdir" | "close") && seen.iter().any(walks) {
        return Some(Rule::TreeWalk);
    }
    let flags = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    if op == "fcntl" && flags.iter().any(|command| fact.arg == Some(i64::from(*command))) {
        return Some(Rule::DescriptorFlags);
    }
    let of_link =
        |s: &Seen| s.fact.op == "openat" && s.fact.arg.is_some_and(|a| a & i64::from(libc::O_PATH) != 0);
    if of_link(&seen[at])
        || (matches!(op, "fstat" | "close") && last_open(&seen[..at], path).is_some_and(of_link))
    {
        return Some(Rule::Fchmodat);
    }
    // A directory is read by opendir, or by fdopendir of a descriptor that the program opened.
    let reads = |s: &Seen| s.fact.op == "getdents" && s.fact.path == fact.path;
    if op == "fstat" && (opened_as_directory(&seen[..at], path) || seen.iter().any(reads)) {
        return Some(Rule::OpendirChecks);
    }
    None
}

fn last_open<'a>(before: &'a [Seen], path: &[u8]) -> Option<&'a Seen> {
    before.iter().rev().find(|s| s.fact.op == "openat" && s.fact.path.as_deref() == Some(path))
}

fn opened_as_directory(before: &[Seen], path: &[u8]) -> bool {
    last_open(before, path)
        .and_then(|s| s.fact.arg)
        .is_some_and(|flags| flags & i64::from(libc::O_DIRECTORY) != 0)
}

/// Returns the rule that explains why strace has no call for this event.
#[must_use]
pub fn trace_alone(fact: &Fact) -> Option<Rule> {
    match fact.op.as_ref() {
        // Without a file the mapping is anonymous, and the model of strace's output leaves it out.
        "munmap" | "msync" => Some(Rule::AnonymousMemory),
        // The C library returns this error without a system call.
        "chmod" if fact.result == -i64::from(libc::EOPNOTSUPP) => Some(Rule::Fchmodat),
        "mmap" if fact.path.is_none() => Some(Rule::AnonymousMemory),
        _ => None,
    }
}

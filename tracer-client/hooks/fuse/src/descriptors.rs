//! Descriptor budget of the process, and a count of the descriptors that stay open.

#![expect(clippy::disallowed_types, reason = "number of descriptors in use")]

use crate::options::ThreadCount;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, Rlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Descriptors that one thread needs for a request: two directories, a file that loses its name, a
/// new file, and its copies.
const PER_THREAD: usize = 6;
/// Descriptors for other purposes: the tracer's segment, mounts below the source.
const RESERVED: usize = 8;
/// Minimum number of descriptors for files. With fewer, most requests would reopen a file.
const MIN_FOR_FILES: usize = 8;
/// Limit on the descriptors of known files if closed files can be reopened by handle. Each of them
/// pins an inode of the source in the kernel's memory.
const MAX_PREFERRED: usize = 1 << 16;

/// The limit on descriptors is too low.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "limit of {limit} descriptors is too low for {threads} threads, which need {needed}: \
     raise the limit (ulimit -n) or lower --threads"
)]
pub struct TooFewDescriptors {
    /// Limit of this process.
    pub limit: usize,
    /// Threads that serve requests.
    pub threads: usize,
    /// Descriptors that the process needs.
    pub needed: usize,
}

/// Shares of the process's descriptors.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorBudget {
    /// Maximum number of descriptors of open and known files.
    pub(crate) max_open: usize,
    /// Threads that serve requests.
    pub threads: usize,
}

impl DescriptorBudget {
    /// Raises the limit of this process as far as possible and divides it.
    ///
    /// # Errors
    /// If the limit is too low.
    pub fn of_this_process(threads: ThreadCount) -> Result<DescriptorBudget, TooFewDescriptors> {
        raise_limit();
        let limit = rustix::process::getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        DescriptorBudget::divide(limit, used, threads)
    }

    fn divide(
        limit: usize,
        used: usize,
        threads: ThreadCount,
    ) -> Result<DescriptorBudget, TooFewDescriptors> {
        let left = limit.saturating_sub(used + RESERVED);
        let threads = match threads {
            ThreadCount::Fixed(threads) => threads,
            ThreadCount::UpTo(threads) => {
                threads.min((left.saturating_sub(MIN_FOR_FILES) / PER_THREAD).max(1))
            }
        };
        let max_open = left.saturating_sub(threads * PER_THREAD);
        if max_open < MIN_FOR_FILES {
            let needed = used + RESERVED + MIN_FOR_FILES + threads * PER_THREAD;
            return Err(TooFewDescriptors { limit, threads, needed });
        }
        Ok(DescriptorBudget { max_open, threads })
    }

    /// Returns the number of descriptors above which those of known files are closed.
    /// `reopens_by_handle`: files can be reopened by handle, without their path.
    pub(crate) fn preferred_open(&self, reopens_by_handle: bool) -> usize {
        if reopens_by_handle { self.max_open.min(MAX_PREFERRED) } else { self.max_open }
    }
}

/// Raises the soft limit to the hard limit, and root's hard limit to the kernel's.
fn raise_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let kernel_limit: Option<u64> =
        std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|n| n.trim().parse().ok());
    let is_higher = |most: &u64| limit.maximum.is_none_or(|maximum| maximum < *most);
    let raised = kernel_limit.filter(is_higher).is_some_and(|_| {
        let both = Rlimit { current: kernel_limit, maximum: kernel_limit };
        rustix::process::setrlimit(Resource::Nofile, both).is_ok()
    });
    if !raised {
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Counts descriptors that stay open longer than a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct DescriptorCount(Arc<AtomicUsize>);

impl DescriptorCount {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Counts a descriptor until it is dropped.
    pub(crate) fn counted(&self, fd: OwnedFd) -> Descriptor {
        self.0.fetch_add(1, Relaxed);
        Descriptor { fd, count: self.clone() }
    }
}

/// A descriptor that is counted while it is open.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: OwnedFd,
    count: DescriptorCount,
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_default_threads_are_reduced() {
        let few = DescriptorBudget::divide(64, 10, ThreadCount::UpTo(16)).unwrap();
        assert!(few.threads < 16 && few.max_open >= MIN_FOR_FILES, "{few:?}");
        let many = DescriptorBudget::divide(20_000, 10, ThreadCount::Fixed(16)).unwrap();
        assert_eq!((many.threads, many.max_open), (16, 20_000 - 10 - RESERVED - 16 * PER_THREAD));
        let error = DescriptorBudget::divide(64, 10, ThreadCount::Fixed(16)).unwrap_err().to_string();
        assert!(error.contains("ulimit -n") && error.contains("--threads"), "{error}");
    }

    #[test]
    fn count_follows_open_descriptors() {
        let count = DescriptorCount::default();
        let open = || count.counted(std::fs::File::open("/dev/null").unwrap().into());
        let (a, b) = (open(), open());
        assert_eq!(count.get(), 2);
        drop(a);
        assert_eq!(count.get(), 1);
        drop(b);
        assert_eq!(count.get(), 0);
    }
}

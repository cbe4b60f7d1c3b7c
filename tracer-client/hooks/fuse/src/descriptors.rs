//! How many descriptors this process may have, what they are kept for, and a count of those that stay open.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, Rlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Descriptors that one thread needs for the request it serves: two directories, a file that loses its name there, what is
/// made, and its copies.
const PER_THREAD: usize = 6;
/// For what is opened beside the requests: the tracer's segment, mounts below the source.
const ASIDE: usize = 8;
/// With fewer for files the file system would do little but reopen.
const LEAST: usize = 8;
/// Files that are only known keep no more than this together where they can be found again by a handle: each holds an inode
/// of the source in the kernel's memory.
const COMFORTABLE: usize = 1 << 16;

/// Shares of the descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// For files that are open or known, in all.
    pub(crate) most: usize,
    /// Threads that serve.
    pub threads: usize,
}

impl Budget {
    /// Raises the limit of this process as far as it goes, and shares it out. `wanted` is the number of threads,
    /// `fixed` if somebody chose it.
    ///
    /// # Errors
    /// If the limit is too low, with what to do.
    pub fn of_this_process(wanted: usize, fixed: bool) -> Result<Budget, String> {
        raise_limit();
        let limit = rustix::process::getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Budget::shared(limit, used, wanted, fixed)
    }

    fn shared(limit: usize, used: usize, wanted: usize, fixed: bool) -> Result<Budget, String> {
        let left = limit.saturating_sub(used + ASIDE);
        let fitting = left.saturating_sub(LEAST) / PER_THREAD;
        let threads = if fixed { wanted } else { wanted.min(fitting.max(1)) };
        let most = left.saturating_sub(threads * PER_THREAD);
        if most < LEAST {
            let needed = used + ASIDE + LEAST + threads * PER_THREAD;
            return Err(format!(
                "{limit} descriptors are too few for {threads} threads, which need {needed}: raise the limit (ulimit -n) or lower --threads"
            ));
        }
        Ok(Budget { most, threads })
    }

    pub(crate) fn comfortable(&self, with_handles: bool) -> usize {
        if with_handles { self.most.min(COMFORTABLE) } else { self.most }
    }
}

/// The soft limit to the hard one, and root's hard limit to the kernel's.
fn raise_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most: Option<u64> =
        std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|n| n.trim().parse().ok());
    let raised = most.filter(|most| limit.maximum.is_none_or(|maximum| maximum < *most)).is_some_and(|_| {
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok()
    });
    if !raised {
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Descriptors that stay open longer than a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(crate) fn counted(&self, fd: OwnedFd) -> Descriptor {
        self.0.fetch_add(1, Relaxed);
        Descriptor { fd, count: self.clone() }
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: OwnedFd,
    count: Count,
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
    fn threads_give_way_to_files_unless_they_were_chosen() {
        let few = Budget::shared(64, 10, 16, false).unwrap();
        assert!(few.threads < 16 && few.most >= LEAST, "{few:?}");
        let many = Budget::shared(20_000, 10, 16, true).unwrap();
        assert_eq!((many.threads, many.most), (16, 20_000 - 10 - ASIDE - 16 * PER_THREAD));
        let refused = Budget::shared(64, 10, 16, true).unwrap_err();
        assert!(refused.contains("ulimit -n") && refused.contains("--threads"), "{refused}");
    }

    #[test]
    fn a_count_follows_its_descriptors() {
        let count = Count::default();
        let open = || count.counted(std::fs::File::open("/dev/null").unwrap().into());
        let (a, b) = (open(), open());
        assert_eq!(count.get(), 2);
        drop(a);
        assert_eq!(count.get(), 1);
        drop(b);
        assert_eq!(count.get(), 0);
    }
}

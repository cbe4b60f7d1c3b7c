//! Completed steps of each thread, in memory that all processes of a replay share.
//!
//! | words | content |
//! |---|---|
//! | 0 | 1 from the start on |
//! | 1 | number of processes that are ready |
//! | 2, 3 | time of the start: nanoseconds of `CLOCK_MONOTONIC`, low half first |
//! | 4 + 2·slot | steps that the thread of this slot has completed |
//! | 5 + 2·slot | number of threads that wait for that thread |
//!
//! Only the thread itself writes its first word. A waiter increments the second word and then reads
//! the first again before it sleeps; the writer reads the second word after it has written the
//! first. So one of them sees the other, and no wake-up is lost. Only the waiter decrements the
//! second word.

#![expect(clippy::disallowed_types, reason = "progress that processes of a replay share in memory")]

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Words before those of the threads.
const HEAD: usize = 4;
const PER_THREAD: usize = 2;
/// Nanoseconds between the start and the time of the first step, in which threads wake up.
const START_DELAY_NS: i64 = 10_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
pub(super) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[derive(Debug)]
pub(super) struct ProgressBoard {
    words: &'static [AtomicU32],
}

impl ProgressBoard {
    /// Creates the memory for so many threads. Other processes [`open`](Self::open) its descriptor.
    pub(super) fn create(threads: usize) -> Result<(ProgressBoard, OwnedFd), Errno> {
        let memory = rustix::fs::memfd_create("miot-replay", MemfdFlags::empty())?;
        let words = HEAD + threads * PER_THREAD;
        rustix::fs::ftruncate(&memory, (words * size_of::<AtomicU32>()) as u64)?;
        Ok((ProgressBoard::open(&memory)?, memory))
    }

    /// Maps the memory that another process has created.
    pub(super) fn open(memory: impl AsFd) -> Result<ProgressBoard, Errno> {
        let bytes = usize::try_from(rustix::fs::fstat(&memory)?.st_size).map_err(|_| Errno::INVAL)?;
        if bytes < HEAD * size_of::<AtomicU32>() {
            return Err(Errno::INVAL);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice touches no other memory;
        // - the mapping has as many bytes as the file, which no process shortens;
        // - it is never unmapped, so the words live as long as the process;
        // - all bits are valid words, and all processes access them atomically only.
        let words = unsafe {
            let start = rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memory, 0)?;
            std::slice::from_raw_parts(start.cast::<AtomicU32>(), bytes / size_of::<AtomicU32>())
        };
        Ok(ProgressBoard { words })
    }

    fn completed(&self, thread: u32) -> Option<&AtomicU32> {
        self.words.get(HEAD + thread as usize * PER_THREAD)
    }

    fn waiters(&self, thread: u32) -> Option<&AtomicU32> {
        self.words.get(HEAD + thread as usize * PER_THREAD + 1)
    }

    /// Reports that this process is ready to start.
    pub(super) fn report_ready(&self) {
        self.words[1].fetch_add(1, SeqCst);
    }

    /// Number of processes that are ready.
    pub(super) fn ready_processes(&self) -> u32 {
        self.words[1].load(SeqCst)
    }

    /// Starts the replay: the time of the first step is [`START_DELAY_NS`] from now.
    pub(super) fn start(&self) {
        let now = now() + START_DELAY_NS;
        self.words[2].store(now as u32, SeqCst);
        self.words[3].store((now >> 32) as u32, SeqCst);
        self.words[0].store(1, SeqCst);
        let _ = futex::wake(&self.words[0], futex::Flags::empty(), i32::MAX as u32);
    }

    /// Waits for the start and returns its time, see [`now`].
    pub(super) fn wait_for_start(&self) -> i64 {
        while self.words[0].load(SeqCst) == 0 {
            let _ = futex::wait(&self.words[0], futex::Flags::empty(), 0, None);
        }
        i64::from(self.words[2].load(SeqCst)) | i64::from(self.words[3].load(SeqCst)) << 32
    }

    /// Publishes that a thread has completed so many steps.
    pub(super) fn publish(&self, thread: u32, steps: u32) {
        if let (Some(done), Some(waiters)) = (self.completed(thread), self.waiters(thread)) {
            done.store(steps, SeqCst);
            if waiters.load(SeqCst) != 0 {
                let _ = futex::wake(done, futex::Flags::empty(), i32::MAX as u32);
            }
        }
    }

    /// Waits until a thread has completed so many steps.
    pub(super) fn wait(&self, thread: u32, steps: u32) {
        let (Some(done), Some(waiters)) = (self.completed(thread), self.waiters(thread)) else { return };
        if done.load(SeqCst) >= steps {
            return;
        }
        waiters.fetch_add(1, SeqCst);
        loop {
            let found = done.load(SeqCst);
            if found >= steps {
                break;
            }
            let _ = futex::wait(done, futex::Flags::empty(), found, None);
        }
        waiters.fetch_sub(1, SeqCst);
    }

    /// Number of steps that all threads have completed.
    pub(super) fn total(&self) -> u64 {
        self.words[HEAD..].iter().step_by(PER_THREAD).map(|done| u64::from(done.load(SeqCst))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::ProgressBoard;

    #[test]
    fn two_threads_in_turn_lose_no_wake_up() {
        let (board, memory) = ProgressBoard::create(2).unwrap();
        let other = ProgressBoard::open(&memory).unwrap();
        let rounds = 20_000;
        let turns = |board: &ProgressBoard, me: u32| {
            for round in 1..=rounds {
                board.wait(1 - me, if me == 0 { round - 1 } else { round });
                board.publish(me, round);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| turns(&board, 0));
            scope.spawn(|| turns(&other, 1));
        });
        assert_eq!(board.total(), 2 * u64::from(rounds));
    }

    /// The thread publishes faster than the waiters read: none of them may miss the last wake-up.
    #[test]
    fn several_waiters_lose_no_wake_up() {
        const STEPS: u32 = 300;
        for _ in 0..3000 {
            let (board, _memory) = ProgressBoard::create(1).unwrap();
            std::thread::scope(|scope| {
                for stride in [2, 3] {
                    let board = &board;
                    scope.spawn(move || {
                        (stride..=STEPS).step_by(stride as usize).for_each(|at| board.wait(0, at))
                    });
                }
                (1..=STEPS).for_each(|steps| board.publish(0, steps));
            });
        }
    }
}

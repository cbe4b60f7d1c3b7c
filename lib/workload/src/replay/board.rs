//! How far each thread is: memory that all processes of a replay share.
//!
//! Word 0 is 1 from the start on, word 1 counts processes that are ready, words 2 and 3 are the time of the start. Then two words
//! for each thread: steps that it has done, and how many wait for them. A thread writes its first word alone; a waiter counts
//! itself in the second and looks at the first again before it sleeps, and the writer looks at the second after it has
//! written the first, so that one of them sees the other. Only who waits takes itself off, so that nobody is forgotten.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Words before those of threads.
const HEAD: usize = 4;
const PER_THREAD: usize = 2;
/// Nanoseconds that threads have to wake up before the first step is due.
const SOON: i64 = 10_000_000;

/// Nanoseconds on the clock that all processes of a machine share.
pub(super) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[derive(Debug)]
pub(super) struct Board {
    words: &'static [AtomicU32],
}

impl Board {
    /// For so many threads; the descriptor is what other processes find it by.
    pub(super) fn make(threads: usize) -> Result<(Board, OwnedFd), Errno> {
        let memory = rustix::fs::memfd_create("miot-replay", MemfdFlags::empty())?;
        let words = HEAD + threads * PER_THREAD;
        rustix::fs::ftruncate(&memory, (words * size_of::<AtomicU32>()) as u64)?;
        Ok((Board::of(&memory)?, memory))
    }

    /// That of another process.
    pub(super) fn of(memory: impl AsFd) -> Result<Board, Errno> {
        let bytes = usize::try_from(rustix::fs::fstat(&memory)?.st_size).map_err(|_| Errno::INVAL)?;
        if bytes < HEAD * size_of::<AtomicU32>() {
            return Err(Errno::INVAL);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice, of as many bytes as the file has, which nobody shortens;
        // - it is never unmapped, all bits are valid words, and they are only used atomically.
        let words = unsafe {
            let start = rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memory, 0)?;
            std::slice::from_raw_parts(start.cast::<AtomicU32>(), bytes / size_of::<AtomicU32>())
        };
        Ok(Board { words })
    }

    fn done(&self, thread: u32) -> Option<&AtomicU32> {
        self.words.get(HEAD + thread as usize * PER_THREAD)
    }

    fn waited(&self, thread: u32) -> Option<&AtomicU32> {
        self.words.get(HEAD + thread as usize * PER_THREAD + 1)
    }

    pub(super) fn is_ready(&self) {
        self.words[1].fetch_add(1, SeqCst);
    }

    pub(super) fn ready(&self) -> u32 {
        self.words[1].load(SeqCst)
    }

    /// The first steps are due soon.
    pub(super) fn start(&self) {
        let now = now() + SOON;
        self.words[2].store(now as u32, SeqCst);
        self.words[3].store((now >> 32) as u32, SeqCst);
        self.words[0].store(1, SeqCst);
        let _ = futex::wake(&self.words[0], futex::Flags::empty(), i32::MAX as u32);
    }

    /// Waits for the start and says when it was.
    pub(super) fn started(&self) -> i64 {
        while self.words[0].load(SeqCst) == 0 {
            let _ = futex::wait(&self.words[0], futex::Flags::empty(), 0, None);
        }
        i64::from(self.words[2].load(SeqCst)) | i64::from(self.words[3].load(SeqCst)) << 32
    }

    /// A thread has done so many steps.
    pub(super) fn tell(&self, thread: u32, steps: u32) {
        if let (Some(done), Some(waited)) = (self.done(thread), self.waited(thread)) {
            done.store(steps, SeqCst);
            if waited.load(SeqCst) != 0 {
                let _ = futex::wake(done, futex::Flags::empty(), i32::MAX as u32);
            }
        }
    }

    /// Waits until a thread has done so many steps.
    pub(super) fn wait(&self, thread: u32, steps: u32) {
        let (Some(done), Some(waited)) = (self.done(thread), self.waited(thread)) else { return };
        if done.load(SeqCst) >= steps {
            return;
        }
        waited.fetch_add(1, SeqCst);
        loop {
            let found = done.load(SeqCst);
            if found >= steps {
                break;
            }
            let _ = futex::wait(done, futex::Flags::empty(), found, None);
        }
        waited.fetch_sub(1, SeqCst);
    }

    /// Steps done by all threads.
    pub(super) fn total(&self) -> u64 {
        self.words[HEAD..].iter().step_by(PER_THREAD).map(|done| u64::from(done.load(SeqCst))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Board;

    #[test]
    fn each_waits_for_the_other_and_none_sleeps_for_ever() {
        let (board, memory) = Board::make(2).unwrap();
        let other = Board::of(&memory).unwrap();
        let rounds = 20_000;
        let turns = |board: &Board, me: u32| {
            for round in 1..=rounds {
                board.wait(1 - me, if me == 0 { round - 1 } else { round });
                board.tell(me, round);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| turns(&board, 0));
            scope.spawn(|| turns(&other, 1));
        });
        assert_eq!(board.total(), 2 * u64::from(rounds));
    }

    /// One tells faster than the others look: none of them may miss the last time.
    #[test]
    fn several_wait_for_one_and_none_sleeps_for_ever() {
        const STEPS: u32 = 300;
        for _ in 0..3000 {
            let (board, _memory) = Board::make(1).unwrap();
            std::thread::scope(|scope| {
                for stride in [2, 3] {
                    let board = &board;
                    scope.spawn(move || {
                        (stride..=STEPS).step_by(stride as usize).for_each(|at| board.wait(0, at))
                    });
                }
                (1..=STEPS).for_each(|steps| board.tell(0, steps));
            });
        }
    }
}

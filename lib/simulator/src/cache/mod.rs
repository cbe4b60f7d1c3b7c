//! A cache of blocks: frames in one array, found by a chained hash table, replaced by a policy.
//!
//! A frame that is dirty or part of a transfer is pinned: it cannot be replaced. It keeps its age:
//! a policy that would choose a pinned frame as victim parks it, and the frame returns as the
//! oldest when it is unpinned.

pub(crate) mod frame;
mod ghosts;
mod list;
mod lru;
mod second_chance;
mod two_queues;

pub(crate) use frame::{Frame, NONE, flag};

use super::config::Policy;
use frame::FrameList;
use list::List;
use lru::Lru;
use second_chance::SecondChance;
use two_queues::TwoQueues;

#[derive(Debug)]
enum Replacement {
    Lru(Lru),
    Fifo(SecondChance<false>),
    Clock(SecondChance<true>),
    TwoQ(TwoQueues),
}

#[derive(Debug)]
pub(crate) struct Cache {
    frames: Vec<Frame>,
    /// Frames by hash of file and block.
    heads: Vec<u32>,
    /// Number of frames that have ever been used; those behind are unused.
    fresh: u32,
    pinned: u32,
    replacement: Replacement,
}

impl Cache {
    /// Returns an empty cache. `owners` is the number of lists with a limit of `limit` frames each;
    /// 1 for no limit.
    pub(crate) fn new(frames: u32, policy: Policy, owners: usize, limit: u32) -> Cache {
        let replacement = match policy {
            Policy::Lru => Replacement::Lru(Lru::new(owners, limit)),
            Policy::Fifo => Replacement::Fifo(SecondChance::new()),
            Policy::Clock => Replacement::Clock(SecondChance::new()),
            Policy::TwoQ => Replacement::TwoQ(TwoQueues::new(frames)),
        };
        Cache {
            frames: vec![Frame::FREE; frames as usize],
            // Twice as many buckets as frames, because the victim is often the last of its chain.
            heads: vec![NONE; (2 * frames as usize).next_power_of_two()],
            fresh: 0,
            pinned: 0,
            replacement,
        }
    }

    /// Returns the bucket of a block. Consecutive blocks have consecutive buckets, so that a
    /// request of many blocks accesses memory sequentially.
    #[inline]
    fn bucket(&self, file: u32, block: u64) -> usize {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let group = (block >> 6).wrapping_mul(GOLDEN) ^ u64::from(file).wrapping_mul(GOLDEN.rotate_left(21));
        ((group >> 20) + (block & 63)) as usize & (self.heads.len() - 1)
    }

    #[inline]
    pub(crate) fn find(&self, file: u32, block: u64) -> Option<u32> {
        let mut at = self.heads[self.bucket(file, block)];
        while at != NONE {
            let frame = &self.frames[at as usize];
            if frame.block == block && frame.file == file {
                return Some(at);
            }
            at = frame.chain;
        }
        None
    }

    #[inline]
    pub(crate) fn frame(&self, at: u32) -> &Frame {
        &self.frames[at as usize]
    }

    #[inline]
    pub(crate) fn frame_mut(&mut self, at: u32) -> &mut Frame {
        &mut self.frames[at as usize]
    }

    /// Returns the number of frames that are free or can be replaced.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        self.frames.len() as u32 - self.pinned
    }

    /// Records a use of the block.
    #[inline]
    pub(crate) fn touch(&mut self, at: u32) {
        let frames = &mut self.frames;
        match &mut self.replacement {
            Replacement::Lru(lru) => lru.touch(frames, at),
            Replacement::Fifo(_) => {}
            Replacement::Clock(_) => frames[at as usize].flags |= flag::USED,
            Replacement::TwoQ(queues) => queues.touch(frames, at),
        }
    }

    /// Returns a frame for a block that the cache does not hold; `None` if all frames, or all that
    /// the owner may have, are pinned.
    #[inline]
    pub(crate) fn insert(&mut self, file: u32, block: u64, owner: u16) -> Option<u32> {
        let has_unused = (self.fresh as usize) < self.frames.len();
        let at = match &mut self.replacement {
            Replacement::Lru(lru) if lru.is_full(owner) => self.evict(owner, true)?,
            _ if has_unused => {
                self.fresh += 1;
                self.fresh - 1
            }
            _ => self.evict(owner, false)?,
        };
        let frame = &mut self.frames[at as usize];
        *frame = Frame { block, file, owner, ..Frame::FREE };
        match &mut self.replacement {
            Replacement::Lru(lru) => lru.insert(&mut self.frames, at),
            Replacement::Fifo(queue) => queue.insert(&mut self.frames, at),
            Replacement::Clock(queue) => queue.insert(&mut self.frames, at),
            Replacement::TwoQ(queues) => queues.insert(&mut self.frames, at),
        }
        let bucket = self.bucket(file, block);
        self.frames[at as usize].chain = std::mem::replace(&mut self.heads[bucket], at);
        Some(at)
    }

    #[inline]
    fn evict(&mut self, owner: u16, own: bool) -> Option<u32> {
        if self.pinned as usize == self.frames.len() {
            return None;
        }
        let frames = &mut self.frames;
        let at = match &mut self.replacement {
            Replacement::Lru(lru) => lru.victim(frames, own.then_some(owner)),
            Replacement::Fifo(queue) => queue.victim(frames),
            Replacement::Clock(queue) => queue.victim(frames),
            Replacement::TwoQ(queues) => queues.victim(frames),
        }?;
        let Frame { file, block, chain, .. } = self.frames[at as usize];
        let bucket = self.bucket(file, block);
        if self.heads[bucket] == at {
            self.heads[bucket] = chain;
        } else {
            let mut before = self.heads[bucket];
            while self.frames[before as usize].chain != at {
                before = self.frames[before as usize].chain;
            }
            self.frames[before as usize].chain = chain;
        }
        Some(at)
    }

    #[inline]
    pub(crate) fn set(&mut self, at: u32, flags: u8) {
        let frame = &mut self.frames[at as usize];
        self.pinned += u32::from(!frame.is(flag::PINNED) && flags & flag::PINNED != 0);
        frame.flags |= flags;
    }

    #[inline]
    pub(crate) fn clear(&mut self, at: u32, flags: u8) {
        let frame = &mut self.frames[at as usize];
        let was = frame.is(flag::PINNED);
        frame.flags &= !flags;
        if was && !frame.is(flag::PINNED) {
            self.pinned -= 1;
            if matches!(frame.place, FrameList::ParkedMain | FrameList::ParkedNew) {
                match &mut self.replacement {
                    Replacement::Lru(lru) => lru.unpark(&mut self.frames, at),
                    Replacement::Fifo(queue) => queue.unpark(&mut self.frames, at),
                    Replacement::Clock(queue) => queue.unpark(&mut self.frames, at),
                    Replacement::TwoQ(queues) => queues.unpark(&mut self.frames, at),
                }
            }
        }
    }
}

//! LRU: replaces the least recently used block. With a limit, each process has a separate list.

use super::frame::FrameList;
use super::{Frame, List, NONE, flag};

#[derive(Debug)]
pub(super) struct Lru {
    lists: Vec<List>,
    /// Number of frames of each owner, including parked ones.
    owned: Vec<u32>,
    limit: u32,
    uses: u64,
}

impl Lru {
    pub(super) fn new(owners: usize, limit: u32) -> Lru {
        Lru { lists: vec![List::EMPTY; owners], owned: vec![0; owners], limit, uses: 0 }
    }

    #[inline]
    pub(super) fn is_full(&self, owner: u16) -> bool {
        self.owned[usize::from(owner)] >= self.limit
    }

    #[inline]
    pub(super) fn touch(&mut self, frames: &mut [Frame], at: u32) {
        let owner = usize::from(frames[at as usize].owner);
        match frames[at as usize].place {
            FrameList::Main => self.lists[owner].renew(frames, at),
            _ => {
                frames[at as usize].place = FrameList::Main;
                self.lists[owner].push_head(frames, at);
            }
        }
        self.stamp(frames, at);
    }

    #[inline]
    fn stamp(&mut self, frames: &mut [Frame], at: u32) {
        // Ages are compared only between several lists.
        if self.lists.len() > 1 {
            self.uses += 1;
            frames[at as usize].stamp = self.uses;
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, frames: &mut [Frame], at: u32) {
        let owner = usize::from(frames[at as usize].owner);
        frames[at as usize].place = FrameList::Main;
        self.lists[owner].push_head(frames, at);
        self.owned[owner] += 1;
        self.stamp(frames, at);
    }

    pub(super) fn unpark(&mut self, frames: &mut [Frame], at: u32) {
        let owner = usize::from(frames[at as usize].owner);
        frames[at as usize].place = FrameList::Main;
        self.lists[owner].push_tail(frames, at);
    }

    /// Returns the oldest frame of all lists, or of the list of one owner.
    #[inline]
    pub(super) fn victim(&mut self, frames: &mut [Frame], of: Option<u16>) -> Option<u32> {
        let range = of.map_or(0..self.lists.len(), |of| usize::from(of)..usize::from(of) + 1);
        let mut oldest: Option<(u64, usize)> = None;
        for owner in range {
            let list = &mut self.lists[owner];
            while list.tail != NONE && frames[list.tail as usize].is(flag::PINNED) {
                let tail = list.tail;
                list.remove(frames, tail);
                frames[tail as usize].place = FrameList::ParkedMain;
            }
            if list.tail != NONE {
                let stamp = frames[list.tail as usize].stamp;
                if oldest.is_none_or(|(before, _)| stamp < before) {
                    oldest = Some((stamp, owner));
                }
            }
        }
        let (_, owner) = oldest?;
        let victim = self.lists[owner].tail;
        self.lists[owner].remove(frames, victim);
        self.owned[owner] -= 1;
        Some(victim)
    }
}

//! 2Q, full version (Johnson and Shasha 1994, section 3). A new block passes through a queue. Only
//! a block that is used again soon after it has left that queue enters the LRU list. A scan does
//! not displace the LRU list.

use super::frame::FrameList;
use super::ghosts::Ghosts;
use super::{Frame, List, NONE, flag};

#[derive(Debug)]
pub(super) struct TwoQueues {
    /// `A1in`
    new: List,
    /// `Am`
    main: List,
    /// `A1out`
    left: Ghosts,
    /// `Kin`
    most_new: u32,
}

impl TwoQueues {
    pub(super) fn new(frames: u32) -> TwoQueues {
        TwoQueues {
            new: List::EMPTY,
            main: List::EMPTY,
            left: Ghosts::new((frames / 2).max(1) as usize),
            most_new: (frames / 4).max(1),
        }
    }

    pub(super) fn touch(&mut self, frames: &mut [Frame], at: u32) {
        match frames[at as usize].place {
            FrameList::Main => self.main.renew(frames, at),
            FrameList::ParkedMain => {
                frames[at as usize].place = FrameList::Main;
                self.main.push_head(frames, at);
            }
            _ => {}
        }
    }

    pub(super) fn insert(&mut self, frames: &mut [Frame], at: u32) {
        let Frame { file, block, .. } = frames[at as usize];
        if self.left.has((file, block)) {
            frames[at as usize].place = FrameList::Main;
            self.main.push_head(frames, at);
        } else {
            frames[at as usize].place = FrameList::New;
            self.new.push_head(frames, at);
        }
    }

    pub(super) fn unpark(&mut self, frames: &mut [Frame], at: u32) {
        let frame = &mut frames[at as usize];
        if frame.place == FrameList::ParkedNew {
            frame.place = FrameList::New;
            self.new.push_tail(frames, at);
        } else {
            frame.place = FrameList::Main;
            self.main.push_tail(frames, at);
        }
    }

    pub(super) fn victim(&mut self, frames: &mut [Frame]) -> Option<u32> {
        park(&mut self.new, frames, FrameList::ParkedNew);
        park(&mut self.main, frames, FrameList::ParkedMain);
        let from_new = self.new.len > 0 && (self.new.len > self.most_new || self.main.len == 0);
        let list = if from_new { &mut self.new } else { &mut self.main };
        let victim = list.tail;
        if victim == NONE {
            return None;
        }
        list.remove(frames, victim);
        if from_new {
            let Frame { file, block, .. } = frames[victim as usize];
            self.left.add((file, block));
        }
        Some(victim)
    }
}

fn park(list: &mut List, frames: &mut [Frame], place: FrameList) {
    while list.tail != NONE && frames[list.tail as usize].is(flag::PINNED) {
        let tail = list.tail;
        list.remove(frames, tail);
        frames[tail as usize].place = place;
    }
}

//! Replaces the oldest block: always (FIFO), or only if it was not used since the last inspection
//! (CLOCK).

use super::frame::FrameList;
use super::{Frame, List, NONE, flag};

#[derive(Debug)]
pub(super) struct SecondChance<const CHANCE: bool> {
    list: List,
}

impl<const CHANCE: bool> SecondChance<CHANCE> {
    pub(super) fn new() -> Self {
        Self { list: List::EMPTY }
    }

    pub(super) fn insert(&mut self, frames: &mut [Frame], at: u32) {
        frames[at as usize].place = FrameList::Main;
        self.list.push_head(frames, at);
    }

    pub(super) fn unpark(&mut self, frames: &mut [Frame], at: u32) {
        frames[at as usize].place = FrameList::Main;
        self.list.push_tail(frames, at);
    }

    pub(super) fn victim(&mut self, frames: &mut [Frame]) -> Option<u32> {
        loop {
            let at = self.list.tail;
            if at == NONE {
                return None;
            }
            self.list.remove(frames, at);
            let frame = &mut frames[at as usize];
            if frame.is(flag::PINNED) {
                frame.place = FrameList::ParkedMain;
            } else if CHANCE && frame.is(flag::USED) {
                frame.flags &= !flag::USED;
                self.list.push_head(frames, at);
            } else {
                return Some(at);
            }
        }
    }
}

//! An intrusive doubly linked list of frames.

use super::frame::{Frame, NONE};

/// List of frames with the newest at the head.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    pub(super) tail: u32,
    pub(super) len: u32,
}

impl List {
    pub(super) const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

    #[inline]
    pub(super) fn push_head(&mut self, frames: &mut [Frame], at: u32) {
        let head = self.head;
        let frame = &mut frames[at as usize];
        (frame.newer, frame.older) = (NONE, head);
        match head {
            NONE => self.tail = at,
            _ => frames[head as usize].newer = at,
        }
        self.head = at;
        self.len += 1;
    }

    pub(super) fn push_tail(&mut self, frames: &mut [Frame], at: u32) {
        let tail = self.tail;
        let frame = &mut frames[at as usize];
        (frame.newer, frame.older) = (tail, NONE);
        match tail {
            NONE => self.head = at,
            _ => frames[tail as usize].older = at,
        }
        self.tail = at;
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, frames: &mut [Frame], at: u32) {
        let Frame { newer, older, .. } = frames[at as usize];
        match newer {
            NONE => self.head = older,
            _ => frames[newer as usize].older = older,
        }
        match older {
            NONE => self.tail = newer,
            _ => frames[older as usize].newer = newer,
        }
        self.len -= 1;
    }

    #[inline]
    pub(super) fn renew(&mut self, frames: &mut [Frame], at: u32) {
        if self.head != at {
            self.remove(frames, at);
            self.push_head(frames, at);
        }
    }
}

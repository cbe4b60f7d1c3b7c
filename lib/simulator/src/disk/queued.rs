//! A device with a queue: it serves `channels` accesses at a time, whose positioning overlaps and
//! whose bytes share one bus.

use super::access::{position, transfer};
use super::layout::TransferPart;
use crate::config::{Disk, Order};

/// Part of a transfer that waits or is being served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) transfer: u32,
    pub(super) write: bool,
    pub(super) piece: TransferPart,
    came: u64,
    /// True after the device has finished and while the part uses the link.
    pub(super) on_link: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    head: Option<u64>,
    active: u32,
    /// Time at which the bus is free.
    bus: u64,
    /// Waiting parts in order of arrival.
    waiting: std::collections::VecDeque<u32>,
    /// Time of the last change from idle, or of the last accounting.
    since: u64,
    pub(super) busy: u64,
    /// Time that parts waited before they were served.
    pub(super) waited: u64,
    pub(super) longest: u32,
}

/// Parts by number. Numbers of finished parts are reused.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    all: Vec<Part>,
    free: Vec<u32>,
}

impl Parts {
    #[inline]
    pub(super) fn add(&mut self, transfer: u32, write: bool, piece: TransferPart, now: u64) -> u32 {
        let part = Part { transfer, write, piece, came: now, on_link: false };
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = part;
                at
            }
            None => {
                self.all.push(part);
                self.all.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub(super) fn get(&mut self, at: u32) -> &mut Part {
        &mut self.all[at as usize]
    }

    #[inline]
    pub(super) fn take(&mut self, at: u32) -> Part {
        self.free.push(at);
        self.all[at as usize]
    }
}

impl Device {
    /// Adds a part. Returns its completion time if it is served at once.
    pub(super) fn arrive(&mut self, disk: &Disk, parts: &Parts, part: u32, now: u64) -> Option<u64> {
        if self.active < disk.channels {
            return Some(self.serve(disk, parts, part, now));
        }
        self.waiting.push_back(part);
        self.longest = self.longest.max(self.waiting.len() as u32);
        None
    }

    /// Completes a part. Returns the next part and its completion time.
    pub(super) fn done(&mut self, disk: &Disk, parts: &Parts, now: u64) -> Option<(u32, u64)> {
        self.active -= 1;
        if self.active == 0 {
            self.busy += now - self.since;
        }
        let next = match disk.order {
            Order::Fifo => self.waiting.pop_front(),
            Order::Look => {
                let head = self.head.unwrap_or(0);
                let key = |part: &u32| {
                    let at = parts.all[*part as usize].piece.at;
                    (at < head, at)
                };
                let nearest = self.waiting.iter().enumerate().min_by_key(|(nth, part)| (key(part), *nth));
                nearest.map(|(nth, _)| nth).and_then(|nth| self.waiting.remove(nth))
            }
        }?;
        Some((next, self.serve(disk, parts, next, now)))
    }

    fn serve(&mut self, disk: &Disk, parts: &Parts, part: u32, now: u64) -> u64 {
        let Part { write, piece, came, .. } = parts.all[part as usize];
        if self.active == 0 {
            self.since = now;
        }
        self.active += 1;
        self.waited = self.waited.saturating_add(now - came);
        let ready = now.saturating_add(position(disk, self.head, piece.at, write));
        let done = ready.max(self.bus).saturating_add(transfer(disk, piece.bytes, write));
        self.bus = done;
        self.head = Some(piece.at.saturating_add(piece.bytes));
        done
    }
}

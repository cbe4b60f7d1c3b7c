//! Transfers in progress, and the processes that wait for them.

use super::cache::NONE;

#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Head of the list of frames of the transfer.
    pub(super) first: u32,
    /// Last frame of the list, while it is built.
    pub(super) last: u32,
    /// Head of the list of waiting processes.
    waiter: u32,
    /// Number of parts that are not done.
    pub(super) parts: u32,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    process: u32,
    /// True if the process continues now and waits only before its end.
    is_async: bool,
    next: u32,
}

#[derive(Debug, Default)]
pub(super) struct Transfers {
    all: Vec<Transfer>,
    free: Vec<u32>,
    waiters: Vec<Waiter>,
    free_waiters: Vec<u32>,
}

impl Transfers {
    #[inline]
    pub(super) fn add(&mut self) -> u32 {
        let transfer = Transfer { first: NONE, last: NONE, waiter: NONE, parts: 0 };
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = transfer;
                at
            }
            None => {
                self.all.push(transfer);
                self.all.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub(super) fn get(&mut self, at: u32) -> &mut Transfer {
        &mut self.all[at as usize]
    }

    #[inline]
    pub(super) fn wait(&mut self, at: u32, process: u32, is_async: bool) {
        let transfer = &mut self.all[at as usize];
        let waiter = Waiter { process, is_async, next: transfer.waiter };
        transfer.waiter = match self.free_waiters.pop() {
            Some(free) => {
                self.waiters[free as usize] = waiter;
                free
            }
            None => {
                self.waiters.push(waiter);
                self.waiters.len() as u32 - 1
            }
        };
    }

    /// Removes the next waiting process. Returns the process, and whether it continued meanwhile.
    #[inline]
    pub(super) fn pop_waiter(&mut self, at: u32) -> Option<(u32, bool)> {
        let transfer = &mut self.all[at as usize];
        let nth = transfer.waiter;
        if nth == NONE {
            return None;
        }
        let Waiter { process, is_async, next } = self.waiters[nth as usize];
        transfer.waiter = next;
        self.free_waiters.push(nth);
        Some((process, is_async))
    }

    #[inline]
    pub(super) fn remove(&mut self, at: u32) {
        self.free.push(at);
    }
}

//! Transfers between cache and disks.

use super::{Access, Storage};
use crate::cache::{Cache, NONE, flag};
use crate::observer::{Observer, Step};
use crate::workload::Request;

/// Consecutive blocks that become one transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    file: u32,
    write: bool,
    pub(super) ahead: bool,
    transfer: u32,
    first: u64,
    blocks: u64,
}

impl Run {
    #[inline]
    pub(super) fn new(file: u32, write: bool) -> Run {
        Run { file, write, ahead: false, transfer: NONE, first: 0, blocks: 0 }
    }
}

impl<O: Observer> Storage<'_, O> {
    /// Adds a frame to a run. Ends the run first if the frame does not follow it, or if the run has
    /// the maximum size of a transfer.
    #[inline]
    pub(super) fn put(
        &mut self,
        run: &mut Run,
        home: &mut Cache,
        at: u32,
        flags: u8,
        access: Option<&mut Access>,
        now: u64,
    ) {
        let block = home.frame(at).block;
        let full = (run.blocks + 1) << self.block_shift > self.config.transfer;
        if run.transfer != NONE && (run.first + run.blocks != block || full) {
            self.end_run(run, home, access, now);
        }
        if run.transfer == NONE {
            run.transfer = self.transfers.add();
            (run.first, run.blocks) = (block, 0);
        }
        run.blocks += 1;
        home.set(at, flags);
        let frame = home.frame_mut(at);
        (frame.transfer, frame.link) = (run.transfer, NONE);
        let transfer = self.transfers.get(run.transfer);
        let last = std::mem::replace(&mut transfer.last, at);
        match last {
            NONE => transfer.first = at,
            _ => home.frame_mut(last).link = at,
        }
    }

    /// Submits the run to the disks.
    #[inline]
    pub(super) fn end_run(&mut self, run: &mut Run, _: &mut Cache, access: Option<&mut Access>, now: u64) {
        if run.transfer == NONE {
            return;
        }
        let transfer = std::mem::replace(&mut run.transfer, NONE);
        let (offset, bytes) = (run.first << self.block_shift, run.blocks << self.block_shift);
        self.begin(transfer, run.file, offset, bytes, run.write, run.ahead, now);
        if let Some(access) = access {
            self.wait(access, transfer);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parameters describe one transfer")]
    #[inline]
    fn begin(
        &mut self,
        transfer: u32,
        file: u32,
        offset: u64,
        bytes: u64,
        write: bool,
        ahead: bool,
        now: u64,
    ) {
        self.observer.see(now, Step::Transfer { transfer, file, offset, bytes, write, ahead });
        let address = self.layout.address(file, offset);
        let parts = self.disks.begin(transfer, address, bytes, write, now, &mut self.events);
        self.transfers.get(transfer).parts = parts;
    }

    /// Moves bytes without the cache.
    pub(super) fn direct(&mut self, access: &mut Access, offset: u64, length: u64, now: u64) {
        let Request { file, write, .. } = access.request;
        let end = offset + length;
        let mut from = offset;
        while from < end {
            let bytes = (end - from).min(self.config.transfer);
            let transfer = self.transfers.add();
            self.begin(transfer, file, from, bytes, write, false, now);
            self.wait(access, transfer);
            from += bytes;
        }
    }

    /// Completes a part of a transfer. After the last part, `waiters` contains the waiting
    /// processes, and whether each of them continued meanwhile.
    #[inline]
    pub(crate) fn part_done(&mut self, part: u32, now: u64, waiters: &mut Vec<(u32, bool)>) -> bool {
        let Some((transfer, bytes, write)) = self.disks.end(part, now, &mut self.events) else {
            return false;
        };
        let point = self.rates.at(now);
        if write {
            point.disk_written += bytes;
        } else {
            point.disk_read += bytes;
        }
        let under_way = self.transfers.get(transfer);
        under_way.parts -= 1;
        if under_way.parts > 0 {
            return false;
        }
        let mut at = under_way.first;
        self.observer.see(now, Step::Done { transfer, write });
        while let Some(waiter) = self.transfers.pop_waiter(transfer) {
            waiters.push(waiter);
        }
        // First come, first served.
        waiters.reverse();
        self.transfers.remove(transfer);
        if let Some(mut home) = self.home.take() {
            let mut again = None;
            while at != NONE {
                let next = home.frame(at).link;
                home.clear(at, if write { flag::WRITING } else { flag::READING });
                home.frame_mut(at).transfer = NONE;
                if home.frame(at).is(flag::DIRTY) && self.config.delay == 0 {
                    let run = again.get_or_insert_with(|| Run::new(home.frame(at).file, true));
                    self.put(run, &mut home, at, flag::WRITING, None, now);
                    home.clear(at, flag::DIRTY);
                }
                at = next;
            }
            if let Some(mut run) = again {
                self.end_run(&mut run, &mut home, None, now);
            }
            self.home = Some(home);
        }
        true
    }
}

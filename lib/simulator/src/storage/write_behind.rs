//! Writes: synchronous, asynchronous, or delayed.

use super::transfer::Run;
use super::{Access, Progress, Storage};
use crate::cache::{Cache, flag};
use crate::events::Event;
use crate::observer::{Observer, Step};

/// Number of transfers that are started early when no block can be replaced.
const PRESSURE: u32 = 64;

impl<O: Observer> Storage<'_, O> {
    /// Writes a request to the cache. A block is assumed to be written completely: the remainder of
    /// a partly written block is not read first.
    #[inline]
    pub(super) fn write(&mut self, home: &mut Cache, access: &mut Access, now: u64) -> Progress {
        let (request, owner) = (access.request, self.owner(access.process));
        let (_, last) = self.blocks(&request);
        let (behind, delay) = (self.config.write_behind, self.config.delay);
        let mut run = Run::new(request.file, true);
        let first = access.cursor;
        let mut progress = Progress::Done;
        while access.cursor <= last {
            let block = access.cursor;
            let found = home.find(request.file, block);
            if let Some(at) = found {
                let frame = home.frame(at);
                if frame.is(flag::READING | flag::WRITING) && !behind {
                    let transfer = frame.transfer;
                    self.end_run(&mut run, home, (!behind).then_some(&mut *access), now);
                    if !request.is_async {
                        self.wait(access, transfer);
                        progress = Progress::Locked;
                        break;
                    }
                }
                self.use_ahead(home, at);
                home.touch(at);
            }
            let Some(at) = found.or_else(|| home.insert(request.file, block, owner)) else {
                progress = Progress::NoRoom;
                break;
            };
            if let Some(front) = &mut self.front
                && !super::touch(front, request.file, block)
            {
                front.insert(request.file, block, 0);
            }
            access.cursor += 1;
            if home.frame(at).is(flag::READING | flag::WRITING) {
                // The block is written to disk again after the current transfer.
                self.dirty(home, at, now.saturating_add(delay));
            } else if behind && delay > 0 {
                self.dirty(home, at, now.saturating_add(delay));
            } else {
                let waits = (!behind).then_some(&mut *access);
                self.put(&mut run, home, at, flag::WRITING, waits, now);
            }
        }
        let written = access.cursor - first;
        self.end_run(&mut run, home, (!behind).then_some(&mut *access), now);
        self.totals.written += written;
        access.cost = self.ssd_cost(written);
        self.observer.see(now, Step::Cache { process: access.process, hits: 0, late: 0, misses: 0, written });
        progress
    }

    fn dirty(&mut self, home: &mut Cache, at: u32, due: u64) {
        if home.frame(at).is(flag::DIRTY) {
            return;
        }
        home.set(at, flag::DIRTY);
        home.frame_mut(at).due = due;
        if self.config.delay > 0 {
            self.dirty.push_back((at, due));
            self.set_flush();
        }
    }

    fn set_flush(&mut self) {
        if !self.flush_set
            && let Some((_, due)) = self.dirty.front()
        {
            self.flush_set = true;
            self.events.push(*due, Event::Flush);
        }
    }

    /// Writes blocks that are due.
    pub(crate) fn flush(&mut self, now: u64) {
        self.flush_set = false;
        if let Some(mut home) = self.home.take() {
            while self.dirty.front().is_some_and(|(_, due)| *due <= now) {
                self.flush_one(&mut home, now);
            }
            self.home = Some(home);
        }
        self.set_flush();
    }

    /// Writes the oldest dirty blocks early.
    pub(super) fn make_room(&mut self, home: &mut Cache, now: u64) {
        let mut begun = 0;
        for _ in 0..self.dirty.len() {
            begun += u32::from(self.flush_one(home, now));
            if begun == PRESSURE {
                break;
            }
        }
    }

    /// Writes the oldest dirty block together with the dirty blocks around it; returns false if it
    /// is no longer dirty.
    fn flush_one(&mut self, home: &mut Cache, now: u64) -> bool {
        let Some((at, due)) = self.dirty.pop_front() else { return false };
        let frame = *home.frame(at);
        if !frame.is(flag::DIRTY) || frame.due != due {
            return false;
        }
        if frame.is(flag::READING | flag::WRITING) {
            // It is being transferred and becomes due again.
            let due = now.saturating_add(self.config.delay);
            home.frame_mut(at).due = due;
            self.dirty.push_back((at, due));
            return false;
        }
        let most = (self.config.transfer >> self.block_shift).max(1);
        let writable = |home: &Cache, block: u64| {
            let found = home.find(frame.file, block);
            found.filter(|at| {
                let frame = home.frame(*at);
                frame.is(flag::DIRTY) && !frame.is(flag::READING | flag::WRITING)
            })
        };
        let mut first = frame.block;
        while first > 0 && frame.block - first + 1 < most && writable(home, first - 1).is_some() {
            first -= 1;
        }
        let mut run = Run::new(frame.file, true);
        for block in first..first.saturating_add(most) {
            let Some(at) = writable(home, block) else { break };
            // Set WRITING before DIRTY is cleared, so that the frame stays pinned.
            self.put(&mut run, home, at, flag::WRITING, None, now);
            home.clear(at, flag::DIRTY);
        }
        self.end_run(&mut run, home, None, now);
        true
    }
}

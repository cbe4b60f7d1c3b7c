//! Cache, SSD and disks: the path of a request.

mod read_ahead;
mod transfer;
mod write_behind;

use super::cache::{Cache, NONE, flag};
use super::config::Config;
use super::disk::{DiskTotals, Disks, Layout};
use super::events::Events;
use super::observer::{Observer, Step};
use super::rates::Rates;
use super::result::CacheTotals;
use super::transfers::Transfers;
use super::workload::Request;
use std::collections::VecDeque;
use transfer::Run;

/// A request in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) process: u32,
    pub(super) request: Request,
    /// Next block.
    pub(super) cursor: u64,
    /// Number of transfers that the process must wait for.
    pub(super) waits: u32,
    /// Number of transfers that must complete before the process may end.
    pub(super) later: u32,
    /// Processor time for moving data, nanoseconds.
    pub(super) cost: u64,
}

/// Progress of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All blocks were handled; those that are being transferred are in `waits`.
    Done,
    /// No block can be replaced: continue when one can.
    NoRoom,
    /// A block is being written to disk: continue when `waits` are done.
    Locked,
}

pub(super) struct Storage<'a, O> {
    config: &'a Config,
    block_shift: u32,
    /// Main memory in front of the SSD, if there is one. It holds only blocks that the SSD or the
    /// disk has too.
    front: Option<Box<Cache>>,
    /// Cache in front of the disks: the SSD if there is one, else main memory; `None` for neither.
    home: Option<Box<Cache>>,
    files: &'a [u64],
    layout: Layout,
    disks: Disks,
    transfers: Transfers,
    /// Dirty frames by the time at which they must be written to disk. Entries that are no longer
    /// dirty, or are due at another time, are skipped.
    dirty: VecDeque<(u32, u64)>,
    flush_set: bool,
    pub(super) events: Events,
    pub(super) totals: CacheTotals,
    pub(super) rates: Rates,
    pub(super) observer: O,
}

impl<'a, O: Observer> Storage<'a, O> {
    pub(super) fn new(config: &'a Config, files: &'a [u64], processes: usize, observer: O) -> Self {
        let block = config.cache.block;
        let limit = config.cache.limit;
        let owners = if limit > 0 { processes.max(1) } else { 1 };
        let limit = if limit > 0 { (limit / block) as u32 } else { u32::MAX };
        // A cache larger than all files would only waste memory.
        let most = files.iter().fold(0u64, |sum, size| sum.saturating_add(size.div_ceil(block))).max(1);
        let cache = |size: u64, owners: usize, limit: u32| {
            let frames = (size / block).min(most) as u32;
            (size > 0).then(|| Box::new(Cache::new(frames, config.cache.policy, owners, limit)))
        };
        let (front, home) = if config.ssd.size > 0 {
            (cache(config.cache.size, 1, u32::MAX), cache(config.ssd.size, owners, limit))
        } else {
            (None, cache(config.cache.size, owners, limit))
        };
        Storage {
            config,
            block_shift: block.trailing_zeros(),
            front,
            home,
            files,
            layout: Layout::new(files, block),
            disks: Disks::new(&config.disk),
            transfers: Transfers::default(),
            dirty: VecDeque::new(),
            flush_set: false,
            events: Events::default(),
            totals: CacheTotals::default(),
            rates: Rates::new(10_000_000),
            observer,
        }
    }

    pub(super) fn disk_totals(&self) -> DiskTotals {
        self.disks.totals()
    }

    /// Returns the first and the last block of a request.
    #[inline]
    fn blocks(&self, request: &Request) -> (u64, u64) {
        (request.offset >> self.block_shift, (request.end() - 1) >> self.block_shift)
    }

    #[inline]
    fn owner(&self, process: u32) -> u16 {
        if self.config.cache.limit > 0 { process as u16 } else { 0 }
    }

    /// Begins an access.
    #[inline]
    pub(super) fn access(&self, process: u32, request: Request) -> Access {
        let cursor = request.offset >> self.block_shift;
        Access { process, request, cursor, waits: 0, later: 0, cost: 0 }
    }

    /// Continues an access as far as possible.
    pub(super) fn go_on(&mut self, access: &mut Access, now: u64) -> Progress {
        access.waits = 0;
        access.cost = 0;
        let request = access.request;
        if request.length == 0 {
            return Progress::Done;
        }
        let Some(mut home) = self.home.take() else {
            self.direct(access, request.offset, request.length, now);
            return Progress::Done;
        };
        let progress = if request.write {
            self.write(&mut home, access, now)
        } else {
            self.read(&mut home, access, now)
        };
        let progress = if progress == Progress::NoRoom && request.is_async {
            // Do not wait for a free block: the rest bypasses the cache.
            let from = (access.cursor << self.block_shift).max(request.offset);
            self.direct(access, from, request.end() - from, now);
            Progress::Done
        } else {
            progress
        };
        match progress {
            Progress::Done if !request.write && request.sequential && self.config.read_ahead => {
                self.read_ahead(&mut home, access, now);
            }
            Progress::NoRoom => self.make_room(&mut home, now),
            _ => {}
        }
        self.home = Some(home);
        progress
    }

    #[inline]
    fn read(&mut self, home: &mut Cache, access: &mut Access, now: u64) -> Progress {
        let (request, owner) = (access.request, self.owner(access.process));
        let (_, last) = self.blocks(&request);
        let mut run = Run::new(request.file, false);
        let (mut hits, mut late, mut misses, mut ssd_hits) = (0u64, 0u64, 0u64, 0u64);
        let mut waited = NONE;
        let mut progress = Progress::Done;
        while access.cursor <= last {
            let block = access.cursor;
            let in_front = self.front.as_mut().is_some_and(|front| touch(front, request.file, block));
            match home.find(request.file, block) {
                Some(at) if home.frame(at).is(flag::READING) => {
                    self.end_run(&mut run, home, Some(access), now);
                    self.use_ahead(home, at);
                    home.touch(at);
                    late += 1;
                    let transfer = home.frame(at).transfer;
                    if transfer != waited {
                        waited = transfer;
                        self.wait(access, transfer);
                    }
                }
                Some(at) => {
                    self.use_ahead(home, at);
                    home.touch(at);
                    hits += 1;
                    ssd_hits += u64::from(!in_front);
                }
                None if in_front => hits += 1,
                None => {
                    let Some(at) = home.insert(request.file, block, owner) else {
                        progress = Progress::NoRoom;
                        break;
                    };
                    misses += 1;
                    self.put(&mut run, home, at, flag::READING, Some(access), now);
                }
            }
            if !in_front && let Some(front) = &mut self.front {
                front.insert(request.file, block, 0);
            }
            access.cursor += 1;
        }
        self.end_run(&mut run, home, Some(access), now);
        let totals = &mut self.totals;
        totals.read += hits + late + misses;
        totals.late_hits += late;
        totals.misses += misses;
        if self.config.ssd.size > 0 {
            totals.ssd_hits += ssd_hits;
            totals.memory_hits += hits - ssd_hits;
            // Data from disk passes through the SSD too.
            access.cost = self.ssd_cost(ssd_hits + late + misses);
        } else {
            totals.memory_hits += hits;
        }
        self.observer.see(now, Step::Cache { process: access.process, hits, late, misses, written: 0 });
        progress
    }

    /// Returns the processor time to move this many blocks to or from the SSD.
    #[inline]
    fn ssd_cost(&self, blocks: u64) -> u64 {
        let ssd = &self.config.ssd;
        if blocks == 0 || ssd.size == 0 {
            return 0;
        }
        let kib = blocks.saturating_mul(self.config.cache.block) >> 10;
        ssd.set_up.saturating_add(ssd.per_kib.saturating_mul(kib))
    }

    #[inline]
    fn use_ahead(&mut self, home: &mut Cache, at: u32) {
        if home.frame(at).is(flag::AHEAD) {
            home.clear(at, flag::AHEAD);
            self.totals.read_ahead_used += 1;
        }
    }

    /// Makes the process wait for a transfer, or only before its end if the request is
    /// asynchronous.
    #[inline]
    fn wait(&mut self, access: &mut Access, transfer: u32) {
        let is_async = access.request.is_async;
        self.transfers.wait(transfer, access.process, is_async);
        if is_async {
            access.later += 1;
        } else {
            access.waits += 1;
        }
    }
}

/// Returns true if the cache has the block, and records a use.
#[inline]
fn touch(cache: &mut Cache, file: u32, block: u64) -> bool {
    let found = cache.find(file, block);
    if let Some(at) = found {
        cache.touch(at);
    }
    found.is_some()
}

impl<O> Storage<'_, O> {
    /// Returns true if a block of the cache can be replaced.
    pub(super) fn has_room(&self) -> bool {
        self.home.as_ref().is_none_or(|home| home.available() > 0)
    }
}

//! Disks: computes when a range of addresses has been transferred.

mod access;
mod layout;
mod queued;
mod simple;

pub(super) use layout::Layout;

use super::config::Disk;
use super::events::{Event, Events};
use layout::TransferPart;
use queued::{Device, Parts};
use serde::Serialize;
use simple::Simple;

/// Totals of the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskTotals {
    /// Number of read transfers.
    pub reads: u64,
    /// Number of write transfers.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Nanoseconds in which a device was busy, summed over devices; without queues the sum of
    /// service times.
    pub busy: u64,
    /// Nanoseconds that parts of transfers waited in queues.
    pub queued: u64,
    /// Maximum number of parts that waited at one device at the same time.
    pub longest_queue: u32,
}

#[derive(Debug)]
pub(super) struct Disks {
    config: Disk,
    simple: Simple,
    devices: Vec<Device>,
    parts: Parts,
    /// Time at which the link is free.
    link: u64,
    totals: DiskTotals,
}

impl Disks {
    pub(super) fn new(config: &Disk) -> Disks {
        let devices = if config.queue { config.devices as usize } else { 0 };
        Disks {
            config: config.clone(),
            simple: Simple::default(),
            devices: vec![Device::default(); devices],
            parts: Parts::default(),
            link: 0,
            totals: DiskTotals::default(),
        }
    }

    /// Begins a transfer and returns the number of its parts.
    #[inline]
    pub(super) fn begin(
        &mut self,
        transfer: u32,
        address: u64,
        bytes: u64,
        write: bool,
        now: u64,
        events: &mut Events,
    ) -> u32 {
        let (count, moved) = if write {
            (&mut self.totals.writes, &mut self.totals.bytes_written)
        } else {
            (&mut self.totals.reads, &mut self.totals.bytes_read)
        };
        *count += 1;
        *moved += bytes;
        if !self.config.queue {
            let takes = self.simple.access(&self.config, address, bytes, write);
            let piece = TransferPart { device: 0, at: address, bytes };
            events.push(now.saturating_add(takes), Event::Part(self.parts.add(transfer, write, piece, now)));
            return 1;
        }
        let mut parts = 0;
        for piece in layout::pieces(&self.config, address, bytes) {
            let part = self.parts.add(transfer, write, piece, now);
            let device = &mut self.devices[piece.device as usize];
            if let Some(done) = device.arrive(&self.config, &self.parts, part, now) {
                events.push(done, Event::Part(part));
            }
            parts += 1;
        }
        parts
    }

    /// Completes a part: returns the transfer, the bytes, and whether they were written. `None` if
    /// only the device has finished and the part now uses the link.
    #[inline]
    pub(super) fn end(&mut self, part: u32, now: u64, events: &mut Events) -> Option<(u32, u64, bool)> {
        let under_way = self.parts.get(part);
        if self.config.queue && !under_way.on_link {
            under_way.on_link = true;
            let TransferPart { device, bytes, .. } = under_way.piece;
            if let Some((next, at)) = self.devices[device as usize].done(&self.config, &self.parts, now) {
                events.push(at, Event::Part(next));
            }
            // The first bytes of the part used the link before the last bytes left the device.
            let moving = access::moving(self.config.link_rate, bytes);
            self.link = now.max(self.link.saturating_add(moving));
            if self.link > now {
                events.push(self.link, Event::Part(part));
                return None;
            }
        }
        let done = self.parts.take(part);
        Some((done.transfer, done.piece.bytes, done.write))
    }

    pub(super) fn totals(&self) -> DiskTotals {
        DiskTotals {
            busy: self.simple.busy + self.devices.iter().map(|device| device.busy).sum::<u64>(),
            queued: self.devices.iter().map(|device| device.waited).sum(),
            longest_queue: self.devices.iter().map(|device| device.longest).max().unwrap_or(0),
            ..self.totals.clone()
        }
    }
}

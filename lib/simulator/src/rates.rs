//! Bytes over time in a bounded number of intervals: when there are too many, pairs of intervals
//! are merged.

use serde::Serialize;

/// Maximum number of intervals.
const MOST: usize = 4096;

/// Bytes in intervals of `interval` nanoseconds from the begin of the simulation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// Length of an interval in nanoseconds.
    pub interval: u64,
    /// One point per interval.
    pub points: Vec<Point>,
}

/// Bytes that moved in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Point {
    /// Bytes that programs requested to read, at the time of the request.
    pub read: u64,
    /// Bytes written by programs.
    pub written: u64,
    /// Bytes read from disks, at the completion of the transfer.
    pub disk_read: u64,
    /// Bytes written to disks.
    pub disk_written: u64,
}

impl<'a> std::iter::Sum<&'a Point> for Point {
    fn sum<I: Iterator<Item = &'a Point>>(points: I) -> Point {
        points.fold(Point::default(), |sum, point| Point {
            read: sum.read + point.read,
            written: sum.written + point.written,
            disk_read: sum.disk_read + point.disk_read,
            disk_written: sum.disk_written + point.disk_written,
        })
    }
}

impl Rates {
    /// Returns rates with intervals of `interval` nanoseconds. The interval doubles when there are
    /// more than 4096.
    #[must_use]
    pub(super) fn new(interval: u64) -> Rates {
        Rates { interval: interval.max(1), points: Vec::new() }
    }

    #[inline]
    pub(super) fn at(&mut self, time: u64) -> &mut Point {
        while time / self.interval >= MOST as u64 {
            self.interval = self.interval.saturating_mul(2);
            self.points = self.points.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        let nth = (time / self.interval) as usize;
        if nth >= self.points.len() {
            self.points.resize(nth + 1, Point::default());
        }
        &mut self.points[nth]
    }
}

//! Counters of a node's devices.

#[cfg(doc)]
use super::{MAX_DEVICE_NAME, MAX_DEVICES};
use serde::{Deserialize, Serialize};

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A block device.
    Block,
    /// A mounted NFS file system.
    Nfs,
    /// A mounted Lustre file system.
    Lustre,
    /// A mounted FUSE file system.
    Fuse,
}

impl DeviceKind {
    /// Returns the name in the trace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Block => "block",
            DeviceKind::Nfs => "nfs",
            DeviceKind::Lustre => "lustre",
            DeviceKind::Fuse => "fuse",
        }
    }
}

/// Activity of a device in an interval. A counter is `None` if the kernel does not have it. Times
/// are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Name of the block device, or source of the mount; at most [`MAX_DEVICE_NAME`] bytes.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Mount point, at most [`MAX_DEVICE_NAME`] bytes; empty for a block device.
    #[serde(with = "serde_bytes")]
    pub mount: Vec<u8>,
    /// See [`DeviceCounters`].
    pub counters: DeviceCounters,
}

/// Counters of a device, over an interval or since the kernel started to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Reads completed.
    pub reads: Option<u64>,
    /// Writes completed.
    pub writes: Option<u64>,
    /// Other requests completed: discards and flushes, or requests that move no data.
    pub others: Option<u64>,
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// Sum of the durations of the reads, nanoseconds.
    pub read_time: Option<u64>,
    /// Sum of the durations of the writes, nanoseconds.
    pub write_time: Option<u64>,
    /// Sum of the durations of the other requests, nanoseconds.
    pub other_time: Option<u64>,
    /// Reads that were merged with others before they were served.
    pub reads_merged: Option<u64>,
    /// Writes that were merged with others before they were served.
    pub writes_merged: Option<u64>,
    /// Time with at least one request in flight, nanoseconds.
    pub busy: Option<u64>,
    /// Integral over time of the number of requests in flight, nanoseconds.
    pub queue_time: Option<u64>,
    /// Requests in flight at the end of the interval. Not a sum.
    pub in_flight: Option<u64>,
    /// Requests that were sent again.
    pub retransmits: Option<u64>,
}

/// Activity of all devices of a node in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Boot id of the node's kernel.
    pub boot: u128,
    /// End of the interval, nanoseconds since that boot; ascending. Together with `boot` the
    /// permanent identity of the sample.
    pub uptime: u64,
    /// End of the interval, nanoseconds since 1970 by the node's clock.
    pub time: i64,
    /// Length of the interval, nanoseconds.
    pub interval: u64,
    /// Devices of the node, at most [`MAX_DEVICES`].
    pub devices: Vec<Device>,
}

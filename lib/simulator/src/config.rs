//! Parameters of a simulation.

use super::presets;
use serde::{Deserialize, Serialize};

/// An invalid configuration: the text states what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// Configuration of a machine. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Number of processors.
    pub processors: u32,
    /// Time that a process runs before other ready processes get the processor.
    #[serde(with = "nanoseconds")]
    pub quantum: u64,
    /// Time to switch from one process to another.
    #[serde(with = "nanoseconds")]
    pub switch: u64,
    /// Time of the system call and the file-system code of a request.
    #[serde(with = "nanoseconds")]
    pub call: u64,
    /// Time to serve the interrupt of a completed transfer.
    #[serde(with = "nanoseconds")]
    pub interrupt: u64,
    /// First level of the cache.
    pub cache: Cache,
    /// Second level of the cache.
    pub ssd: Ssd,
    /// Read-ahead: reads data before it is requested.
    pub read_ahead: bool,
    /// Write-behind: a process continues as soon as its data is in the cache.
    pub write_behind: bool,
    /// With write-behind: time that written data stays in the cache before it is written to disk.
    #[serde(with = "nanoseconds")]
    pub delay: u64,
    /// Maximum size of a transfer. Longer requests are split.
    #[serde(with = "miot_proto::units::bytes")]
    pub transfer: u64,
    /// Disks that hold the data.
    pub disk: Disk,
}

/// Main-memory cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Size of the cache; 0 for no cache.
    #[serde(with = "miot_proto::units::bytes")]
    pub size: u64,
    /// Size of a block.
    #[serde(with = "miot_proto::units::bytes")]
    pub block: u64,
    /// Replacement policy.
    pub policy: Policy,
    /// Maximum part of the cache that a process may use; 0 for no limit.
    #[serde(with = "miot_proto::units::bytes")]
    pub limit: u64,
}

/// Replacement policy of a full cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Replaces the block that was not used for the longest time.
    #[default]
    Lru,
    /// Replaces the block that was loaded first.
    Fifo,
    /// Replaces the block that was loaded first and was not used since its last inspection (second
    /// chance; Corbató 1968).
    Clock,
    /// A new block enters the LRU list only if it is used again after it has left a queue of a
    /// quarter of the cache (2Q, full version; Johnson and Shasha 1994, with their Kin = 25 %, Kout
    /// = 50 %). The LRU list has the rest of the cache.
    #[serde(rename = "2q")]
    TwoQ,
}

/// Solid-state disk as a cache of the operating system: it is larger, but a hit costs processor
/// time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ssd {
    /// Size of the SSD; 0 for no SSD.
    #[serde(with = "miot_proto::units::bytes")]
    pub size: u64,
    /// Time to set up a transfer.
    #[serde(with = "nanoseconds")]
    pub set_up: u64,
    /// Time per 1024 bytes moved.
    #[serde(with = "nanoseconds")]
    pub per_kib: u64,
}

/// Disks. An access takes `latency`, positioning, and the time of its bytes at `read_rate` or
/// `write_rate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Whether requests wait for each other. Without queues, as in the paper, each request is
    /// served at once regardless of other requests, and there is one head.
    pub queue: bool,
    /// Number of devices over which data is striped.
    pub devices: u32,
    /// Number of consecutive bytes on one device.
    #[serde(with = "miot_proto::units::bytes")]
    pub stripe: u64,
    /// Number of requests that one device serves at the same time: their latencies overlap, their
    /// transfers do not.
    pub channels: u32,
    /// Order in which waiting requests are served.
    pub order: Order,
    /// Time before a read moves its first byte: network, controller, flash.
    #[serde(with = "nanoseconds")]
    pub read_latency: u64,
    /// Time before a write moves its first byte.
    #[serde(with = "nanoseconds")]
    pub write_latency: u64,
    /// Time of a seek to the next track. 0, with `max_seek` 0, for a device without an arm.
    #[serde(with = "nanoseconds")]
    pub min_seek: u64,
    /// Time of a seek over the full stroke.
    #[serde(with = "nanoseconds")]
    pub max_seek: u64,
    /// Time of one rotation. Each seek is followed by a wait of half a rotation.
    #[serde(with = "nanoseconds")]
    pub rotation: u64,
    /// Size of one device. Seek distances are fractions of it.
    #[serde(with = "miot_proto::units::bytes")]
    pub capacity: u64,
    /// Read rate of one device in bytes per second; 0 for no transfer time.
    #[serde(with = "miot_proto::units::bytes")]
    pub read_rate: u64,
    /// Write rate of one device in bytes per second; 0 for no transfer time.
    #[serde(with = "miot_proto::units::bytes")]
    pub write_rate: u64,
    /// Bytes per second between the devices and the processors, for all devices together: a network
    /// or a bus. 0 for no transfer time. Requires `queue`.
    #[serde(with = "miot_proto::units::bytes")]
    pub link_rate: u64,
}

/// Order in which a device serves waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// In order of arrival.
    #[default]
    Fifo,
    /// The nearest request above the head, else the lowest (C-LOOK).
    Look,
}

impl Default for Config {
    fn default() -> Config {
        presets::named("cray").unwrap_or_else(|| unreachable!("the preset exists"))
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { size: 32 << 20, block: 4096, policy: Policy::Lru, limit: 0 }
    }
}

impl Default for Disk {
    fn default() -> Disk {
        presets::cray_disk()
    }
}

/// Maximum size of anything: more than any machine has, and far from an overflow of sums.
const MAX_SIZE: u64 = 1 << 50;
/// Maximum number of blocks of a cache. The table takes 48 bytes per block.
const MAX_BLOCKS: u64 = 1 << 28;
/// Maximum of a time: one day.
const MAX_TIME: u64 = 86_400_000_000_000;
const MAX_PROCESSORS: u32 = 4096;
const MAX_DEVICES: u32 = 65_536;

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// A text that states which parameter is impossible and what to do.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |text: String| Err(ConfigError(text));
        let in_range = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                fail(format!("{name} is {value}: expected {least} to {most}"))
            }
        };
        in_range("processors", self.processors.into(), 1, MAX_PROCESSORS.into())?;
        in_range("quantum", self.quantum, 1, MAX_TIME)?;
        in_range("cache.block", self.cache.block, 512, 1 << 30)?;
        if !self.cache.block.is_power_of_two() {
            return fail(format!(
                "cache.block is {}: expected a power of two, for example 4096",
                self.cache.block
            ));
        }
        for (name, size) in [("cache.size", self.cache.size), ("ssd.size", self.ssd.size)] {
            in_range(name, size, 0, MAX_SIZE)?;
            if size > 0 && size < self.cache.block {
                return fail(format!(
                    "{name} is {size} bytes, less than one block of {}: make it larger, or 0 for none",
                    self.cache.block
                ));
            }
            if size / self.cache.block > MAX_BLOCKS {
                return fail(format!(
                    "{name} has {} blocks, more than {MAX_BLOCKS}: choose larger blocks",
                    size / self.cache.block
                ));
            }
        }
        let limit = self.cache.limit;
        if limit > 0 && limit < self.cache.block {
            return fail(format!(
                "cache.limit is {limit} bytes, less than one block of {}",
                self.cache.block
            ));
        }
        if limit > 0 && self.cache.policy != Policy::Lru {
            return fail("cache.limit needs the policy lru: blocks of a process are replaced by its own least recently used".into());
        }
        in_range("transfer", self.transfer, self.cache.block, MAX_SIZE)?;
        let disk = &self.disk;
        for (name, time) in [
            ("switch", self.switch),
            ("call", self.call),
            ("interrupt", self.interrupt),
            ("delay", self.delay),
            ("ssd.set_up", self.ssd.set_up),
            ("ssd.per_kib", self.ssd.per_kib),
            ("disk.read_latency", disk.read_latency),
            ("disk.write_latency", disk.write_latency),
            ("disk.min_seek", disk.min_seek),
            ("disk.max_seek", disk.max_seek),
            ("disk.rotation", disk.rotation),
        ] {
            in_range(name, time, 0, MAX_TIME)?;
        }
        if disk.min_seek > disk.max_seek {
            return fail(format!(
                "disk.min_seek ({} ns) is longer than disk.max_seek ({} ns)",
                disk.min_seek, disk.max_seek
            ));
        }
        in_range("disk.devices", disk.devices.into(), 1, MAX_DEVICES.into())?;
        in_range("disk.stripe", disk.stripe, 512, MAX_SIZE)?;
        in_range("disk.channels", disk.channels.into(), 1, 65_536)?;
        in_range("disk.capacity", disk.capacity, 512, 1 << 60)?;
        in_range("disk.read_rate", disk.read_rate, 0, 1 << 50)?;
        in_range("disk.write_rate", disk.write_rate, 0, 1 << 50)?;
        in_range("disk.link_rate", disk.link_rate, 0, 1 << 50)?;
        if disk.link_rate > 0 && !disk.queue {
            return fail(
                "disk.link_rate needs disk.queue: without queues no transfer waits for another one".into(),
            );
        }
        Ok(())
    }
}

/// Serializes times as text with a unit.
mod nanoseconds {
    use serde::{Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        miot_proto::units::duration::serialize(&Duration::from_nanos(*value), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let duration = miot_proto::units::duration::deserialize(deserializer)?;
        Ok(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

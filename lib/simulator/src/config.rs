//! Parameters of a simulation.

use super::presets;
use serde::{Deserialize, Serialize};

/// What can be told of a configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// A machine. Sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Processors.
    pub processors: u32,
    /// How long a process runs before others that are ready get their turn.
    #[serde(with = "nanoseconds")]
    pub quantum: u64,
    /// To change from one process to another.
    #[serde(with = "nanoseconds")]
    pub switch: u64,
    /// System call and file-system code of a request.
    #[serde(with = "nanoseconds")]
    pub call: u64,
    /// To serve the interrupt of a transfer that has completed.
    #[serde(with = "nanoseconds")]
    pub interrupt: u64,
    /// The cache.
    pub cache: Cache,
    /// The cache's second level.
    pub ssd: Ssd,
    /// What is read before it is asked for.
    pub read_ahead: bool,
    /// A process goes on when what it writes is in the cache.
    pub write_behind: bool,
    /// With write-behind: how long written data stays before it goes to disk.
    #[serde(with = "nanoseconds")]
    pub delay: u64,
    /// Longest transfer; longer requests become several.
    #[serde(with = "miot_proto::units::bytes")]
    pub transfer: u64,
    /// Where data is.
    pub disk: Disk,
}

/// Main-memory cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// All of it; 0: there is none.
    #[serde(with = "miot_proto::units::bytes")]
    pub size: u64,
    /// One block.
    #[serde(with = "miot_proto::units::bytes")]
    pub block: u64,
    /// What is replaced.
    pub policy: Policy,
    /// How much of it a process may have; 0: no limit.
    #[serde(with = "miot_proto::units::bytes")]
    pub limit: u64,
}

/// What is replaced when a cache is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The block that was not used for the longest time.
    #[default]
    Lru,
    /// The block that came first.
    Fifo,
    /// The block that came first and was not used since it was last looked at (second chance; Corbató 1968).
    Clock,
    /// New blocks have to be used again after they left a queue of a quarter of the cache to get into the LRU list of
    /// the rest (2Q, full version; Johnson and Shasha 1994, with their Kin = 25 %, Kout = 50 %).
    #[serde(rename = "2q")]
    TwoQ,
}

/// Solid-state disk as an operating system's cache: larger, but a hit costs time of the processor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ssd {
    /// All of it; 0: there is none.
    #[serde(with = "miot_proto::units::bytes")]
    pub size: u64,
    /// To set up a transfer.
    #[serde(with = "nanoseconds")]
    pub set_up: u64,
    /// Per 1024 bytes moved.
    #[serde(with = "nanoseconds")]
    pub per_kib: u64,
}

/// Disks. An access takes `latency`, positioning, and its bytes at `read_rate` or `write_rate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Requests wait for each other. Without, as in the paper, each is served at once, whatever else is under way, and
    /// there is one head.
    pub queue: bool,
    /// Devices over which data is striped.
    pub devices: u32,
    /// Bytes on one device before the next.
    #[serde(with = "miot_proto::units::bytes")]
    pub stripe: u64,
    /// Requests that one device works on at the same time: their latencies overlap, their transfers do not.
    pub channels: u32,
    /// Which waiting request is next.
    pub order: Order,
    /// Network, controller, flash: before a read moves its first byte.
    #[serde(with = "nanoseconds")]
    pub read_latency: u64,
    /// The same for a write.
    #[serde(with = "nanoseconds")]
    pub write_latency: u64,
    /// Seek to the next track; 0 with `max_seek` 0: no arm.
    #[serde(with = "nanoseconds")]
    pub min_seek: u64,
    /// Seek from one end to the other.
    #[serde(with = "nanoseconds")]
    pub max_seek: u64,
    /// One turn; half of it is waited for after each seek.
    #[serde(with = "nanoseconds")]
    pub rotation: u64,
    /// Bytes of one device: distances are fractions of it.
    #[serde(with = "miot_proto::units::bytes")]
    pub capacity: u64,
    /// Bytes per second of one device; 0: no time.
    #[serde(with = "miot_proto::units::bytes")]
    pub read_rate: u64,
    /// The same for writes.
    #[serde(with = "miot_proto::units::bytes")]
    pub write_rate: u64,
    /// Bytes per second between the devices and the processors, all devices together: a network or a bus; 0: no time. Needs
    /// `queue`.
    #[serde(with = "miot_proto::units::bytes")]
    pub link_rate: u64,
}

/// Which of the requests waiting at a device is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The one that came first.
    #[default]
    Fifo,
    /// The nearest one above the head, else the lowest (C-LOOK).
    Look,
}

impl Default for Config {
    fn default() -> Config {
        presets::named("cray").unwrap_or_else(|| unreachable!("the preset is there"))
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

/// More than any machine has, and far from where sums overflow.
const MAX_SIZE: u64 = 1 << 50;
/// Blocks that a cache may have: their table takes 48 bytes each.
const MAX_BLOCKS: u64 = 1 << 28;
/// One day.
const MAX_TIME: u64 = 86_400_000_000_000;
const MAX_PROCESSORS: u32 = 4096;
const MAX_DEVICES: u32 = 65_536;

impl Config {
    /// # Errors
    /// What cannot be, and what to do.
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

/// Times as texts with a unit.
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

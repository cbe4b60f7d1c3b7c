//! Settings of a log-client.

use crate::error::Error;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use miot_proto::control::{DEFAULT_DIR, DIR_ENV, WhenFull};
use miot_proto::event::SLOT_BYTES;
use miot_proto::op::Layer;
use miot_proto::segment::{MAX_LANE_SLOTS, MAX_SEGMENT_BYTES, MIN_LANE_SLOTS};
use miot_proto::units;
use miot_proto::wire::{DEFAULT_PORT, MAX_FRAME};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is if nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/miot/log-client.toml";
/// Environment variables that override the file: this and the key in capitals.
pub const ENV_PREFIX: &str = "MIOT_CLIENT_";

/// Settings of a log-client. In a file all keys are optional and unknown ones are an error. Sizes and
/// durations are written with their unit, see [`miot_proto::units`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The MIOT directory of the node, where producers find the control page and leave their segments.
    /// Default: `$MIOT_DIR`, else `/dev/shm/miot`.
    pub dir: PathBuf,
    /// Name of this node in the trace. Default: the host name.
    pub node: String,
    /// The log-server, `host:port`. Default: `localhost:4747`.
    pub server: String,
    /// Layers to record, by name; empty: all. Default: all.
    pub layers: Vec<String>,
    /// What a producer does whose lane is full: `drop-newest` never delays the application, `wait` keeps
    /// the trace complete at the application's cost. Default: `drop-newest`.
    #[serde(with = "when_full")]
    pub when_full: WhenFull,
    /// Longest wait of `wait`, after which the record is dropped all the same. Default: 10 s.
    #[serde(with = "units::duration")]
    pub wait: Duration,
    /// Slots (64 bytes) of a thread's first lane; a power of two, at least 256. Default: 512, so that 500
    /// idle processes with 8 threads each take 125 MiB.
    pub lane_slots: u64,
    /// Slots up to which a lane that fills is replaced by a larger one. Default: 32768, room for the
    /// 20 000 records of a burst.
    pub lane_slots_max: u64,
    /// Shared memory one process may claim. Default: 64 MiB.
    #[serde(with = "units::bytes")]
    pub process_bytes: u64,
    /// Most segments (processes) read at a time; further ones wait their turn. Default: 8192.
    pub segments: usize,
    /// Memory for what the log-server has not acknowledged. When it is full the lanes are left alone, so
    /// that `when_full` decides. Default: 64 MiB, minimum: 16 MiB, one frame of the largest size.
    #[serde(with = "units::bytes")]
    pub memory: u64,
    /// Longest sleep between two sweeps on an idle node: bounds how late an event is seen. Default: 20 ms.
    #[serde(with = "units::duration")]
    pub idle: Duration,
    /// Longest clean stop: what the log-server has not acknowledged by then is reported as undelivered.
    /// Default: 10 s.
    #[serde(with = "units::duration")]
    pub stop: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: std::env::var_os(DIR_ENV)
                .filter(|dir| !dir.is_empty())
                .map_or_else(|| DEFAULT_DIR.into(), PathBuf::from),
            node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            server: format!("localhost:{DEFAULT_PORT}"),
            layers: Vec::new(),
            when_full: WhenFull::DropNewest,
            wait: Duration::from_secs(10),
            lane_slots: 512,
            lane_slots_max: 32_768,
            process_bytes: 64 << 20,
            segments: 8192,
            memory: 64 << 20,
            idle: Duration::from_millis(20),
            stop: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Reads the file (`None`: [`DEFAULT_FILE`] if it exists), then the environment, then `flags`, of which
    /// those that are not given must not be serialized.
    ///
    /// # Errors
    /// [`Error::Config`] names what is unknown or has no sense, and where it comes from.
    pub fn load(file: Option<&Path>, flags: &impl Serialize) -> Result<Config, Error> {
        let mut layers = Figment::from(Serialized::defaults(Config::default()));
        match file {
            Some(file) if !file.is_file() => {
                return Err(Error::Config(format!("{}: there is no such file", file.display())));
            }
            Some(file) => layers = layers.merge(Toml::file_exact(file)),
            None if Path::new(DEFAULT_FILE).is_file() => {
                layers = layers.merge(Toml::file_exact(DEFAULT_FILE))
            }
            None => {}
        }
        // Said to the program, not settings: which file, what to log.
        let env = Env::prefixed(ENV_PREFIX).ignore(&["config", "log"]);
        let config: Config = layers
            .merge(env)
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| Error::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`Error::Setting`], with the key.
    pub fn check(&self) -> Result<(), Error> {
        let fail = |key, reason: String| Err(Error::Setting { key, reason });
        if !self.dir.is_absolute() {
            return fail("dir", format!("`{}` is not an absolute path", self.dir.display()));
        }
        if self.node.is_empty() || self.node.len() > 255 {
            return fail("node", "a name of 1 to 255 bytes is needed".into());
        }
        if !self
            .server
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        {
            return fail("server", format!("`{}` is not of the form host:port", self.server));
        }
        self.layer_mask()?;
        let lanes = MIN_LANE_SLOTS..=MAX_LANE_SLOTS;
        for (key, slots) in [("lane_slots", self.lane_slots), ("lane_slots_max", self.lane_slots_max)] {
            if !lanes.contains(&slots) || !slots.is_power_of_two() {
                return fail(
                    key,
                    format!("{slots} is not a power of two from {MIN_LANE_SLOTS} to {MAX_LANE_SLOTS}"),
                );
            }
        }
        if self.lane_slots > self.lane_slots_max {
            return fail("lane_slots", format!("more than lane_slots_max ({})", self.lane_slots_max));
        }
        let least = self.lane_slots * SLOT_BYTES as u64 * 2;
        if !(least..=MAX_SEGMENT_BYTES).contains(&self.process_bytes) {
            return fail(
                "process_bytes",
                format!("{} is not from {least} to {MAX_SEGMENT_BYTES}", self.process_bytes),
            );
        }
        if self.segments == 0 {
            return fail("segments", "at least 1".into());
        }
        if self.memory < MAX_FRAME as u64 {
            return fail("memory", format!("{} is less than one frame may take, {MAX_FRAME}", self.memory));
        }
        if self.idle < Duration::from_millis(1) || self.idle > Duration::from_secs(1) {
            return fail("idle", "from 1ms to 1s".into());
        }
        Ok(())
    }

    pub(crate) fn layer_mask(&self) -> Result<u64, Error> {
        if self.layers.is_empty() {
            return Ok(u64::MAX);
        }
        self.layers.iter().try_fold(0, |mask, name| {
            match Layer::ALL.iter().find(|layer| layer.name() == name) {
                Some(layer) => Ok(mask | 1 << *layer as u8),
                None => {
                    let known: Vec<_> = Layer::ALL.iter().map(|layer| layer.name()).collect();
                    Err(Error::Setting {
                        key: "layers",
                        reason: format!("`{name}` is none of {}", known.join(", ")),
                    })
                }
            }
        })
    }
}

mod when_full {
    use miot_proto::control::WhenFull;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const NAMES: [(&str, WhenFull); 2] = [("drop-newest", WhenFull::DropNewest), ("wait", WhenFull::Wait)];

    pub(super) fn serialize<S: Serializer>(policy: &WhenFull, serializer: S) -> Result<S::Ok, S::Error> {
        let name = NAMES.iter().find(|(_, p)| p == policy).map_or("", |(name, _)| name);
        serializer.serialize_str(name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WhenFull, D::Error> {
        let text = String::deserialize(deserializer)?;
        NAMES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, policy)| *policy)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is neither `drop-newest` nor `wait`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed() {
        Config::default().check().unwrap();
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.lane_slots = 1000).contains("lane_slots"));
        assert!(with(|c| c.lane_slots = 65_536).contains("lane_slots_max"));
        assert!(with(|c| c.server = "nowhere".into()).contains("host:port"));
        assert!(with(|c| c.layers = vec!["posx".into()]).contains("posix"));
        assert!(with(|c| c.memory = 1).contains("memory"));
        assert!(with(|c| c.process_bytes = 100).contains("process_bytes"));
    }
}

//! Settings of a log-server.

use crate::error::Error;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use miot_proto::units;
use miot_proto::wire::{DEFAULT_PORT, MAX_FRAME};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is if nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/miot/log-server.toml";
/// Environment variables that override the file: this and the key in capitals.
pub const ENV_PREFIX: &str = "MIOT_SERVER_";

/// Settings of a log-server. In a file all keys are optional and unknown ones are an error. Sizes and durations are
/// written with their unit, see [`miot_proto::units`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address and port to listen on. Port 0: any. Default: `127.0.0.1:4747`.
    pub listen: String,
    /// Allows an address that other machines can reach, although nothing is encrypted and nobody proves who
    /// they are. Default: false.
    pub allow_insecure: bool,
    /// The trace directory: made if it is not there, continued if it is. Default: `/var/lib/miot/trace`.
    pub trace: PathBuf,
    /// How long a node that is silent or gone holds back the others. Its later events are marked late.
    /// Default: 5 s, minimum: 100 ms.
    #[serde(with = "units::duration")]
    pub silent_after: Duration,
    /// Memory for events that have been received and are not durable. When it is full, nodes that are ahead
    /// are not read. Default: 512 MiB, minimum: 32 MiB, two frames of the largest size.
    #[serde(with = "units::bytes")]
    pub memory: u64,
    /// Time between two merges. Default: 20 ms.
    #[serde(with = "units::duration")]
    pub merge_every: Duration,
    /// Least time between two commits: what arrives between shares one sync of the disk, and is
    /// acknowledged together. Default: 50 ms.
    #[serde(with = "units::duration")]
    pub commit_every: Duration,
    /// Most connections at a time. Default: 1024.
    pub connections: usize,
    /// Memory for one subscriber's unsent events; one that is slower is cut off. Default: 32 MiB.
    #[serde(with = "units::bytes")]
    pub tail_memory: u64,
    /// The live part is sealed at so many events. Default: 8388608.
    pub seal_rows: u64,
    /// The live part is sealed at this size. Default: 1 GiB.
    #[serde(with = "units::bytes")]
    pub seal_bytes: u64,
    /// The live part is sealed at this age. Default: 15 min.
    #[serde(with = "units::duration")]
    pub seal_after: Duration,
}

impl Default for Config {
    fn default() -> Config {
        let seal = miot_trace_store::Options::default();
        Config {
            listen: format!("127.0.0.1:{DEFAULT_PORT}"),
            allow_insecure: false,
            trace: PathBuf::from("/var/lib/miot/trace"),
            silent_after: Duration::from_secs(5),
            memory: 512 << 20,
            merge_every: Duration::from_millis(20),
            commit_every: Duration::from_millis(50),
            connections: 1024,
            tail_memory: 32 << 20,
            seal_rows: seal.seal_rows,
            seal_bytes: seal.seal_bytes,
            seal_after: seal.seal_after,
        }
    }
}

impl Config {
    /// Defaults, overridden by a file, overridden by the environment, overridden by `flags`. Without `file`
    /// it is [`DEFAULT_FILE`], if that exists.
    ///
    /// # Errors
    /// [`Error::Config`] with the key and where it came from.
    pub fn load(file: Option<&Path>, flags: impl Serialize) -> Result<Config, Error> {
        let mut sources = Figment::from(Serialized::defaults(Config::default()));
        match file {
            Some(file) if !file.is_file() => {
                return Err(Error::Config(format!("{}: there is no such file", file.display())));
            }
            Some(file) => sources = sources.merge(Toml::file_exact(file)),
            None if Path::new(DEFAULT_FILE).is_file() => {
                sources = sources.merge(Toml::file_exact(DEFAULT_FILE))
            }
            None => {}
        }
        // Names of environment variables are case-sensitive, keys are small.
        let environment = Env::prefixed(ENV_PREFIX).ignore(&["config", "log"]);
        let config: Config = sources
            .merge(environment)
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| Error::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<(), Error> {
        let fail = |reason: String| Err(Error::Config(reason));
        let Some((host, _)) = self.listen.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok())
        else {
            return fail(format!(
                "listen: `{}` is not of the form address:port, such as 127.0.0.1:4747",
                self.listen
            ));
        };
        if !self.allow_insecure && !is_loopback(host) {
            return fail(format!(
                "listen: other machines can reach {}, and connections are neither encrypted nor authenticated; \
                 listen on 127.0.0.1, or set `allow_insecure = true` if you trust everybody on that network",
                self.listen
            ));
        }
        if self.memory < 2 * MAX_FRAME as u64 {
            return fail(format!(
                "memory: {} is too little, at least 32 MiB are needed",
                units::format_bytes(self.memory)
            ));
        }
        if self.silent_after < Duration::from_millis(100) {
            return fail("silent_after: at least 100ms".into());
        }
        for (key, value) in [("merge_every", self.merge_every), ("commit_every", self.commit_every)] {
            if value > Duration::from_secs(10) {
                return fail(format!("{key}: at most 10s"));
            }
        }
        if self.connections == 0 {
            return fail("connections: at least 1".into());
        }
        Ok(())
    }

    pub(crate) fn store_options(&self) -> miot_trace_store::Options {
        miot_trace_store::Options {
            seal_rows: self.seal_rows,
            seal_bytes: self.seal_bytes,
            seal_after: self.seal_after,
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn load(text: &str, flags: BTreeMap<&str, &str>) -> Result<Config, Error> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log-server.toml");
        std::fs::write(&file, text).unwrap();
        Config::load(Some(&file), flags)
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "memory = \"64 MiB\"\nsilent_after = \"2s\"\ntrace = \"/a\"\nseal_bytes = 1048576";
        let config = load(text, [("trace", "/b")].into()).unwrap();
        assert_eq!(
            config,
            Config {
                memory: 64 << 20,
                silent_after: Duration::from_secs(2),
                trace: "/b".into(),
                seal_bytes: 1 << 20,
                ..Config::default()
            }
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("colour = 1", "colour"),
            ("memory = \"many\"", "many"),
            ("memory = \"1 MiB\"", "at least 32 MiB"),
            ("listen = \"0.0.0.0:1\"", "allow_insecure"),
            ("listen = \"127.0.0.1\"", "address:port"),
            ("silent_after = 5", "duration"),
        ] {
            let error = load(text, BTreeMap::new()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Config::load(Some(Path::new("/nowhere")), BTreeMap::<&str, &str>::new()).is_err());
    }

    #[test]
    fn only_the_own_machine_needs_no_leave() {
        for (listen, fine) in [
            ("127.0.0.2:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            let config = Config { listen: listen.into(), ..Config::default() };
            assert_eq!(config.check().is_ok(), fine, "{listen}");
            assert!(Config { allow_insecure: true, ..config }.check().is_ok());
        }
    }
}

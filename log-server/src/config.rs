//! Settings of a log-server.

use crate::error::Error;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use miot_daemon::settings;
use miot_proto::units;
use miot_proto::wire::{DEFAULT_PORT, MAX_FRAME};
use miot_tls::{Files, is_loopback};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is if nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/miot/log-server.toml";
/// Where HTTP is answered if nothing else is said.
pub const DEFAULT_HTTP: &str = "127.0.0.1:4748";
/// Environment variables that override the file: this and the key in capitals.
pub const ENV_PREFIX: &str = "MIOT_SERVER_";

/// One frame of the largest size, and what comes with it.
const LEAST_NODE_MEMORY: u64 = MAX_FRAME as u64 + (1 << 20);
/// A rate below this would take minutes for one frame.
const LEAST_RATE: u64 = 64 << 10;

/// Settings of a log-server. In a file all keys are optional and unknown ones are an error. Sizes and durations are
/// written with their unit, see [`miot_proto::units`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address and port to listen on. Port 0: any. Default: `127.0.0.1:4747`.
    pub listen: String,
    /// Address and port for metrics, health and the page; `off` for none. With TLS for readers and operators; without from
    /// this machine alone, unless `allow_insecure`. Default: `127.0.0.1:4748`, if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Allows an address that other machines can reach, although nothing is encrypted and nobody proves who
    /// they are. Default: false.
    pub allow_insecure: bool,
    /// This server's certificate, a PEM file (`miot pki server`). With it, `tls_key` and `tls_authority` everything is
    /// encrypted, and only those are served who have a certificate of the authority. Default: none.
    pub tls_certificate: Option<PathBuf>,
    /// Its private key, a PEM file that others cannot read. Default: none.
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities whose nodes and readers are served, a PEM file. Default: none.
    pub tls_authority: Option<PathBuf>,
    /// The trace directory: made if it is not there, continued if it is. Default: `/var/lib/miot/trace`.
    pub trace: PathBuf,
    /// When started as root: the user who it becomes once it listens, with no capabilities left. Default: none.
    pub user: Option<String>,
    /// How long a node that is silent or gone holds back the others. Its later events are marked late.
    /// Default: 5 s, minimum: 100 ms.
    #[serde(with = "units::duration")]
    pub silent_after: Duration,
    /// A node is warned of whose times may be more wrong than this. Default: 10 ms.
    #[serde(with = "units::duration")]
    pub clock_uncertainty: Duration,
    /// Memory for events that have been received and are not durable. When it is full, nodes that are ahead
    /// are not read. Default: 512 MiB, minimum: 32 MiB, two frames of the largest size.
    #[serde(with = "units::bytes")]
    pub memory: u64,
    /// Of [`Config::memory`], what one node may use at most; then it is not read. If even so nothing can be merged
    /// because its next promise is missing, the merge goes on without it. Default: a quarter of `memory`; at least
    /// one frame of the largest size, 17 MiB.
    #[serde(with = "optional_bytes", skip_serializing_if = "Option::is_none")]
    pub node_memory: Option<u64>,
    /// Time between two merges. Default: 20 ms, minimum: 1 ms.
    #[serde(with = "units::duration")]
    pub merge_every: Duration,
    /// Least time between two commits: what arrives between shares one sync of the disk, and is
    /// acknowledged together. Default: 50 ms.
    #[serde(with = "units::duration")]
    pub commit_every: Duration,
    /// Most connections of nodes and subscribers at a time; the last quarter is for nodes. Connections that have not
    /// said who they are do not count: there are at most 256, and the oldest makes room for the next. Default: 1024.
    pub connections: usize,
    /// Most connections of one node at a time. Only the latest is in use, those before it are being closed.
    /// Default: 8.
    pub node_connections: usize,
    /// Most bytes per second that are read from all nodes together, over any second; what is more waits at the nodes, in
    /// their spools. 0: as many as come. Default: 0, otherwise at least 64 KiB.
    #[serde(with = "units::bytes")]
    pub rate: u64,
    /// Most bytes per second that are read from one node, over any second; what is more waits at the node, in its
    /// spool. 0: as many as come. Default: 0, otherwise at least 64 KiB.
    #[serde(with = "units::bytes")]
    pub node_rate: u64,
    /// Most streams of one node that have not ended, and most processes. A node with more is refused, and keeps its
    /// events. Default: 262144, about 1.5 KB each while they are open.
    pub node_streams: usize,
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
    /// While the sealed parts take more than this, the oldest is removed. The live part, and parts being sealed, come
    /// on top. Default: 0, nothing is removed.
    #[serde(with = "units::bytes")]
    pub keep_bytes: u64,
    /// Sealed parts whose last event is older than this are removed. Default: 0s, nothing is removed.
    #[serde(with = "units::duration")]
    pub keep_for: Duration,
}

impl Default for Config {
    fn default() -> Config {
        let seal = miot_trace_store::Options::default();
        Config {
            listen: format!("127.0.0.1:{DEFAULT_PORT}"),
            http: None,
            allow_insecure: false,
            tls_certificate: None,
            tls_key: None,
            tls_authority: None,
            user: None,
            trace: PathBuf::from("/var/lib/miot/trace"),
            silent_after: Duration::from_secs(5),
            clock_uncertainty: Duration::from_millis(10),
            memory: 512 << 20,
            node_memory: None,
            merge_every: Duration::from_millis(20),
            commit_every: Duration::from_millis(50),
            connections: 1024,
            node_connections: 8,
            rate: 0,
            node_rate: 0,
            node_streams: 1 << 18,
            tail_memory: 32 << 20,
            seal_rows: seal.seal_rows,
            seal_bytes: seal.seal_bytes,
            seal_after: seal.seal_after,
            keep_bytes: 0,
            keep_for: Duration::ZERO,
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
            .map_err(|error| Error::Config(settings::explain(ENV_PREFIX, error)))?;
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
        if self.tls()?.is_none() && !self.allow_insecure && !is_loopback(host) {
            return fail(format!(
                "listen: other machines can reach {}, and connections are neither encrypted nor authenticated; \
                 make certificates with `miot pki`, listen on 127.0.0.1, or set `allow_insecure = true` if you trust \
                 everybody on that network",
                self.listen
            ));
        }
        if let Some(http) = &self.http {
            let checked = miot_daemon::http::check(http, Some(self.tls()?.is_some()), self.allow_insecure);
            checked.map_err(|reason| Error::Config(format!("http: {reason}")))?;
        }
        if self.memory < 2 * MAX_FRAME as u64 {
            return fail(format!(
                "memory: {} is too little, at least 32 MiB are needed",
                units::format_bytes(self.memory)
            ));
        }
        if self.silent_after < Duration::from_millis(100) {
            let found = units::format_duration(self.silent_after);
            return fail(format!("silent_after: {found} is too little, at least 100ms are needed"));
        }
        if self.merge_every < Duration::from_millis(1) {
            let found = units::format_duration(self.merge_every);
            return fail(format!(
                "merge_every: {found} is too little, at least 1ms is needed: the log-server would do nothing but look \
                 whether it can merge"
            ));
        }
        for (key, value) in [("merge_every", self.merge_every), ("commit_every", self.commit_every)] {
            if value > Duration::from_secs(10) {
                return fail(format!("{key}: {} is too much, at most 10s", units::format_duration(value)));
            }
        }
        for (key, value) in [
            ("connections", self.connections),
            ("node_connections", self.node_connections),
            ("node_streams", self.node_streams),
        ] {
            if value == 0 {
                return fail(format!("{key}: 0 would serve nobody, at least 1 is needed"));
            }
        }
        if let Some(bytes) = self.node_memory.filter(|bytes| *bytes < LEAST_NODE_MEMORY) {
            return fail(format!(
                "node_memory: {} is too little, at least 17 MiB are needed, for one frame of the largest size",
                units::format_bytes(bytes)
            ));
        }
        for (key, rate) in [("rate", self.rate), ("node_rate", self.node_rate)] {
            if (1..LEAST_RATE).contains(&rate) {
                return fail(format!(
                    "{key}: {} a second is too little, at least 64 KiB are needed, or 0 for no limit",
                    units::format_bytes(rate)
                ));
            }
        }
        Ok(())
    }

    /// All keys and values, as a configuration file has them.
    #[must_use]
    pub fn to_toml(&self) -> String {
        settings::to_toml(self)
    }

    /// Itself, but for the keys that can change while the server runs, which are taken from `other`.
    pub(crate) fn with_tuned_of(self, other: &Config) -> Config {
        Config {
            silent_after: other.silent_after,
            clock_uncertainty: other.clock_uncertainty,
            merge_every: other.merge_every,
            commit_every: other.commit_every,
            node_connections: other.node_connections,
            rate: other.rate,
            node_rate: other.node_rate,
            seal_rows: other.seal_rows,
            seal_bytes: other.seal_bytes,
            seal_after: other.seal_after,
            keep_bytes: other.keep_bytes,
            keep_for: other.keep_for,
            ..self
        }
    }

    /// The files of TLS; `None` without.
    ///
    /// # Errors
    /// [`Error::Tls`] if only some are given.
    pub(crate) fn tls(&self) -> Result<Option<Files>, Error> {
        let (certificate, key) = (self.tls_certificate.as_deref(), self.tls_key.as_deref());
        Ok(Files::new(certificate, key, self.tls_authority.as_deref())?)
    }

    /// See [`Config::node_memory`].
    pub(crate) fn node_memory(&self) -> u64 {
        self.node_memory.unwrap_or((self.memory / 4).max(LEAST_NODE_MEMORY)).min(self.memory)
    }

    pub(crate) fn store_options(&self) -> miot_trace_store::Options {
        miot_trace_store::Options {
            seal_rows: self.seal_rows,
            seal_bytes: self.seal_bytes,
            seal_after: self.seal_after,
            keep_bytes: (self.keep_bytes > 0).then_some(self.keep_bytes),
            keep_for: (!self.keep_for.is_zero()).then_some(self.keep_for),
        }
    }
}

/// A size that may be left out.
mod optional_bytes {
    use miot_proto::units;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(size: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => units::bytes::serialize(size, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        units::bytes::deserialize(deserializer).map(Some)
    }
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
    fn a_mistake_is_named_with_its_place() {
        for (text, words) in [
            (
                "silent_aftr = \"4s\"",
                "log-server.toml: silent_aftr: there is no such key; there are listen, ",
            ),
            ("silent_after = \"soon\"", "log-server.toml: silent_after: `soon` is not a duration such as "),
        ] {
            let error = load(text, BTreeMap::new()).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("default."), "{error}");
        }
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
    fn the_example_says_the_defaults() {
        let example = load(include_str!("../../deploy/log-server.toml"), BTreeMap::new()).unwrap();
        assert_eq!(example, Config::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("colour = 1", "colour"),
            ("memory = \"many\"", "many"),
            ("memory = \"1 MiB\"", "at least 32 MiB"),
            ("listen = \"0.0.0.0:1\"", "allow_insecure"),
            ("listen = \"0.0.0.0:1\"\ntls_key = \"/k\"", "`tls_certificate` is missing"),
            ("tls_certificate = \"/c\"\ntls_authority = \"/a\"", "`tls_key` is missing"),
            ("tls_certificate = \"/c\"\ntls_key = \"/k\"", "`tls_authority` is missing"),
            ("listen = \"127.0.0.1\"", "address:port"),
            ("silent_after = 5", "duration"),
            ("silent_after = \"50ms\"", "50ms is too little"),
            ("merge_every = \"1min\"", "1min is too much"),
            ("merge_every = \"0s\"", "0 is too little"),
            ("merge_every = \"900us\"", "900us is too little"),
            ("node_streams = 0", "at least 1"),
            ("node_memory = \"1 MiB\"", "1 MiB is too little"),
            ("rate = \"1 KiB\"", "1 KiB a second is too little"),
            ("node_rate = \"1 KiB\"", "1 KiB a second is too little"),
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
            assert!(Config { allow_insecure: true, ..config.clone() }.check().is_ok());
            let tls = |file: &str| Some(PathBuf::from(file));
            let (tls_certificate, tls_key, tls_authority) = (tls("c"), tls("k"), tls("a"));
            assert!(Config { tls_certificate, tls_key, tls_authority, ..config }.check().is_ok());
        }
    }
}

//! Settings of a log-server.

use crate::error::Error;
use miot_daemon::settings;
use miot_proto::units;
use miot_proto::wire::{DEFAULT_PORT, MAX_FRAME, MemberIdentity};
use miot_tls::{Files, is_loopback};
use miot_trace_store::ids::MAX_PARTITION;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default path of the configuration file.
pub const DEFAULT_FILE: &str = "/etc/miot/log-server.toml";
/// Default address for HTTP.
pub const DEFAULT_HTTP: &str = "127.0.0.1:4748";
/// Prefix of environment variables that override the file; the key in capitals follows.
pub const ENV_PREFIX: &str = "MIOT_SERVER_";

/// One frame of maximum size, and its overhead; bytes.
const MIN_NODE_MEMORY: u64 = MAX_FRAME as u64 + (1 << 20);
/// Maximum length of the name of a cluster, bytes.
const MAX_CLUSTER: usize = 64;
/// With a lower rate, one frame would take minutes; bytes per second.
const MIN_RATE: u64 = 64 << 10;

/// Settings of a log-server. In a file, all keys are optional and unknown keys are an error. Sizes
/// and durations have units, see [`miot_proto::units`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address and port to listen on. Port 0: any free port. Default: `127.0.0.1:4747`.
    pub listen: String,
    /// Address and port for metrics, health and the web page; `off`: none. With TLS, the page is
    /// for readers and operators. Without TLS, it is served only to this machine, unless
    /// `allow_insecure` is set. Default: `127.0.0.1:4748`, if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Allows an address that other machines can reach without encryption and authentication.
    /// Default: false.
    pub allow_insecure: bool,
    /// Certificate of this server, a PEM file (`miot pki server`). With `tls_certificate`,
    /// `tls_key` and `tls_authority`, all connections are encrypted, and only peers with a
    /// certificate of the authority are served. Default: none.
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file that other users cannot read. Default: none.
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities whose nodes and readers are served, a PEM file. Default:
    /// none.
    pub tls_authority: Option<PathBuf>,
    /// A broker through which nodes send, beside those that connect to `listen`: a NATS server with
    /// JetStream, `nats://host:port` or, encrypted, `tls://host:port`; several addresses of one
    /// broker are separated by commas. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Stream of the broker, of several log-servers each another one; also the first part of the
    /// subjects. It is created if it is missing. Default: `MIOT`.
    pub broker_stream: String,
    /// File with credentials for the broker: a `.creds` file, a seed of an nkey, a line
    /// `token = TOKEN`, or lines `user = NAME` and `password = PASSWORD`. Default: none.
    pub broker_credentials: Option<PathBuf>,
    /// Certificates of the authorities that may sign the broker's certificate, a PEM file; with it,
    /// the connection is encrypted. Default: none, those of the system with `tls://`.
    pub broker_authority: Option<PathBuf>,
    /// Certificate of this server for the broker, a PEM file. Default: none.
    pub broker_certificate: Option<PathBuf>,
    /// Private key of the certificate for the broker, a PEM file. Default: none.
    pub broker_key: Option<PathBuf>,
    /// Trace directory: created if it does not exist, continued if it does. Default:
    /// `/var/lib/miot/trace`.
    pub trace: PathBuf,
    /// Partition of the ids of processes, streams and files: 0 to 1023. Several log-servers whose
    /// traces are read as one table have different ones. A trace is continued only with the
    /// partition that it was begun with. Default: 0.
    pub partition: u16,
    /// Name of the cluster, at most 64 bytes. Log-servers of one set have the same one. A trace is
    /// continued only with the name that it was begun with. Default: empty, none.
    pub cluster: String,
    /// User to switch to when started as root, once the server listens; all capabilities are
    /// dropped. Default: none.
    pub user: Option<String>,
    /// Time for which a silent or disconnected node holds back the others. Its later events are
    /// marked late. After a start of the log-server, nodes of the trace that have not returned hold
    /// them back for 10 s and 2 ms per node longer. While more than 1250 nodes connect at the same
    /// time, connected nodes may be silent for 4 ms per node that connects. Default: 5 s,
    /// minimum: 100 ms.
    #[serde(with = "units::duration")]
    pub silent_after: Duration,
    /// Nodes whose times may have a larger error than this are logged as a warning. Default: 10 ms.
    #[serde(with = "units::duration")]
    pub clock_uncertainty: Duration,
    /// Memory for events that were received and are not durable. When it is full, nodes that are
    /// ahead are not read. Durable events that wait for sealing (at most 524,288, about 64 MiB) are
    /// not included. Default: 512 MiB, minimum: 32 MiB, two frames of maximum size.
    #[serde(with = "units::bytes")]
    pub memory: u64,
    /// Maximum part of [`Config::memory`] for one node; a node that uses it up is not read. If
    /// nothing can be merged then because the node's next watermark is missing, the merge continues
    /// without the node. Default: a quarter of `memory`; minimum: one frame of maximum size, 17
    /// MiB.
    #[serde(with = "optional_bytes", skip_serializing_if = "Option::is_none")]
    pub node_memory: Option<u64>,
    /// Time between two merges. Default: 20 ms, minimum: 1 ms.
    #[serde(with = "units::duration")]
    pub merge_every: Duration,
    /// Minimum time between two commits: events that arrive in between share one sync of the disk,
    /// and are acknowledged together. Default: 50 ms.
    #[serde(with = "units::duration")]
    pub commit_every: Duration,
    /// Maximum number of connections of nodes and subscribers; the last quarter is for nodes.
    /// Connections before their greeting do not count: there are at most as many, or 256, and the
    /// oldest is closed for the next one. Default: 1024.
    pub connections: usize,
    /// Maximum number of connections of one node. Only the latest is in use; earlier ones are being
    /// closed. Default: 8.
    pub node_connections: usize,
    /// Maximum rate of reading from all nodes together, bytes per second, over any second; further
    /// events wait in the spools of the nodes. 0: no limit. Default: 0, minimum otherwise: 64 KiB.
    #[serde(with = "units::bytes")]
    pub rate: u64,
    /// Maximum rate of reading from one node, bytes per second, over any second; further events
    /// wait in the spool of the node. 0: no limit. Default: 0, minimum otherwise: 64 KiB.
    #[serde(with = "units::bytes")]
    pub node_rate: u64,
    /// Maximum number of streams of one node that have not ended, and of processes. A node with
    /// more is refused, and keeps its events. Default: 262144, about 1.5 KB each while they are
    /// open.
    pub node_streams: usize,
    /// Memory for the unsent events of one subscriber; a slower subscriber is cut off. Default: 32
    /// MiB.
    #[serde(with = "units::bytes")]
    pub tail_memory: u64,
    /// Number of events at which the live part is sealed. Default: 8388608.
    pub seal_rows: u64,
    /// Size at which the live part is sealed. Default: 1 GiB.
    #[serde(with = "units::bytes")]
    pub seal_bytes: u64,
    /// Age at which the live part is sealed. Default: 15 min.
    #[serde(with = "units::duration")]
    pub seal_after: Duration,
    /// Maximum size of all sealed parts; the oldest are removed. The live part, and parts being
    /// sealed, come on top. Default: 0, no part is removed.
    #[serde(with = "units::bytes")]
    pub keep_bytes: u64,
    /// Sealed parts whose last event is older than this are removed. Default: 0s, no part is
    /// removed.
    #[serde(with = "units::duration")]
    pub keep_for: Duration,
    /// Address of an object store, e.g. `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix` or `file:///folder`. The service `miot-uploader` copies sealed parts
    /// to it, and no part is removed here before the store has it. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Program and arguments that `miot-uploader` runs for each part that it has copied, e.g.
    /// `["/usr/lib/miot/register-ducklake", "sqlite:/data/catalog.sqlite"]` to add it to a table
    /// catalog. A part counts as copied once the program has succeeded. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub register: Vec<String>,
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
            transport: None,
            broker_stream: "MIOT".into(),
            broker_credentials: None,
            broker_authority: None,
            broker_certificate: None,
            broker_key: None,
            trace: PathBuf::from("/var/lib/miot/trace"),
            partition: 0,
            cluster: String::new(),
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
            store: None,
            register: Vec::new(),
        }
    }
}

impl Config {
    /// Loads the configuration: defaults, overridden by a file, overridden by the environment,
    /// overridden by `flags`. The default file is [`DEFAULT_FILE`], if it exists.
    ///
    /// # Errors
    /// [`Error::Config`] with the key and its source.
    pub fn load(file: Option<&Path>, flags: impl Serialize) -> Result<Config, Error> {
        let loaded = miot_daemon::config::load(file, Path::new(DEFAULT_FILE), ENV_PREFIX, flags);
        let config: Config = loaded.map_err(|error| Error::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Checks the values beyond their types.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<(), Error> {
        let fail = |reason: String| Err(Error::Config(reason));
        let Some((host, _)) = self.listen.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok())
        else {
            return fail(format!(
                "listen: `{}` is not of the form address:port, e.g. 127.0.0.1:4747",
                self.listen
            ));
        };
        if self.tls()?.is_none() && !self.allow_insecure && !is_loopback(host) {
            return fail(format!(
                "listen: other machines can reach {}, and connections are neither encrypted nor authenticated; \
                 create certificates with `miot pki`, listen on 127.0.0.1, or set `allow_insecure = true` if you trust \
                 everybody on that network",
                self.listen
            ));
        }
        if let Some(http) = &self.http {
            let checked = miot_daemon::http::check(http, Some(self.tls()?.is_some()), self.allow_insecure);
            checked.map_err(|error| Error::Config(format!("http: {error}")))?;
        }
        if let Some(broker) = self.broker() {
            broker.check(self.allow_insecure)?;
        }
        if self.partition > MAX_PARTITION {
            return fail(format!("partition: {} is too much, at most {MAX_PARTITION}", self.partition));
        }
        if self.cluster.len() > MAX_CLUSTER || self.cluster.chars().any(char::is_control) {
            return fail(format!("cluster: expected a name of at most {MAX_CLUSTER} bytes"));
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
                "merge_every: {found} is too little, at least 1ms is needed: otherwise the log-server only checks whether \
                 it can merge"
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
                return fail(format!("{key}: with 0 no node can be served, at least 1 is needed"));
            }
        }
        if let Some(bytes) = self.node_memory.filter(|bytes| *bytes < MIN_NODE_MEMORY) {
            return fail(format!(
                "node_memory: {} is too little, at least 17 MiB are needed, for one frame of maximum size",
                units::format_bytes(bytes)
            ));
        }
        for (key, rate) in [("rate", self.rate), ("node_rate", self.node_rate)] {
            if (1..MIN_RATE).contains(&rate) {
                return fail(format!(
                    "{key}: {} a second is too little, at least 64 KiB are needed, or 0 for no limit",
                    units::format_bytes(rate)
                ));
            }
        }
        Ok(())
    }

    /// The broker; `None` without one.
    #[must_use]
    pub fn broker(&self) -> Option<miot_broker::Settings> {
        Some(miot_broker::Settings {
            url: self.transport.clone()?,
            stream: self.broker_stream.clone(),
            credentials: self.broker_credentials.clone(),
            authority: self.broker_authority.clone(),
            certificate: self.broker_certificate.clone(),
            key: self.broker_key.clone(),
            window: miot_broker::MIN_WINDOW,
        })
    }

    /// Returns all keys and values in the format of a configuration file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        settings::to_toml(self)
    }

    /// Returns a copy with the keys that can change at run time taken from `other`.
    pub(crate) fn with_tunable_keys_of(self, other: &Config) -> Config {
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

    /// Identity in a set of log-servers.
    pub(crate) fn identity(&self) -> MemberIdentity {
        MemberIdentity { cluster: self.cluster.clone(), partition: self.partition }
    }

    /// Files for TLS; `None` without TLS.
    ///
    /// # Errors
    /// [`Error::Tls`] if only some are set.
    pub(crate) fn tls(&self) -> Result<Option<Files>, Error> {
        let (certificate, key) = (self.tls_certificate.as_deref(), self.tls_key.as_deref());
        Ok(Files::new(certificate, key, self.tls_authority.as_deref())?)
    }

    /// See [`Config::node_memory`].
    pub(crate) fn node_memory(&self) -> u64 {
        self.node_memory.unwrap_or((self.memory / 4).max(MIN_NODE_MEMORY)).min(self.memory)
    }

    pub(crate) fn store_options(&self) -> miot_trace_store::Options {
        miot_trace_store::Options {
            seal_rows: self.seal_rows,
            seal_bytes: self.seal_bytes,
            seal_after: self.seal_after,
            keep_bytes: (self.keep_bytes > 0).then_some(self.keep_bytes),
            keep_for: (!self.keep_for.is_zero()).then_some(self.keep_for),
            store: self.store.clone(),
            partition: self.partition,
            cluster: self.cluster.clone(),
        }
    }
}

/// An optional size.
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
    fn errors_name_the_source_and_the_key() {
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
    fn flags_override_the_file_which_overrides_defaults() {
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
    fn example_file_has_the_defaults() {
        let example = load(include_str!("../../../deploy/log-server.toml"), BTreeMap::new()).unwrap();
        assert_eq!(example, Config::default());
    }

    #[test]
    fn errors_name_the_wrong_value() {
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
    fn only_loopback_addresses_need_no_permission() {
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

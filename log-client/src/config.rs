//! Settings of a log-client.

pub mod recording;

use crate::error::Error;
use miot_broker::Settings as Broker;
use miot_daemon::settings;
use miot_proto::control::{DEFAULT_DIR, DIR_ENV, MAX_EXCLUSION_BYTES, Settings, WhenFull, exclusion_list};
use miot_proto::event::SLOT_BYTES;
use miot_proto::segment::{MAX_LANE_SLOTS, MAX_SEGMENT_BYTES, MIN_LANE_SLOTS};
use miot_proto::units;
use miot_proto::wire::{DEFAULT_PORT, MAX_FRAME};
use miot_tls::{Files, is_loopback};
use recording::{Layers, Ops, SampleRate, SettingsChange};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Configuration file that is read by default, if it exists.
pub const DEFAULT_FILE: &str = "/etc/miot/log-client.toml";
/// Address for HTTP by default.
pub const DEFAULT_HTTP: &str = "127.0.0.1:4749";
/// Prefix of the environment variables that override the file; the key in capitals follows.
pub const ENV_PREFIX: &str = "MIOT_CLIENT_";

/// Settings of a log-client. In a file all keys are optional, and unknown keys are an error. Sizes
/// and durations are written with their unit, see [`miot_proto::units`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The MIOT directory of the node. Producers find the control page there and create their
    /// segments there. Default: `$MIOT_DIR`, else `/dev/shm/miot`.
    pub dir: PathBuf,
    /// Name of this node in the trace. Default: the host name.
    pub node: String,
    /// The log-server, `host:port`. Default: `localhost:4747`.
    pub server: String,
    /// Several log-servers, `host:port` each; they take precedence over `server`. Each node has one
    /// of them, by a hash of its name; each gets its share of the nodes. A text may separate them
    /// by commas. Default: none.
    #[serde(deserialize_with = "server_list")]
    pub servers: Vec<String>,
    /// Time without a connection after which new records go to the next of several log-servers, and
    /// time for which the preferred one must answer before they return to it. Records that the
    /// first one has not acknowledged wait for it. Default: 0, a node waits for its log-server;
    /// minimum otherwise: 1 s.
    #[serde(with = "units::duration")]
    pub fail_over_after: Duration,
    /// A broker between this node and the log-server, a NATS server with JetStream, instead of
    /// `server`: `nats://host:port` or, encrypted, `tls://host:port`; several addresses of one
    /// broker are separated by commas. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Stream of the broker, one for each log-server; also the first part of the subjects. Default:
    /// `MIOT`.
    pub broker_stream: String,
    /// File with credentials for the broker: a `.creds` file, a seed of an nkey, a line
    /// `token = TOKEN`, or lines `user = NAME` and `password = PASSWORD`. Default: none.
    pub broker_credentials: Option<PathBuf>,
    /// Certificates of the authorities that may sign the broker's certificate, a PEM file; with it,
    /// the connection is encrypted. Default: none, those of the system with `tls://`.
    pub broker_authority: Option<PathBuf>,
    /// Certificate of this node for the broker, a PEM file. Default: none.
    pub broker_certificate: Option<PathBuf>,
    /// Private key of the certificate for the broker, a PEM file. Default: none.
    pub broker_key: Option<PathBuf>,
    /// Maximum bytes of this node in the broker that the log-server has not read. Default: 64 MiB,
    /// minimum: 4 MiB.
    #[serde(with = "units::bytes")]
    pub broker_window: u64,
    /// Address and port for metrics and health; `off` for none. HTTP is not encrypted, so an
    /// address that other machines can reach requires `allow_insecure`. The log-server reports the
    /// same figures. Default: `127.0.0.1:4749`, if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Allows a log-server on another machine without TLS. The connection is then neither encrypted
    /// nor authenticated. Default: false.
    pub allow_insecure: bool,
    /// Certificate of this node, a PEM file (`miot pki node`). With `tls_certificate`, `tls_key`
    /// and `tls_authority` the connection is encrypted, the log-server authenticates as `server`,
    /// and the node as `node`. Default: none.
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file that other users cannot read. Default: none.
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities that may sign the log-server's certificate, a PEM file.
    /// Default: none.
    pub tls_authority: Option<PathBuf>,
    /// User to switch to when started as root, with only the capabilities needed to read other
    /// users' segments. Default: none; the user stays, with the same reduced capabilities.
    pub user: Option<String>,
    /// Whether recording is on before `miot ctl on`. Default: true.
    pub enabled: bool,
    /// Layers to record, by name, see [`Layers`]. Default: all.
    pub layers: Layers,
    /// Operations to record, by name, see [`Ops`]. Default: all.
    pub ops: Ops,
    /// Requests shorter than this are not recorded and are counted as filtered. Default: 0.
    #[serde(with = "units::duration")]
    pub min_duration: Duration,
    /// One request in a power of two is recorded; the others are counted as filtered. Default: 1.
    pub sample: SampleRate,
    /// Records the CPU time of the thread with each request. Costs a system call and a second slot
    /// per request. Default: false.
    pub cpu_time: bool,
    /// Policy of a producer whose lane is full: `drop-newest` never delays the application, `wait`
    /// keeps the trace complete at the application's cost, `overwrite-oldest` keeps the latest
    /// records. Default: `drop-newest`.
    #[serde(with = "recording::when_full")]
    pub when_full: WhenFull,
    /// Flight recorder: lanes overwrite their oldest records and are read only for a snapshot
    /// (`miot ctl snapshot`, SIGUSR1) and when their thread or process ends. Default: false.
    pub flight_recorder: bool,
    /// Maximum time that the policy `wait` waits for one record; then the record is dropped.
    /// Default: 10 s.
    #[serde(with = "units::duration")]
    pub wait: Duration,
    /// Slots (64 bytes each) of a thread's first lane; a power of two, at least 256. Default: 512,
    /// so that 500 idle processes with 8 threads each take 125 MiB.
    pub lane_slots: u64,
    /// Maximum slots of a lane; a lane that fills is replaced by a larger one up to this size.
    /// Default: 32768, capacity for a burst of 20 000 records.
    pub lane_slots_max: u64,
    /// Maximum shared memory of one process. Default: 64 MiB.
    #[serde(with = "units::bytes")]
    pub process_bytes: u64,
    /// Maximum shared memory of all segments of the node together. When it is used up, threads get
    /// no more lanes and no larger ones, and their records are lost as `no_lane`, until processes
    /// end. Checked once a second; the size of the MIOT directory's file system is the only limit
    /// that holds immediately. Default: 1 GiB.
    #[serde(with = "units::bytes")]
    pub node_bytes: u64,
    /// Programs that are not recorded even if the hook is loaded into them, by name or full path of
    /// their executable: for nodes on which everything is traced. Decided when a program makes its
    /// first request. Default: none.
    pub exclude_programs: Vec<String>,
    /// Users whose programs are not recorded, by name or number. Default: none.
    pub exclude_users: Vec<String>,
    /// Maximum number of segments (processes) read at a time; further ones are queued. Default:
    /// 8192.
    pub segments: usize,
    /// Directory for batches that the log-server has not acknowledged. It survives a restart of the
    /// log-client; on a disk it also survives a restart of the node. Default: `spool` in `dir`.
    pub spool_dir: Option<PathBuf>,
    /// Policy for a full spool: `keep-oldest` stops reading the lanes, so that `when_full` decides;
    /// `keep-newest` drops the oldest events of the spool. Default: `keep-oldest`.
    pub spool_full: SpoolFull,
    /// Maximum size of the spool in bytes; with several log-servers, of the spool for each.
    /// Definitions and ends of processes and threads, some hundred bytes each, are added even if it
    /// is full.
    ///
    /// Default: 64 MiB, minimum: 16 MiB, the maximum size of a frame.
    #[serde(with = "units::bytes")]
    pub spool_bytes: u64,
    /// Maximum sleep between two sweeps: bounds how late an event is read. After a second without
    /// events it is 1.5 times longer, and with hundreds of processes up to 2.5 times, so that
    /// polling stays cheap. While nobody follows the trace it is at least 250 ms, or 1.6 s if the
    /// log-server has thousands of nodes. While no node of the cluster has events it is 1 s; the
    /// next request ends that. Default: 40 ms.
    #[serde(with = "units::duration")]
    pub idle: Duration,
    /// Interval at which the kernel's counters of block devices and mounted network file systems
    /// are read and sent, for the table `devices`. Default: 10 s, minimum: 100 ms; 0: never.
    #[serde(with = "units::duration")]
    pub devices_every: Duration,
    /// A connection is closed and reopened if the log-server sends nothing for this long, or if the
    /// network does not accept data for this long. Default: 30 s, minimum: 20 s, twice the interval
    /// at which a log-server sends something.
    #[serde(with = "units::duration")]
    pub dead_after: Duration,
    /// Maximum duration of a clean stop. Messages that the log-server has not acknowledged by then
    /// are reported as undelivered. Default: 10 s.
    #[serde(with = "units::duration")]
    pub stop: Duration,
    /// A clean stop leaves everything to the next log-client: programs continue to record, and
    /// unacknowledged messages stay in the spool. For restarts and upgrades. Without it,
    /// [`LogClient::run`](crate::LogClient::run) ends recording. Default: false.
    pub hand_over: bool,
    /// Programs of all users are recorded, whatever the MIOT directory: it is created for, or
    /// opened to, all users (mode 1777). The daemon sets this when root starts it; in root's
    /// default directory it always holds. Not a key of the file.
    #[serde(skip)]
    pub of_all_users: bool,
}

/// Policy for a full spool, see [`Config::spool_full`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpoolFull {
    /// The spool keeps its content; no more records are taken from the lanes.
    #[default]
    KeepOldest,
    /// The oldest events are dropped and reported as lost.
    KeepNewest,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: std::env::var_os(DIR_ENV)
                .filter(|dir| !dir.is_empty())
                .map_or_else(|| DEFAULT_DIR.into(), PathBuf::from),
            node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            server: format!("localhost:{DEFAULT_PORT}"),
            servers: Vec::new(),
            fail_over_after: Duration::ZERO,
            transport: None,
            broker_stream: "MIOT".into(),
            broker_credentials: None,
            broker_authority: None,
            broker_certificate: None,
            broker_key: None,
            broker_window: 64 << 20,
            http: None,
            allow_insecure: false,
            tls_certificate: None,
            tls_key: None,
            tls_authority: None,
            user: None,
            enabled: true,
            layers: Layers::default(),
            ops: Ops::default(),
            min_duration: Duration::ZERO,
            cpu_time: false,
            sample: SampleRate::default(),
            when_full: WhenFull::DropNewest,
            flight_recorder: false,
            wait: Duration::from_secs(10),
            lane_slots: 512,
            lane_slots_max: 32_768,
            process_bytes: 64 << 20,
            node_bytes: 1 << 30,
            exclude_programs: Vec::new(),
            exclude_users: Vec::new(),
            segments: 8192,
            spool_dir: None,
            spool_full: SpoolFull::default(),
            spool_bytes: 64 << 20,
            idle: Duration::from_millis(40),
            devices_every: Duration::from_secs(10),
            dead_after: Duration::from_secs(30),
            stop: Duration::from_secs(10),
            hand_over: false,
            of_all_users: false,
        }
    }
}

impl Config {
    /// Reads the file (`None`: [`DEFAULT_FILE`] if it exists), then the environment, then `flags`.
    /// Options that are not given must not be serialized in `flags`.
    ///
    /// # Errors
    /// [`Error::Config`] names an unknown key or an invalid value, and its source.
    pub fn load(file: Option<&Path>, flags: &impl Serialize) -> Result<Config, Error> {
        let loaded = miot_daemon::config::load(file, Path::new(DEFAULT_FILE), ENV_PREFIX, flags);
        let config: Config = loaded.map_err(|error| Error::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Checks the constraints that the types do not express.
    ///
    /// # Errors
    /// [`Error::Setting`], with the key.
    pub fn check(&self) -> Result<(), Error> {
        if !self.dir.is_absolute() {
            return invalid("dir", format!("`{}` is not an absolute path", self.dir.display()));
        }
        if self.node.is_empty() || self.node.len() > 255 {
            return invalid("node", "expected a name of 1 to 255 bytes".into());
        }
        self.check_connection()?;
        self.settings()?;
        self.check_memory()?;
        self.left_out()?;
        if self.segments == 0 {
            return invalid("segments", "at least 1".into());
        }
        self.check_spool()?;
        self.check_times()
    }

    fn check_connection(&self) -> Result<(), Error> {
        match self.broker() {
            Some(broker) => self.check_broker(&broker)?,
            None => self.check_servers()?,
        }
        if let Some(http) = &self.http {
            let checked = miot_daemon::http::check(http, None, self.allow_insecure);
            checked.map_err(|error| Error::Setting { key: "http", reason: error.to_string() })?;
        }
        Ok(())
    }

    fn check_broker(&self, broker: &Broker) -> Result<(), Error> {
        broker.check(self.allow_insecure)?;
        broker.up(&self.node)?;
        if !self.servers.is_empty() {
            let reason = "goes with one log-server: remove `servers`, and give each log-server its own `broker_stream`";
            return invalid("transport", reason.into());
        }
        if self.tls()?.is_some() {
            let reason = "with a broker, `broker_authority`, `broker_certificate` and `broker_key` encrypt the connection: \
                          remove `tls_certificate`, `tls_key` and `tls_authority`";
            return invalid("transport", reason.into());
        }
        Ok(())
    }

    fn check_servers(&self) -> Result<(), Error> {
        let key = if self.servers.is_empty() { "server" } else { "servers" };
        let members = self.members();
        for (index, server) in members.iter().enumerate() {
            let Some((host, _)) = server
                .rsplit_once(':')
                .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            else {
                return invalid(key, format!("`{server}` is not of the form host:port"));
            };
            if members[..index].contains(server) {
                return invalid(key, format!("{server} is there twice"));
            }
            if self.tls()?.is_none() && !self.allow_insecure && !is_loopback(host) {
                let reason = format!(
                    "{host} is another machine, and without TLS the connection is neither encrypted nor authenticated: \
                     create certificates with `miot pki`, or set `allow_insecure = true` on a trusted network"
                );
                return invalid(key, reason);
            }
        }
        if !self.fail_over_after.is_zero() && self.fail_over_after < Duration::from_secs(1) {
            return invalid("fail_over_after", "at least 1s, or 0 for never".into());
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), Error> {
        let lanes = MIN_LANE_SLOTS..=MAX_LANE_SLOTS;
        for (key, slots) in [("lane_slots", self.lane_slots), ("lane_slots_max", self.lane_slots_max)] {
            if !lanes.contains(&slots) || !slots.is_power_of_two() {
                let range = format!("{MIN_LANE_SLOTS} to {MAX_LANE_SLOTS}");
                return invalid(key, format!("{slots} is not a power of two from {range}"));
            }
        }
        let (slots, max) = (self.lane_slots, self.lane_slots_max);
        if slots > max {
            return invalid("lane_slots", format!("{slots} is more than lane_slots_max ({max})"));
        }
        let least = slots * SLOT_BYTES as u64 * 2;
        if !(least..=MAX_SEGMENT_BYTES).contains(&self.process_bytes) {
            let range = format!("{least} to {MAX_SEGMENT_BYTES}");
            return invalid("process_bytes", format!("{} is not from {range}", self.process_bytes));
        }
        Ok(())
    }

    fn check_spool(&self) -> Result<(), Error> {
        if let Some(spool) = self.spool_dir.as_ref().filter(|spool| !spool.is_absolute()) {
            return invalid("spool_dir", format!("`{}` is not an absolute path", spool.display()));
        }
        if self.spool_bytes < MAX_FRAME as u64 {
            let found = self.spool_bytes;
            let reason = format!("{found} is less than the maximum size of a frame, {MAX_FRAME}");
            return invalid("spool_bytes", reason);
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Error> {
        if !self.devices_every.is_zero() && self.devices_every < Duration::from_millis(100) {
            return invalid("devices_every", "at least 100ms, or 0 for never".into());
        }
        if self.dead_after < Duration::from_secs(20) {
            return invalid("dead_after", "at least 20s".into());
        }
        if self.idle < Duration::from_millis(1) || self.idle > Duration::from_secs(1) {
            return invalid("idle", "from 1ms to 1s".into());
        }
        Ok(())
    }

    /// The list of programs and users that are not recorded, in the format of the control page.
    ///
    /// # Errors
    /// [`Error::Setting`] for an unknown user, or too many names.
    pub(crate) fn left_out(&self) -> Result<Vec<u8>, Error> {
        let fail = |key, reason: String| Error::Setting { key, reason };
        let invalid = |name: &&String| name.is_empty() || name.contains('\0');
        if let Some(name) = self.exclude_programs.iter().find(invalid) {
            return Err(fail("exclude_programs", format!("{name:?} is not the name of a program")));
        }
        let users = self.exclude_users.iter().map(|user| match user.parse() {
            Ok(number) => Ok(number),
            Err(_) => miot_daemon::User::find(user).map(|found| found.uid()),
        });
        let users: Vec<u32> =
            users.collect::<Result<_, _>>().map_err(|error| fail("exclude_users", error.to_string()))?;
        let too_long = || fail("exclude_programs", format!("more than {MAX_EXCLUSION_BYTES} bytes of names"));
        exclusion_list(&self.exclude_programs, &users).ok_or_else(too_long)
    }

    /// Addresses of the log-servers: one, or several; with a broker, its address.
    #[must_use]
    pub fn members(&self) -> Vec<String> {
        if let Some(broker) = &self.transport {
            return vec![broker.clone()];
        }
        if self.servers.is_empty() { vec![self.server.clone()] } else { self.servers.clone() }
    }

    /// The broker; `None` without one.
    #[must_use]
    pub fn broker(&self) -> Option<Broker> {
        Some(Broker {
            url: self.transport.clone()?,
            stream: self.broker_stream.clone(),
            credentials: self.broker_credentials.clone(),
            authority: self.broker_authority.clone(),
            certificate: self.broker_certificate.clone(),
            key: self.broker_key.clone(),
            window: self.broker_window,
        })
    }

    /// The TLS files; `None` without TLS.
    ///
    /// # Errors
    /// [`Error::Tls`] if only some of the three are given.
    pub(crate) fn tls(&self) -> Result<Option<Files>, Error> {
        let (certificate, key) = (self.tls_certificate.as_deref(), self.tls_key.as_deref());
        Ok(Files::new(certificate, key, self.tls_authority.as_deref())?)
    }

    /// All keys and values, in the format of a configuration file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        settings::to_toml(self)
    }

    /// `self` with the keys that [`settings`](Self::settings) is made of replaced by those of
    /// `other`.
    #[must_use]
    pub fn with_control_settings_of(self, other: &Config) -> Config {
        Config {
            enabled: other.enabled,
            layers: other.layers,
            ops: other.ops.clone(),
            min_duration: other.min_duration,
            sample: other.sample,
            cpu_time: other.cpu_time,
            when_full: other.when_full,
            wait: other.wait,
            lane_slots: other.lane_slots,
            lane_slots_max: other.lane_slots_max,
            process_bytes: other.process_bytes,
            flight_recorder: other.flight_recorder,
            ..self
        }
    }

    /// The settings for the control page.
    ///
    /// # Errors
    /// [`Error::Setting`] for settings that conflict.
    pub fn settings(&self) -> Result<Settings, Error> {
        let mut settings = Settings {
            lane_slots: self.lane_slots,
            lane_slots_max: self.lane_slots_max,
            process_bytes: self.process_bytes,
            cpu_time: self.cpu_time,
            ..Settings::default()
        };
        let change = SettingsChange {
            enabled: Some(self.enabled),
            wait: Some(self.wait),
            layers: Some(self.layers),
            ops: Some(self.ops.clone()),
            min_duration: Some(self.min_duration),
            sample: Some(self.sample),
            // The flight recorder's policy overrides the default policy.
            when_full: Some(self.when_full)
                .filter(|policy| !(self.flight_recorder && *policy == WhenFull::DropNewest)),
            flight_recorder: Some(self.flight_recorder),
        };
        change
            .apply_to(&mut settings)
            .map_err(|error| Error::Setting { key: "flight_recorder", reason: error.to_string() })?;
        Ok(settings)
    }
}

/// A list of addresses, or a text with commas.
fn server_list<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a list of addresses, or a text such as \"a:4747,b:4747\"")]
    enum Addresses {
        List(Vec<String>),
        Text(String),
    }
    let list = match Addresses::deserialize(deserializer)? {
        Addresses::List(list) => list,
        Addresses::Text(text) => text.split(',').map(|address| address.trim().to_owned()).collect(),
    };
    Ok(list.into_iter().filter(|address| !address.is_empty()).collect())
}

fn invalid<T>(key: &'static str, reason: String) -> Result<T, Error> {
    Err(Error::Setting { key, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct NoFlags {}

    #[test]
    fn default_settings_are_valid() {
        Config::default().check().unwrap();
    }

    #[test]
    fn printed_configuration_can_be_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log-client.toml");
        let config = Config {
            ops: "-posix.lseek".parse().unwrap(),
            sample: "1/16".parse().unwrap(),
            min_duration: Duration::from_micros(100),
            enabled: false,
            spool_dir: Some("/var/spool".into()),
            spool_full: SpoolFull::KeepNewest,
            exclude_programs: vec!["sshd".into(), "/opt/a b\"c\\d".into()],
            exclude_users: vec!["root".into(), "4711".into()],
            servers: vec!["localhost:1".into(), "localhost:2".into()],
            fail_over_after: Duration::from_secs(600),
            ..Config::default()
        };
        std::fs::write(&file, config.to_toml()).unwrap();
        assert_eq!(Config::load(Some(&file), &NoFlags {}).unwrap(), config);
    }

    #[test]
    fn invalid_settings_are_refused_with_their_key() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.lane_slots = 1000).contains("lane_slots"));
        assert!(with(|c| c.lane_slots = 65_536).contains("lane_slots_max"));
        assert!(with(|c| c.server = "nowhere".into()).contains("host:port"));
        assert!(with(|c| c.server = "logs.example.org:4747".into()).contains("allow_insecure"));
        assert!(with(|c| c.servers = vec!["localhost:1".into(), "b".into()]).contains("setting `servers`"));
        assert!(with(|c| c.servers = vec!["localhost:1".into(); 2]).contains("twice"));
        assert!(with(|c| c.fail_over_after = Duration::from_millis(1)).contains("fail_over_after"));
        assert!(with(|c| c.tls_key = Some("/key".into())).contains("`tls_certificate` is missing"));
        assert!(
            with(|c| (c.flight_recorder, c.when_full) = (true, WhenFull::Wait)).contains("overwrite-oldest")
        );
        assert!(with(|c| c.spool_bytes = 1).contains("spool_bytes"));
        assert!(with(|c| c.spool_dir = Some("spool".into())).contains("spool_dir"));
        assert!(with(|c| c.dead_after = Duration::from_secs(1)).contains("dead_after"));
        assert!(with(|c| c.process_bytes = 100).contains("process_bytes"));
    }

    #[test]
    fn recording_settings_accept_texts_and_lists_and_errors_name_keys() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log-client.toml");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Config::load(Some(&file), &NoFlags {}).map_err(|error| error.to_string())
        };
        let texts = "layers = \"posix,stdio\"\nops = \"-posix.lseek\"\nsample = 16\nmin_duration = \"100us\"";
        let lists = "layers = [\"posix\", \"stdio\"]\nops = [\"-posix.lseek\"]\nsample = \"1/16\"\nmin_duration = \"0.1ms\"";
        let settings = load(texts).unwrap().settings().unwrap();
        assert_eq!(load(lists).unwrap().settings().unwrap(), settings);
        assert_eq!((settings.sample_shift, settings.min_duration_ns), (4, 100_000));
        let recorder = load("flight_recorder = true").unwrap().settings().unwrap();
        assert_eq!(recorder.when_full, WhenFull::OverwriteOldest);
        for (text, key) in [
            ("sampel = 1", "sampel"),
            ("idle = = 1", "line 1"),
            ("layers = [\"posx\"]", "layers"),
            ("ops = \"raed\"", "ops"),
            ("sample = \"1/10\"", "sample"),
            ("when_full = \"block\"", "when_full"),
            ("flight_recorder = true\nwhen_full = \"wait\"", "flight_recorder"),
        ] {
            let error = load(text).unwrap_err();
            assert!(error.contains(key), "{error}");
            assert!(!error.contains("default."), "{error}");
        }
        #[derive(Serialize)]
        struct Flags {
            when_full: &'static str,
        }
        let error = Config::load(Some(&file), &Flags { when_full: "block" }).unwrap_err().to_string();
        assert!(error.contains("--when-full"), "{error}");
    }
}

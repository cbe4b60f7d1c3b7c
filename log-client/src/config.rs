//! Settings of a log-client.

pub mod recorded;

use crate::error::Error;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use miot_daemon::settings;
use miot_proto::control::{DEFAULT_DIR, DIR_ENV, MAX_LEFT_OUT, Settings, WhenFull, left_out};
use miot_proto::event::SLOT_BYTES;
use miot_proto::segment::{MAX_LANE_SLOTS, MAX_SEGMENT_BYTES, MIN_LANE_SLOTS};
use miot_proto::units;
use miot_proto::wire::{DEFAULT_PORT, MAX_FRAME};
use miot_tls::{Files, is_loopback};
use recorded::{Change, Layers, Ops, Sample};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is if nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/miot/log-client.toml";
/// Where HTTP is answered if nothing else is said.
pub const DEFAULT_HTTP: &str = "127.0.0.1:4749";
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
    /// Address and port for metrics and health; `off` for none. Nothing is encrypted there, so it takes `allow_insecure` to be
    /// reached from other machines; what it says, the log-server says as well. Default: `127.0.0.1:4749`, if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Allows a log-server on another machine without TLS, although nothing is encrypted and nobody proves who they are.
    /// Default: false.
    pub allow_insecure: bool,
    /// This node's certificate, a PEM file (`miot pki node`). With it, `tls_key` and `tls_authority` the connection is
    /// encrypted, the log-server proves that it is `server`, and the node that it is `node`. Default: none.
    pub tls_certificate: Option<PathBuf>,
    /// Its private key, a PEM file that others cannot read. Default: none.
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities that may have signed the log-server's, a PEM file. Default: none.
    pub tls_authority: Option<PathBuf>,
    /// When started as root: the user who it becomes, with just the capabilities that reading other users' segments takes.
    /// Default: none; it stays who it is, with those capabilities.
    pub user: Option<String>,
    /// Whether anything is recorded before somebody switches it on (`miot ctl on`). Default: true.
    pub enabled: bool,
    /// Layers to record, by name, see [`Layers`]. Default: all.
    pub layers: Layers,
    /// Operations to record, by name, see [`Ops`]. Default: all.
    pub ops: Ops,
    /// Requests that take less are left out, and counted as filtered. Default: 0.
    #[serde(with = "units::duration")]
    pub min_duration: Duration,
    /// One request in a power of two is kept, the others are left out and counted as filtered. Default: 1.
    pub sample: Sample,
    /// Requests are recorded with the CPU time that their thread has used. Costs a system call and a second slot for each
    /// request. Default: false.
    pub cpu_time: bool,
    /// What a producer does whose lane is full: `drop-newest` never delays the application, `wait` keeps
    /// the trace complete at the application's cost, `overwrite-oldest` keeps the latest. Default: `drop-newest`.
    #[serde(with = "recorded::when_full")]
    pub when_full: WhenFull,
    /// Lanes overwrite their oldest records and are read only on a snapshot (`miot ctl snapshot`, SIGUSR1) and when
    /// their thread or process ends. Default: false.
    pub flight_recorder: bool,
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
    /// Shared memory that all segments of the node together may take. When it is used up, threads get no more lanes and
    /// no larger ones, and what they record is lost as `no_lane`, until processes end. Looked at once a second; the
    /// MIOT directory's file system is the limit that holds at once. Default: 1 GiB.
    #[serde(with = "units::bytes")]
    pub node_bytes: u64,
    /// Programs that are not recorded although the hook is loaded into them, by the name of their executable or its whole path:
    /// for nodes on which everything is traced. Decided when a program makes its first request. Default: none.
    pub exclude_programs: Vec<String>,
    /// Users whose programs are not recorded, by name or number. Default: none.
    pub exclude_users: Vec<String>,
    /// Most segments (processes) read at a time; further ones wait their turn. Default: 8192.
    pub segments: usize,
    /// Where that is kept which the log-server has not acknowledged, so that it outlives this log-client. On a disk
    /// it outlives the node as well. Default: `spool` in `dir`.
    pub spool_dir: Option<PathBuf>,
    /// What goes when it is full: `keep-oldest` leaves the lanes alone, so that `when_full` decides; `keep-newest` gives
    /// up the oldest events in it. Default: `keep-oldest`.
    pub spool_full: SpoolFull,
    /// Bytes that may be kept there. Definitions and ends of processes and threads, some hundred bytes each, are added even
    /// if it is full.
    /// Default: 64 MiB, minimum: 16 MiB, one frame of the largest size.
    #[serde(with = "units::bytes")]
    pub spool_bytes: u64,
    /// Longest sleep between two sweeps on an idle node: bounds how late an event is seen. With hundreds of processes
    /// and not one event, up to five times as long, so that looking at them stays cheap. Default: 20 ms.
    #[serde(with = "units::duration")]
    pub idle: Duration,
    /// How often the kernel's counters of block devices and mounted network file systems are read and sent, for the table
    /// `devices`. Default: 10 s, minimum: 100 ms; 0: never.
    #[serde(with = "units::duration")]
    pub devices_every: Duration,
    /// A connection on which the log-server says nothing for so long, or the network does not take what is sent, is given
    /// up and made anew. Default: 30 s, minimum: 20 s, twice the time in which a log-server says something.
    #[serde(with = "units::duration")]
    pub dead_after: Duration,
    /// Longest clean stop: what the log-server has not acknowledged by then is reported as undelivered.
    /// Default: 10 s.
    #[serde(with = "units::duration")]
    pub stop: Duration,
    /// A clean stop leaves everything to the next log-client: programs go on recording, what is not acknowledged stays in
    /// the spool. For restarts and upgrades; [`LogClient::run`](crate::LogClient::run) without it ends recording. Default: false.
    pub hand_over: bool,
    /// Programs of all users are recorded, whatever the MIOT directory: it is made, or opened, to all of them (mode 1777). The
    /// daemon sets it when root starts it; in the default directory of root it is so in any case. No key of the file.
    #[serde(skip)]
    pub of_all_users: bool,
}

/// See [`Config::spool_full`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpoolFull {
    /// What is kept stays; nothing more is taken from lanes.
    #[default]
    KeepOldest,
    /// The oldest events are given up, and told as lost.
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
            sample: Sample::default(),
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
            idle: Duration::from_millis(20),
            devices_every: Duration::from_secs(10),
            dead_after: Duration::from_secs(30),
            stop: Duration::from_secs(10),
            hand_over: false,
            of_all_users: false,
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
            .map_err(|errors| Error::Config(settings::explain(ENV_PREFIX, errors)))?;
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
        let Some((host, _)) = self
            .server
            .rsplit_once(':')
            .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        else {
            return fail("server", format!("`{}` is not of the form host:port", self.server));
        };
        if self.tls()?.is_none() && !self.allow_insecure && !is_loopback(host) {
            let reason = format!(
                "{host} is not this machine, and the connection would be neither encrypted nor authenticated: make \
                 certificates with `miot pki`, or set `allow_insecure = true` if you trust everybody on that network"
            );
            return fail("server", reason);
        }
        if let Some(http) = &self.http {
            let checked = miot_daemon::http::check(http, None, self.allow_insecure);
            checked.map_err(|reason| Error::Setting { key: "http", reason })?;
        }
        self.settings()?;
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
        self.left_out()?;
        if self.segments == 0 {
            return fail("segments", "at least 1".into());
        }
        if let Some(spool) = self.spool_dir.as_ref().filter(|spool| !spool.is_absolute()) {
            return fail("spool_dir", format!("`{}` is not an absolute path", spool.display()));
        }
        if self.spool_bytes < MAX_FRAME as u64 {
            let least = format!("{} is less than one frame may take, {MAX_FRAME}", self.spool_bytes);
            return fail("spool_bytes", least);
        }
        if !self.devices_every.is_zero() && self.devices_every < Duration::from_millis(100) {
            return fail("devices_every", "at least 100ms, or 0 for never".into());
        }
        if self.dead_after < Duration::from_secs(20) {
            return fail("dead_after", "at least 20s".into());
        }
        if self.idle < Duration::from_millis(1) || self.idle > Duration::from_secs(1) {
            return fail("idle", "from 1ms to 1s".into());
        }
        Ok(())
    }

    /// The list of those who are not recorded, as the control page has it.
    ///
    /// # Errors
    /// [`Error::Setting`]: a user there is none of, or too many names.
    pub(crate) fn left_out(&self) -> Result<Vec<u8>, Error> {
        let fail = |key, reason: String| Error::Setting { key, reason };
        let odd = |name: &&String| name.is_empty() || name.contains('\0');
        if let Some(name) = self.exclude_programs.iter().find(odd) {
            return Err(fail("exclude_programs", format!("{name:?} is no name of a program")));
        }
        let users = self.exclude_users.iter().map(|user| match user.parse() {
            Ok(number) => Ok(number),
            Err(_) => miot_daemon::User::find(user).map(|found| found.uid()),
        });
        let users: Vec<u32> =
            users.collect::<Result<_, _>>().map_err(|reason| fail("exclude_users", reason))?;
        let too_long = || fail("exclude_programs", format!("more than {MAX_LEFT_OUT} bytes of names"));
        left_out(&self.exclude_programs, &users).ok_or_else(too_long)
    }

    /// The files of TLS; `None` without.
    ///
    /// # Errors
    /// [`Error::Tls`] if only some are given.
    pub(crate) fn tls(&self) -> Result<Option<Files>, Error> {
        let (certificate, key) = (self.tls_certificate.as_deref(), self.tls_key.as_deref());
        Ok(Files::new(certificate, key, self.tls_authority.as_deref())?)
    }

    /// All keys and values, as a configuration file has them.
    #[must_use]
    pub fn to_toml(&self) -> String {
        settings::to_toml(self)
    }

    /// Itself, but for the keys that [`settings`](Self::settings) is made of, which are taken from `other`.
    #[must_use]
    pub fn with_steered_of(self, other: &Config) -> Config {
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

    /// What the control page is to say.
    ///
    /// # Errors
    /// [`Error::Setting`] for settings that do not go together.
    pub fn settings(&self) -> Result<Settings, Error> {
        let mut settings = Settings {
            lane_slots: self.lane_slots,
            lane_slots_max: self.lane_slots_max,
            process_bytes: self.process_bytes,
            cpu_time: self.cpu_time,
            ..Settings::default()
        };
        let change = Change {
            enabled: Some(self.enabled),
            wait: Some(self.wait),
            layers: Some(self.layers),
            ops: Some(self.ops.clone()),
            min_duration: Some(self.min_duration),
            sample: Some(self.sample),
            // The default policy gives way to the flight recorder's.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct NoFlags {}

    #[test]
    fn the_defaults_are_allowed() {
        Config::default().check().unwrap();
    }

    #[test]
    fn what_is_printed_is_a_configuration_file() {
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
            ..Config::default()
        };
        std::fs::write(&file, config.to_toml()).unwrap();
        assert_eq!(Config::load(Some(&file), &NoFlags {}).unwrap(), config);
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
        assert!(with(|c| c.server = "logs.example.org:4747".into()).contains("allow_insecure"));
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
    fn what_is_recorded_is_a_text_or_a_list_and_errors_name_the_key() {
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

//! The command line of `log-client`.

use clap::Parser;
use serde::Serialize;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_CLIENT_ and the key in \
capitals), overridden by options. All keys of the file, with their defaults:

    dir = \"/dev/shm/miot\"        # or $MIOT_DIR; programs look there
    node = \"...\"                 # the host name
    server = \"localhost:4747\"    # the log-server
    servers = []                 # several, [\"a:4747\", \"b:4747\"], instead
    fail_over_after = \"0\"        # \"10m\": then to the next of several; 0: never
    transport = \"...\"            # \"nats://broker:4222\", a broker instead of
                                 # `server`; none
    broker_stream = \"MIOT\"       # its stream, one for each log-server
    broker_credentials = \"...\"   # file with user and password, token or key
    broker_authority = \"...\"     # PEM files: encrypt the connection to it
    broker_certificate = \"...\"
    broker_key = \"...\"
    broker_window = \"64 MiB\"     # maximum of this node in the broker
    http = \"127.0.0.1:4749\"      # metrics and health; \"off\" for none
    allow_insecure = false       # true: another machine, without TLS
    tls_certificate = \"...\"      # PEM files (`miot pki`), all three or
    tls_key = \"...\"              # none; read again for each connection
    tls_authority = \"...\"        # and on SIGHUP
    user = \"...\"                 # user to switch to from root; none
    enabled = true               # false: records after `miot ctl on`
    layers = \"all\"               # or [\"posix\", \"stdio\"], [\"-stdio\"], of app,
                                 # mpi-io, stdio, posix, fuse, client, block
    ops = \"all\"                  # or [\"posix.read\", \"posix.write\"], only
                                 # these; [\"-posix.lseek\"], all except this;
                                 # [\"posix.*\"]; names without layer: all layers
    min_duration = \"0\"           # \"100us\": skip shorter requests
    sample = \"1\"                 # \"1/16\": one in a power of two, random
    cpu_time = false             # true: record the CPU time of the thread
    when_full = \"drop-newest\"    # or \"wait\": complete, but programs wait;
                                 # or \"overwrite-oldest\": keep the latest
    wait = \"10s\"                 # ... maximum per record
    flight_recorder = false      # true: overwrite; read lanes only for a
                                 # snapshot and when threads end
    lane_slots = 512             # slots (64 bytes) of a first lane
    lane_slots_max = 32768       # maximum slots of a lane
    process_bytes = \"64 MiB\"     # maximum shared memory of one process
    node_bytes = \"1 GiB\"         # ... and of all processes together
    exclude_programs = []        # [\"sshd\", \"/usr/bin/rsync\"]: not recorded
    exclude_users = []           # [\"root\", \"996\"]
    segments = 8192              # maximum processes read at a time
    spool_dir = \"...\"            # unacknowledged batches; DIR/spool
    spool_full = \"keep-oldest\"   # or \"keep-newest\": drops the oldest
                                 # events, and reports them as lost
    spool_bytes = \"64 MiB\"       # maximum size of the spool
    idle = \"40ms\"                # maximum sleep between two sweeps
    devices_every = \"10s\"        # disk and mount counters; 0: never
    dead_after = \"30s\"           # reopens a silent connection
    stop = \"10s\"                 # maximum duration of a clean stop
    hand_over = false            # true: programs continue to record after a
                                 # stop, for the next log-client; see --end

Example: trace a program, with both daemons on this machine

    log-server --trace /data/trace &
    log-client &
    LD_PRELOAD=/path/to/libmiot_posix.so ./my_app
    miot stat /data/trace

Signals:
  SIGINT, SIGTERM  stop cleanly: deliver all committed records
  SIGHUP           reload the configuration and the TLS files, and apply the
                   recording settings; on an error all settings stay
                   unchanged (check first with log-client --check).
                   `miot ctl set` changes settings until the next restart
  SIGUSR1          deliver the content of the lanes, like `miot ctl snapshot`

Exit codes: 0 stopped cleanly (undelivered messages are logged); 1 failed while running; 2 invalid options \
or configuration, or the directory is not usable; 3 refused by the log-server.";

/// Reads the events of all traced processes of this node and ships them to the log-server.
#[derive(Parser, Debug)]
#[command(name = "log-client", version, about, after_help = AFTER_HELP)]
pub struct Options {
    /// Configuration file [default: /etc/miot/log-client.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_CLIENT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Log level or filter: error, warn, info, debug, or e.g. miot_log_client=debug [default:
    /// $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_CLIENT_LOG")]
    pub log: Option<String>,
    /// Check the configuration, print it with all defaults, and exit
    #[arg(long)]
    pub check: bool,
    /// End recording that a log-client has handed over, deliver the remaining events, and exit
    #[arg(long, conflicts_with_all = ["check", "hand_over"])]
    pub end: bool,
    #[allow(missing_docs, reason = "the help would show it")]
    #[command(flatten)]
    pub flags: Flags,
}

/// Settings given as options override all other sources.
#[derive(clap::Args, Serialize, Debug)]
pub struct Flags {
    /// MIOT directory of the node
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Name of this node in the trace
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[allow(missing_docs, reason = "the help would show it")]
    #[command(flatten)]
    #[serde(flatten)]
    pub servers: Servers,
    /// Address and port for metrics and health over HTTP, or off [default: 127.0.0.1:4749, if it is
    /// free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Allow a log-server on another machine without encryption and authentication
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_insecure: bool,
    /// User to switch to when started as root
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Certificate of this node, a PEM file made by `miot pki node`
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Certificate of the authority that signed the log-server's certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_authority: Option<PathBuf>,
    /// Policy of a producer whose lane is full: drop-newest, wait or overwrite-oldest
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_full: Option<String>,
    /// Directory for batches that the log-server has not acknowledged
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_dir: Option<PathBuf>,
    /// Policy for a full spool: keep-oldest stops reading lanes, keep-newest drops the oldest
    /// events
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_full: Option<String>,
    /// Maximum size of the spool, e.g. "64 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_bytes: Option<String>,
    /// Maximum duration of a clean stop, e.g. 10s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Leave programs recording on a clean stop, for the next log-client: for restarts and upgrades
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hand_over: bool,
}

/// Addresses of log-servers given as options.
#[derive(clap::Args, Debug)]
pub struct Servers {
    /// Address of the log-server. Several: repeat it, or separate them by commas
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub server: Vec<String>,
}

impl Serialize for Servers {
    /// As the keys `server` and `servers` of the configuration.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let mut map = serializer.serialize_map(None)?;
        match self.server.as_slice() {
            [] => {}
            [one] => {
                map.serialize_entry("server", one)?;
                map.serialize_entry("servers", &[(); 0])?;
            }
            several => map.serialize_entry("servers", several)?,
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use clap::CommandFactory as _;

    /// The line `key = value` of each key with its default.
    fn keys() -> Vec<String> {
        let file = || Some("/file".into());
        let text = Config {
            spool_dir: file(),
            tls_certificate: file(),
            tls_key: file(),
            tls_authority: file(),
            user: Some("miot".into()),
            transport: Some("nats://broker:4222".into()),
            broker_credentials: file(),
            broker_authority: file(),
            broker_certificate: file(),
            broker_key: file(),
            http: Some("127.0.0.1:4749".into()),
            ..Config::default()
        }
        .to_toml();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn help_and_example_list_all_keys_and_defaults() {
        let example = include_str!("../../deploy/log-client.toml").replace("\n# ", "\n");
        for line in keys() {
            let (key, _) = line.split_once(' ').unwrap();
            let own = ["dir", "node", "spool_dir", "user", "transport"].contains(&key)
                || key.starts_with("tls_")
                || key.starts_with("broker_") && line.contains("/file");
            let entry = if own { format!("{key} = ") } else { line.clone() };
            assert!(AFTER_HELP.contains(&format!("\n    {entry}")), "{entry} in the help");
            let listed = ["dir", "node", "segments", "idle", "stop", "hand_over"].contains(&key);
            assert!(listed || example.contains(&format!("\n{entry}")), "{entry} in deploy/log-client.toml");
        }
    }
}

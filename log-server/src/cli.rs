//! The command line of `log-server`.

use clap::Parser;
use serde::Serialize;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Settings come from the configuration file, overridden by environment variables (MIOT_SERVER_ and the key in
capitals), overridden by options. All keys of the file, with their defaults:

    listen = \"127.0.0.1:4747\"        # address and port
    allow_insecure = false           # true: allow an address that other machines can reach
    # http = \"127.0.0.1:4748\"        # metrics, health, status; \"off\": none
    # transport = \"nats://broker:4222\"   # nodes send through this broker too
    broker_stream = \"MIOT\"           # its stream, of several log-servers each another one
    # broker_credentials = \"FILE\"    # user and password, token or key for the broker
    # broker_authority = \"FILE\"      # PEM files: encrypt the connection to the broker
    # broker_certificate = \"FILE\"
    # broker_key = \"FILE\"
    trace = \"/var/lib/miot/trace\"    # created if it does not exist, continued if it does
    partition = 0                    # of several log-servers: 0 to 1023, each another one
    cluster = \"\"                     # of several log-servers: name, the same for all
    # user = \"miot\"                  # user to switch to when started as root, once it listens
    # tls_certificate = \"FILE\"       # PEM files (`miot pki`), all three or none: encrypt, and
    # tls_key = \"FILE\"               # serve only peers with a certificate of the authority; read
    # tls_authority = \"FILE\"         # again on SIGHUP
    silent_after = \"5s\"              # time for which a silent node holds back the others
    clock_uncertainty = \"10ms\"       # log a warning for nodes with a larger error of their times
    memory = \"512 MiB\"               # for events that are not durable yet
    # node_memory = \"128 MiB\"        # maximum for one node; default: a quarter of `memory`
    merge_every = \"20ms\"             # at least 1ms
    commit_every = \"50ms\"            # one sync of the disk for all events that arrived in between
    connections = 1024
    node_connections = 8             # of one node
    rate = \"0\"                       # bytes per second of all nodes together, e.g. \"100 MiB\"; 0: no limit
    node_rate = \"0\"                  # bytes per second of one node, e.g. \"20 MiB\"; 0: no limit
    node_streams = 262144            # of one node, that have not ended; more are refused
    tail_memory = \"32 MiB\"           # a subscriber that lags by more is cut off
    seal_rows = 8388608              # a part is sealed at this number of events, ...
    seal_bytes = \"1 GiB\"             # ... or at this size, ...
    seal_after = \"15min\"             # ... or at this age
    keep_bytes = \"0 B\"               # maximum size of the sealed parts, the oldest are removed; 0: no limit
    keep_for = \"0s\"                  # parts whose last event is older are removed; 0: never
    # store = \"s3://bucket/prefix\"   # miot-uploader copies sealed parts there, before they are removed
    # register = [\"PROGRAM\"]         # miot-uploader runs it for each part, e.g. register-ducklake

Example: receive the events of this machine's log-client and display them

    log-server --trace /data/trace &
    log-client &
    miot tail -f /data/trace

Example: serve other machines, encrypted; see miot pki --help

    miot pki init /etc/miot/pki
    miot pki server /etc/miot/pki --name logs.example.org
    log-server --listen 0.0.0.0:4747 --trace /data/trace --tls-certificate /etc/miot/pki/server/logs.example.org.pem \
        --tls-key /etc/miot/pki/server/logs.example.org.key --tls-authority /etc/miot/pki/ca.pem

SIGHUP reads the configuration again and applies silent_after, clock_uncertainty, merge_every, commit_every,
node_connections, rate, node_rate, seal_* and keep_*. Other changed keys are logged, because they need a restart.
SIGHUP also reads certificate, key and authority again, for new connections. After an error all settings stay
unchanged; use --check to verify the configuration beforehand.
SIGINT and SIGTERM stop the log-server cleanly: events already sent by nodes are written, acknowledged and sealed.
If the trace directory, or a file in it that is being written, is deleted, renamed or replaced, the log-server logs
an error, acknowledges nothing more for that trace, and creates a new trace at the same path or continues the
remaining one. The nodes send all events again that were not acknowledged.
Exit codes: 0 stopped cleanly; 1 the trace could not be written or sealed at the end (no acknowledged event is
lost); 2 wrong options or configuration, address in use, or unusable trace directory.";

/// Receives the events of all nodes, merges them by time and writes them to a trace directory.
#[derive(Parser, Debug)]
#[command(name = "log-server", version, about, after_help = AFTER_HELP)]
pub struct Options {
    /// Configuration file [default: /etc/miot/log-server.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_SERVER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Log level: error, warn, info, debug, or a filter, e.g. miot_log_server=debug [default:
    /// $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_SERVER_LOG")]
    pub log: Option<String>,
    /// Check the configuration, print it with all defaults, and exit
    #[arg(long)]
    pub check: bool,
    #[allow(missing_docs, reason = "the help would show it")]
    #[command(flatten)]
    pub flags: Flags,
}

/// Settings as options: they override all others.
#[derive(clap::Args, Serialize, Debug)]
pub struct Flags {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Address and port for metrics, health and status over HTTP, or off [default: 127.0.0.1:4748,
    /// if it is free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Trace directory
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// Partition of the ids, of several log-servers each another one: 0 to 1023
    #[arg(long, value_name = "NUMBER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u16>,
    /// Name of the cluster, of several log-servers the same
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Listen on an address that other machines can reach, without encryption and authentication
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_insecure: bool,
    /// Certificate of this server, a PEM file created by `miot pki server`
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Authority whose nodes and readers are served, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_authority: Option<PathBuf>,
    /// User to switch to when started as root, once the server listens
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Time for which a silent node holds back the others, e.g. 5s
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_after: Option<String>,
    /// Memory for events that are not durable yet, e.g. "512 MiB"
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

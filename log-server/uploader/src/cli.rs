//! The command line of `miot-uploader`.

use clap::Parser;
use serde::Serialize;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
The settings `trace`, `store` and `register` are those of the log-server (log-server --help): the same file
(/etc/miot/log-server.toml), environment variables (MIOT_SERVER_TRACE, MIOT_SERVER_STORE), or options.

The store gets the files of the trace directory under the same names, so any program that reads Parquet can read it:
a part once it is sealed, its ledger file last. A part whose ledger file is in the store is whole. Once the store
has a part, the log-server may remove the local copy (keep_bytes, keep_for), and not before.

Credentials and endpoints come from the environment, as for other programs: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP ...; GOOGLE_SERVICE_ACCOUNT ...;
AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY ... The store must permit to get and to put objects.

Example: copy all sealed parts now, and read them there

    AWS_REGION=eu-central-1 miot-uploader --once --trace /var/lib/miot/trace --store s3://traces/cluster1
    miot query s3://traces/cluster1 'SELECT op, count(*) FROM io GROUP BY op'

Example: as a service beside the log-server

    echo 'store = \"s3://traces/cluster1\"' >> /etc/miot/log-server.toml
    systemctl restart miot-log-server
    systemctl enable --now miot-uploader

After an error the service tries again, after 1 second at first and after a minute at most, and logs each error.
`miot ctl --server HOST:PORT status` and the log-server's metrics say how many parts wait.
Exit codes: 0 stopped, or with --once: the store has all sealed parts; 1 with --once: it has not; 2 wrong options or
configuration.";

/// Copies the sealed parts of a trace to an object store.
#[derive(Parser, Debug)]
#[command(name = "miot-uploader", version, about, after_help = AFTER_HELP)]
pub struct Options {
    /// Configuration file of the log-server [default: /etc/miot/log-server.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_SERVER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Log level: error, warn, info, debug, or a filter, e.g. miot_uploader=debug [default:
    /// $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", env = "MIOT_UPLOADER_LOG")]
    pub log: Option<String>,
    /// Copy the parts that are sealed now, and exit
    #[arg(long)]
    pub once: bool,
    #[allow(missing_docs, reason = "the help would show it")]
    #[command(flatten)]
    pub flags: Flags,
}

/// Settings as options: they override all others.
#[derive(clap::Args, Serialize, Debug)]
pub struct Flags {
    /// Trace directory
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// Address of the store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or
    /// file:///FOLDER
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

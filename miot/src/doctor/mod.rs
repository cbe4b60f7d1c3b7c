//! `miot doctor`: checks the setup of a node, and prints a command that fixes each problem.

#[cfg(feature = "broker")]
mod broker;
mod certificates;
mod clock;
mod connection;
mod disk;
mod library;
mod limits;
mod memory;
mod report;
mod server;
mod versions;
mod workers;

use anyhow::Context as _;
use clap::Args;
use miot_log_client::Config;
use miot_log_client::config::DEFAULT_FILE;
use miot_proto::control::DIR_ENV;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use report::{CheckReport, Verdict};
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check this node: shared memory, limits, hook library, versions, certificates, clock, connection,
/// disk
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot doctor                          check this node with /etc/miot/log-client.toml
  miot doctor --format json | jq 'select(.verdict == \"problem\")'
  miot doctor --config ./log-client.toml --server loghost:4747
  sudo -u miot miot doctor             check as the user of the log-client
  miot doctor --workers a:4750,b:4750  check workers of miot query as well

doctor changes nothing. With /etc/miot/log-server.toml or --server-config it also checks the log-server of this machine. It \
opens a separate connection to the log-server to check that this node is served. It uses the log-server of the running \
log-client and reports if the configuration names another one.

Exit codes: 0 no problems (there may be warnings); 1 problems; 2 wrong usage.")]
pub(crate) struct Arguments {
    /// Configuration of the log-client [default: /etc/miot/log-client.toml if it exists]
    #[arg(long, value_name = "FILE", env = "MIOT_CLIENT_CONFIG")]
    config: Option<PathBuf>,
    /// Configuration of a log-server on this machine [default: /etc/miot/log-server.toml if it
    /// exists]
    #[arg(long, value_name = "FILE")]
    server_config: Option<PathBuf>,
    /// MIOT directory of this node, instead of the configured one
    #[arg(long, value_name = "DIR", env = DIR_ENV)]
    dir: Option<PathBuf>,
    /// Log-server to check, instead of that of the running log-client or of the configuration
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// Workers of `miot query` to check as well, with the certificate that MIOT_TLS_CERTIFICATE,
    /// MIOT_TLS_KEY and MIOT_TLS_AUTHORITY name
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    workers: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let report = examine(arguments);
    let mut out = stdout().lock();
    match arguments.format {
        Format::Text => write!(out, "{report}").context("cannot print the report")?,
        format => records(&mut out, format, true, &report.findings)?,
    }
    Ok(match report.worst() {
        Verdict::Problem => ExitCode::FAILURE,
        Verdict::Ok | Verdict::Warning => ExitCode::SUCCESS,
    })
}

fn examine(arguments: &Arguments) -> CheckReport {
    let mut report = CheckReport::default();
    let mut config = configuration(arguments, &mut report);
    if let Some(running) = memory::examine(&config, &mut report) {
        connection::compare(&mut config, running, arguments.server.is_some(), &mut report);
    }
    limits::examine(&config, &mut report);
    library::examine(&mut report);
    versions::examine(&config, &mut report);
    let tls = certificates::examine(&config, &mut report);
    if let Some(broker) = config.broker() {
        #[cfg(feature = "broker")]
        broker::examine("log-client", &broker, Some(&config.node), &mut report);
        // Without the feature, the configuration was a problem already.
        let _ = broker;
        clock::examine(None, &mut report);
    } else {
        let offset = connection::examine(&config, tls.as_ref(), &mut report);
        clock::examine(offset, &mut report);
    }
    disk::spool(&config, &mut report);
    server::examine(arguments.server_config.as_deref(), &mut report);
    workers::examine(&arguments.workers, &mut report);
    report
}

/// Settings of the log-client. Invalid settings are a problem; the checks continue with defaults.
fn configuration(arguments: &Arguments, report: &mut CheckReport) -> Config {
    #[derive(serde::Serialize)]
    struct Flags<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        dir: Option<&'a PathBuf>,
        #[serde(skip_serializing_if = "Option::is_none")]
        server: Option<&'a String>,
        /// `--server` takes precedence over `servers` of the file.
        #[serde(skip_serializing_if = "Option::is_none")]
        servers: Option<[&'a str; 0]>,
    }
    let file = arguments.config.as_deref();
    let flags = Flags {
        dir: arguments.dir.as_ref(),
        server: arguments.server.as_ref(),
        servers: arguments.server.as_ref().map(|_| []),
    };
    let name = file.map_or_else(|| DEFAULT_FILE.to_owned(), |file| file.display().to_string());
    match Config::load(file, &flags) {
        Ok(config) => {
            let found = match file.is_some() || std::path::Path::new(DEFAULT_FILE).is_file() {
                true => format!(
                    "{name} is valid: node `{}`, log-server {}",
                    config.node,
                    config.members().join(", ")
                ),
                false => format!(
                    "{name} does not exist, defaults are used: node `{}`, log-server {}",
                    config.node,
                    config.members().join(", ")
                ),
            };
            report.ok("configuration", "log-client", found);
            config
        }
        Err(error) => {
            let advice = format!("fix {name}, then: log-client --config {name} --check");
            report.problem("configuration", "log-client", error.to_string(), advice);
            let mut config = Config::default();
            config.dir = arguments.dir.clone().unwrap_or(config.dir);
            config.server = arguments.server.clone().unwrap_or(config.server);
            config
        }
    }
}

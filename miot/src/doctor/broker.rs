//! The broker: whether it answers, JetStream, the stream, and who reads it.

use super::report::CheckReport;
use crate::numbers::bytes;
use miot_broker::stream::{Survey, survey};
use miot_broker::{Error, Settings};

const AREA: &str = "broker";

/// Checks the broker of a daemon.
pub(super) fn examine(
    daemon: &'static str,
    settings: &Settings,
    node: Option<&str>,
    report: &mut CheckReport,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let found = match runtime {
        Ok(runtime) => runtime.block_on(survey(settings, &format!("miot doctor, {daemon}"), node)),
        Err(error) => return report.problem(AREA, daemon, error.to_string(), "try again"),
    };
    let (url, name) = (&settings.url, &settings.stream);
    let Survey { stream, reader } = match found {
        Ok(survey) => survey,
        Err(error) => return report.problem(AREA, daemon, error.to_string(), advice(&error)),
    };
    report.ok(AREA, daemon, format!("{url} answers and has JetStream"));
    match stream {
        None => {
            let found = format!("the stream `{name}` does not exist yet");
            report.warning(
                AREA,
                "stream",
                found,
                "start the log-server or a log-client: the first one creates it",
            );
        }
        Some(stream) => {
            let found = format!(
                "`{name}` has {} messages ({}) that no log-server has read",
                stream.messages,
                bytes(stream.bytes as f64)
            );
            match stream.max_bytes.filter(|max| stream.bytes > max / 5 * 4) {
                Some(max) => report.warning(
                    AREA,
                    "stream",
                    format!("{found}; at {} it refuses more, and nodes keep them", bytes(max as f64)),
                    format!("is the log-server running? nats stream edit {name} --max-bytes=SIZE"),
                ),
                None => report.ok(AREA, "stream", found),
            }
        }
    }
    match reader {
        Some(reader) => report.ok(AREA, "log-server", format!("{reader} reads the stream")),
        None => report.warning(
            AREA,
            "log-server",
            format!("no log-server reads the stream `{name}`: events wait in the broker, then in the spools"),
            "systemctl status miot-log-server; compare `transport` and `broker_stream` of both daemons",
        ),
    }
}

fn advice(error: &Error) -> &'static str {
    match error {
        Error::Connect { .. } => {
            "is nats-server running? compare `transport` and `broker_*` with its configuration"
        }
        Error::NoJetStream { .. } => "nats-server --jetstream, or `jetstream {}` in its configuration",
        Error::Permission(_) => "give the user the permissions of docs/guide/broker.md",
        _ => "docs/guide/broker.md",
    }
}

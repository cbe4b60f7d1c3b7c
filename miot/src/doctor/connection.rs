//! The log-server: its name, the connection, the handshake, and whether it would serve this node.

use super::report::CheckReport;
use crate::chain;
use crate::remote::{Stream, receive, send};
use miot_log_client::Config;
use miot_proto::wire::{GREETING, Message, Role, VERSION};
use miot_tls::TlsClient;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime};

const AREA: &str = "connection";
/// Timeout of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of time requests; the one with the shortest round trip counts.
const TIME_REQUESTS: usize = 8;

/// Selects the log-server to check: the running log-client's, unless an option names another one.
pub(super) fn compare(config: &mut Config, running: String, is_asked_for: bool, report: &mut CheckReport) {
    let addresses =
        |server: &str| server.to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    let known = addresses(&config.server);
    if running == config.server || addresses(&running).iter().any(|address| known.contains(address)) {
        return report.ok(
            AREA,
            "log-server",
            format!("the running log-client sends to {running}, as configured"),
        );
    }
    let (wanted, by) = match is_asked_for {
        true => (&config.server, "--server"),
        false => (&config.server, "the configuration"),
    };
    let found = format!("the running log-client sends to {running}, {by} has {wanted}");
    let advice =
        "systemctl restart miot-log-client, if the configuration is right; otherwise set `server` in it";
    report.warning(AREA, "log-server", found, advice);
    if !is_asked_for {
        config.server = running;
    }
}

/// Returns the offset of this machine's clock and the shortest round trip, nanoseconds.
pub(super) fn examine(
    config: &Config,
    tls: Option<&TlsClient>,
    report: &mut CheckReport,
) -> Option<(i64, i64)> {
    let server = config.server.as_str();
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let addresses: Vec<_> = match server.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            let found = format!("{server}: {error}");
            report.problem(
                AREA,
                "name",
                found,
                format!("getent hosts {host}; set `server` to a name that resolves"),
            );
            return None;
        }
    };
    let names: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    report.ok(AREA, "name", format!("{host} is {}", names.join(", ")));
    let connected = addresses.iter().map(|address| TcpStream::connect_timeout(address, STEP_TIMEOUT));
    let mut last = None;
    let stream = connected.into_iter().find_map(|stream| stream.map_err(|error| last = Some(error)).ok());
    let Some(stream) = stream else {
        let reason = last.map_or_else(|| "no address".to_owned(), |error| error.to_string());
        let advice = format!(
            "on {host}: systemctl status miot-log-server; ss -ltn 'sport = :{port}'; is port {port} open in the firewall?"
        );
        report.problem(AREA, "reached", format!("{server}: {reason}"), advice);
        return None;
    };
    let within = |stream: &TcpStream| {
        stream
            .set_read_timeout(Some(STEP_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(STEP_TIMEOUT)))
    };
    if let Err(error) = within(&stream) {
        report.problem(AREA, "reached", error.to_string(), "try again");
        return None;
    }
    report.ok(AREA, "reached", format!("{server} accepts connections"));
    let mut stream: Box<dyn Stream> = match tls {
        None => Box::new(stream),
        Some(tls) => match tls.connect_blocking(server, stream) {
            Ok(stream) => {
                report.ok(AREA, "handshake", format!("it proved that it is {host}"));
                Box::new(stream)
            }
            Err(error) => {
                let found = format!("{server}: {error}");
                report.problem(
                    AREA,
                    "handshake",
                    found,
                    "compare both ends: miot pki show CERTIFICATE (docs/guide/security.md)",
                );
                return None;
            }
        },
    };
    accepted(config, &mut *stream, tls.is_some(), report).then(|| offset(&mut *stream)).flatten()
}

/// Returns whether the log-server would serve this node.
fn accepted(config: &Config, stream: &mut dyn Stream, is_tls: bool, report: &mut CheckReport) -> bool {
    let hello = Message::Hello {
        greeting: GREETING,
        version: VERSION,
        role: Role::Probe,
        node: config.node.clone(),
        session: 0,
    };
    let reply = send(stream, &hello).and_then(|()| receive(stream));
    let show = "miot pki show CERTIFICATE, and the log of the log-server (journalctl -u miot-log-server)";
    match reply {
        Ok(Message::Welcome { version, .. }) => {
            let found = format!(
                "node `{}` is served; protocol version {}.{}",
                config.node, version.major, version.minor
            );
            report.ok(AREA, "accepted", found);
            return true;
        }
        Ok(Message::Refused { reason, .. }) => {
            report.problem(AREA, "accepted", format!("refused: {reason}"), show);
        }
        Ok(_) => {
            let found = format!("{} is not a MIOT log-server", config.server);
            report.problem(AREA, "accepted", found, "set `server` to the address of the log-server");
        }
        Err(error) => {
            let mut found = chain(&error);
            if !is_tls {
                found += "; check whether it has `tls_certificate` and this node does not";
            }
            report.problem(AREA, "accepted", found, show);
        }
    }
    false
}

/// Returns the offset of this machine's clock from the log-server's, from the exchange with the
/// shortest round trip.
fn offset(stream: &mut dyn Stream) -> Option<(i64, i64)> {
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..TIME_REQUESTS {
        let sent = now();
        send(stream, &Message::Ping { sent }).ok()?;
        let Message::Pong { answered, .. } = receive(stream).ok()? else { break };
        let received = now();
        let (round_trip, middle) = (received - sent, sent + (received - sent) / 2);
        let found = (round_trip, middle - answered);
        best = Some(best.map_or(found, |best| best.min(found)));
    }
    best.map(|(round_trip, offset)| (offset, round_trip))
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

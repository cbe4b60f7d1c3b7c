//! The log-server: its name, the connection, the handshake, and whether it would serve this node.

use super::report::CheckReport;
use crate::chain;
use crate::remote::{Stream, receive, send};
use miot_log_client::Config;
use miot_log_client::servers::preference;
use miot_proto::wire::{GREETING, MemberIdentity, Message, Role, VERSION};
use miot_tls::TlsClient;
use miot_trace_events::text::duration;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime};

const AREA: &str = "connection";
/// Timeout of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum difference of the clocks of two log-servers of a set, nanoseconds.
const MAX_CLOCKS_NS: i64 = 1_000_000_000;
/// Number of time requests; the one with the shortest round trip counts.
const TIME_REQUESTS: usize = 8;

/// Selects the log-server to check: the running log-client's, unless an option names another one.
pub(super) fn compare(config: &mut Config, running: String, is_asked_for: bool, report: &mut CheckReport) {
    let addresses =
        |server: &str| server.to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    let configured = config.members().join(",");
    let known = addresses(&config.server);
    if running == configured || addresses(&running).iter().any(|address| known.contains(address)) {
        return report.ok(
            AREA,
            "log-server",
            format!("the running log-client sends to {running}, as configured"),
        );
    }
    let (wanted, by) = match is_asked_for {
        true => (&configured, "--server"),
        false => (&configured, "the configuration"),
    };
    let found = format!("the running log-client sends to {running}, {by} has {wanted}");
    let advice =
        "systemctl restart miot-log-client, if the configuration is right; otherwise set `server` in it";
    report.warning(AREA, "log-server", found, advice);
    if !is_asked_for {
        config.servers = running.split(',').map(str::to_owned).collect();
    }
}

/// Checks all log-servers of the node, and whether they can be in one set. Returns the offset of
/// this machine's clock from that of the preferred one, and the shortest round trip, nanoseconds.
pub(super) fn examine(
    config: &Config,
    tls: Option<&TlsClient>,
    report: &mut CheckReport,
) -> Option<(i64, i64)> {
    let mut known: Vec<(String, Answer)> = Vec::new();
    for server in preference(&config.node, &config.members()) {
        let config = Config { server: server.clone(), ..config.clone() };
        if let Some(answer) = examine_one(&config, tls, report) {
            known
                .iter()
                .for_each(|(other, theirs)| compare_members((&server, &answer), (other, theirs), report));
            known.push((server, answer));
        }
    }
    spools(config, report);
    known.first().map(|(_, answer)| (answer.offset, answer.round_trip))
}

/// Answer of a log-server.
struct Answer {
    /// `None`: it has an earlier version.
    member: Option<MemberIdentity>,
    /// Offset of this machine's clock from its clock, nanoseconds.
    offset: i64,
    /// Shortest round trip, nanoseconds.
    round_trip: i64,
}

/// Checks that two log-servers can be in one set.
fn compare_members((one, a): (&str, &Answer), (other, b): (&str, &Answer), report: &mut CheckReport) {
    const CHECK: &str = "set";
    match (&a.member, &b.member) {
        (Some(mine), Some(theirs)) => match mine.conflict_with(theirs) {
            Some(conflict) => report.problem(
                AREA,
                CHECK,
                format!("{one} and {other} cannot be in one set: {conflict}"),
                "set `partition` and `cluster` of the log-servers, or remove one of them from `servers`",
            ),
            None => report.ok(AREA, CHECK, format!("{one} and {other} can be in one set")),
        },
        _ => report.problem(
            AREA,
            CHECK,
            format!("{one} or {other} has an earlier version, which cannot be in a set"),
            "install the same version of MIOT on all log-servers",
        ),
    }
    let differ = (a.offset - b.offset).saturating_abs();
    if differ.saturating_sub(a.round_trip + b.round_trip) > MAX_CLOCKS_NS {
        let found = format!("the clocks of {one} and {other} differ by {}", duration(differ));
        report.problem(
            AREA,
            CHECK,
            found,
            "chronyc makestep, on the machine with the wrong time; restart its log-server",
        );
    }
}

/// Names what waits for other log-servers than those of the configuration.
fn spools(config: &Config, report: &mut CheckReport) {
    let root = config.spool_dir.clone().unwrap_or_else(|| config.dir.join("spool"));
    for entry in std::fs::read_dir(&root).into_iter().flatten().flatten() {
        let Ok(server) = std::fs::read_to_string(entry.path().join("server")) else { continue };
        let server = server.trim();
        if !config.members().iter().any(|member| member == server) {
            let found =
                format!("{} holds records for {server}, which is not configured", entry.path().display());
            let advice = "they are delivered when it answers; if it is gone for good, remove the directory: its records are then lost";
            report.warning(AREA, "spool", found, advice);
        }
    }
}

fn examine_one(config: &Config, tls: Option<&TlsClient>, report: &mut CheckReport) -> Option<Answer> {
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

/// Returns the identity of the log-server, and the offset of this machine's clock from its clock,
/// from the exchange with the shortest round trip.
fn offset(stream: &mut dyn Stream) -> Option<Answer> {
    let mut member = None;
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..TIME_REQUESTS {
        let sent = now();
        send(stream, &Message::Ping { sent }).ok()?;
        let mut message = receive(stream).ok()?;
        if let Message::Member { member: identity } = message {
            member = Some(identity);
            message = receive(stream).ok()?;
        }
        let Message::Pong { answered, .. } = message else { break };
        let received = now();
        let (round_trip, middle) = (received - sent, sent + (received - sent) / 2);
        let found = (round_trip, middle - answered);
        best = Some(best.map_or(found, |best| best.min(found)));
    }
    best.map(|(round_trip, offset)| Answer { member, offset, round_trip })
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

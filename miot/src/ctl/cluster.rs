//! `miot ctl --server`: controls the nodes of a log-server.

use super::Switch;
use crate::chain;
use crate::numbers::bytes;
use crate::output::Out;
use crate::recorded::Recorded;
use crate::remote::{Tls, ask, operator, unexpected_reply};
use crate::sets::{self, MemberStatus};
use crate::unread;
use anyhow::bail;
use clap::Args;
use miot_log_client::config::recording::when_full_name;
use miot_proto::command::{
    Action, CommandOutcome, NodeCommand, OperatorReply, OperatorRequest, Scope, SettingsUpdate,
    StandingCommand,
};
use miot_proto::status::{ClusterStatus, NodeStatus};
use miot_proto::units::format_duration;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::table;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Default maximum wait for the answers of nodes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Options that select a log-server, nodes and programs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Cluster {
    /// Query and control nodes through this log-server, instead of this node; or through all of a
    /// set: HOST:PORT,HOST:PORT or a file set.toml
    #[arg(long, value_name = "HOST:PORT|SET", global = true, conflicts_with = "dir")]
    server: Option<String>,
    /// Only nodes whose name matches this glob, e.g. 'rack1-*'
    #[arg(long, value_name = "GLOB", global = true)]
    node: Option<String>,
    /// Only processes of this job, including those that start later
    #[arg(long, value_name = "ID", global = true, conflicts_with = "pid")]
    job: Option<String>,
    /// Only this process
    #[arg(long, value_name = "PID", global = true)]
    pid: Option<u32>,
    #[command(flatten)]
    tls: Tls,
}

impl Cluster {
    /// Returns the log-servers, if `--server` was given.
    pub(super) fn servers(&self) -> anyhow::Result<Option<Vec<String>>> {
        let narrowed = self.node.is_some() || self.job.is_some() || self.pid.is_some();
        if self.server.is_none() && narrowed {
            bail!("--node, --job and --pid require a log-server: add --server HOST:PORT");
        }
        let Some(text) = &self.server else { return Ok(None) };
        // One address may be anything that the connection reports.
        Ok(Some(sets::servers(text)?.unwrap_or_else(|| vec![text.clone()])))
    }

    fn ask_status(&self, server: &str) -> anyhow::Result<ClusterStatus> {
        let mut stream = operator(server, &self.tls, Duration::ZERO)?;
        match ask(&mut *stream, &OperatorRequest::Status)? {
            OperatorReply::Status(status) => Ok(*status),
            _ => Err(unexpected_reply()),
        }
    }

    /// Prints the status of all log-servers of a set.
    fn set_status(&self, servers: &[String], format: Format) -> anyhow::Result<ExitCode> {
        let members: Vec<(MemberStatus, Option<ClusterStatus>)> = sets::examine(servers, &self.tls)?
            .into_iter()
            .map(|member| match member.missing {
                Some(_) => Ok((member, None)),
                None => self.ask_status(&member.address).map(|status| (member, Some(status))),
            })
            .collect::<anyhow::Result<_>>()?;
        let is_complete = members.iter().all(|(_, status)| status.is_some());
        let mut out = Out::new(format == Format::Json);
        match format {
            Format::Text => {
                for (member, status) in &members {
                    writeln!(out, "{}", describe(member, status.as_ref()))?;
                    if let Some(status) = status {
                        text(status, &mut out)?;
                    }
                    writeln!(out)?;
                }
            }
            Format::Json => {
                let members = members.iter().map(|(member, status)| SetMemberStatus { member, status });
                serde_json::to_writer(&mut out, &SetStatus { servers: members.collect() })?;
                writeln!(out)?;
            }
            Format::Csv => {
                let nodes = members.iter().filter_map(|(_, status)| status.as_ref());
                records(
                    &mut out,
                    format,
                    true,
                    nodes.flat_map(|status| status.nodes.iter().map(NodeRow::of)),
                )?;
            }
        }
        Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(unread::EXIT_INCOMPLETE) })
    }

    pub(super) fn status(&self, servers: &[String], format: Format) -> anyhow::Result<ExitCode> {
        let [server] = servers else { return self.set_status(servers, format) };
        let status = self.ask_status(server)?;
        let mut out = Out::new(format == Format::Json);
        match format {
            Format::Text => text(&status, &mut out)?,
            Format::Json => {
                serde_json::to_writer(&mut out, &status)?;
                writeln!(out)?;
            }
            Format::Csv => records(&mut out, format, true, status.nodes.iter().map(NodeRow::of))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Sends a command to nodes, through each log-server, and reports the outcome.
    pub(super) fn steer(
        &self,
        servers: &[String],
        action: &Action,
        timeout: Option<Duration>,
        format: Format,
    ) -> anyhow::Result<ExitCode> {
        let mut failed = None;
        for server in servers {
            match self.steer_one(server, action.clone(), timeout, format) {
                Ok(code) if code == ExitCode::SUCCESS => {}
                Ok(code) => failed = Some(code),
                Err(error) if servers.len() == 1 => return Err(error),
                // The others get the command.
                Err(error) => {
                    eprintln!("miot: {server}: {}", chain(&error));
                    failed = Some(ExitCode::FAILURE);
                }
            }
        }
        Ok(failed.unwrap_or(ExitCode::SUCCESS))
    }

    fn steer_one(
        &self,
        server: &str,
        action: Action,
        timeout: Option<Duration>,
        format: Format,
    ) -> anyhow::Result<ExitCode> {
        let scope = match (&self.job, self.pid) {
            (Some(job), _) => Scope::Job(job.clone()),
            (None, Some(pid)) => Scope::Pid(pid),
            (None, None) => Scope::Node,
        };
        let nodes = self.node.clone().unwrap_or_else(|| "*".to_owned());
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT);
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let request = OperatorRequest::Steer {
            nodes: nodes.clone(),
            command: NodeCommand { scope, action },
            timeout_ms,
        };
        let mut stream = operator(server, &self.tls, timeout)?;
        let OperatorReply::Steered { nodes: outcomes, remembered } = ask(&mut *stream, &request)? else {
            return Err(unexpected_reply());
        };
        let rows: Vec<NodeReply> =
            outcomes.iter().map(|(node, outcome)| NodeReply::of(node, outcome, remembered)).collect();
        let mut out = Out::new(format == Format::Json);
        match format {
            Format::Text => {
                let width = rows.iter().map(|row| row.node.len()).max().unwrap_or(0);
                for NodeReply { node, outcome, detail } in &rows {
                    writeln!(out, "{node:<width$}  {outcome:<7} {detail}")?;
                }
            }
            _ => records(&mut out, format, true, &rows)?,
        }
        if rows.is_empty() {
            let later = if remembered { "; it is remembered for nodes that connect later" } else { "" };
            eprintln!("miot: the log-server has no node `{nodes}`{later}");
        }
        let failed = rows.iter().any(|row| row.outcome == "failed" || row.outcome == "absent" && !remembered);
        Ok(ExitCode::from(u8::from(failed || rows.is_empty() && !remembered)))
    }
}

/// Status of a set, for JSON.
#[derive(Serialize)]
struct SetStatus<'a> {
    servers: Vec<SetMemberStatus<'a>>,
}

/// A log-server of a set, and its status if it is not missing.
#[derive(Serialize)]
struct SetMemberStatus<'a> {
    #[serde(flatten)]
    member: &'a MemberStatus,
    status: &'a Option<ClusterStatus>,
}

fn describe(member: &MemberStatus, status: Option<&ClusterStatus>) -> String {
    let Some(status) = status else {
        let reason = member.missing.as_deref().unwrap_or("no answer");
        return format!("{}: missing: {reason}", member.address);
    };
    let clock =
        member.clock_offset_ns.zip(member.clock_error_ns).map_or_else(String::new, |(offset, error)| {
            let sign = if offset < 0 { "-" } else { "+" };
            format!(", clock {sign}{} ± {}", since(offset.saturating_abs()), since(error))
        });
    let final_time = status.server.final_time.map_or_else(
        || ", not final yet".to_owned(),
        |time| format!(", final up to {} ago", since(status.server.time.saturating_sub(time))),
    );
    let cluster = match status.server.cluster.as_str() {
        "" => String::new(),
        name => format!(" of cluster `{name}`"),
    };
    format!("{}: partition {}{cluster}{final_time}{clock}", member.address, status.server.partition)
}

/// Reply of a node.
#[derive(Serialize)]
struct NodeReply<'a> {
    node: &'a str,
    outcome: &'static str,
    detail: &'a str,
}

impl<'a> NodeReply<'a> {
    fn of(node: &'a str, outcome: &'a CommandOutcome, remembered: bool) -> NodeReply<'a> {
        let (outcome, detail) = match outcome {
            CommandOutcome::Done(detail) => ("done", detail.as_str()),
            CommandOutcome::Failed(reason) => ("failed", reason.as_str()),
            CommandOutcome::Absent if remembered => {
                ("absent", "not connected; it receives the command when it connects")
            }
            CommandOutcome::Absent => ("absent", "not connected"),
        };
        NodeReply { node, outcome, detail }
    }
}

/// Converts options to a settings update.
pub(super) fn change(recorded: Recorded, flight_recorder: Option<Switch>) -> SettingsUpdate {
    let Recorded { layers, ops, min_duration, sample, when_full, wait } = recorded;
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    SettingsUpdate {
        enabled: None,
        layers: layers.map(|layers| layers.to_string()),
        ops: ops.map(|ops| ops.to_string()),
        min_duration_ns: min_duration.map(nanoseconds),
        sample: sample.map(|sample| sample.to_string()),
        when_full: when_full.map(|policy| when_full_name(policy).to_owned()),
        wait_ns: wait.map(nanoseconds),
        flight_recorder: flight_recorder.map(|switch| switch == Switch::On),
    }
}

/// CSV row of a node.
#[derive(Serialize)]
struct NodeRow<'a> {
    node: &'a str,
    connected: bool,
    version: &'a str,
    address: &'a str,
    events: u64,
    events_per_second: f64,
    bytes: u64,
    bytes_per_second: f64,
    lag_ns: Option<i64>,
    holds_back: bool,
    lost: u64,
    filtered: u64,
    spool_bytes: Option<u64>,
    clock_uncertainty_ns: Option<i64>,
    clock_estimated_error_ns: Option<i64>,
    processes: Option<u64>,
    in_flight: Option<u64>,
    recording: Option<bool>,
}

impl<'a> NodeRow<'a> {
    fn of(node: &'a NodeStatus) -> NodeRow<'a> {
        let report = node.report.as_ref();
        NodeRow {
            node: &node.node,
            connected: node.connected,
            version: report.map_or("", |report| &report.version),
            address: &node.address,
            events: node.events,
            events_per_second: node.events_per_second,
            bytes: node.bytes,
            bytes_per_second: node.bytes_per_second,
            lag_ns: node.lag_ns,
            holds_back: node.holds_back,
            lost: lost(node),
            filtered: node.losses.get("filtered").copied().unwrap_or(0),
            spool_bytes: report.map(|report| report.spool.bytes),
            clock_uncertainty_ns: node.clock.map(|clock| clock.uncertainty_ns),
            clock_estimated_error_ns: node.clock.and_then(|clock| clock.estimated_error_ns),
            processes: report.map(|report| report.processes),
            in_flight: report.map(|report| report.in_flight),
            recording: report.map(|report| report.settings.enabled),
        }
    }
}

/// Number of events missing in the trace. Events left out on purpose do not count.
fn lost(node: &NodeStatus) -> u64 {
    node.losses.iter().filter(|(place, _)| *place != "filtered").map(|(_, count)| count).sum()
}

fn text(status: &ClusterStatus, out: &mut impl Write) -> std::io::Result<()> {
    let server = &status.server;
    writeln!(
        out,
        "log-server {}, up {}, {}; {} events, {:.0}/s; merge {} behind; {} live and {} sealed parts, {} free; {} readers",
        server.version,
        approximate(Duration::from_secs_f64(server.uptime_s.max(0.0))),
        server.failure.as_deref().unwrap_or("ready"),
        server.events,
        server.events_per_second,
        since(server.merge_lag_ns),
        server.live_parts,
        server.sealed_parts,
        bytes(server.disk_free as f64),
        server.subscribers,
    )?;
    if let Some(upload) = server.upload.as_ref().filter(|upload| upload.parts > 0) {
        writeln!(
            out,
            "{} sealed parts ({}) wait for their upload to {}, the oldest since {}",
            upload.parts,
            bytes(upload.bytes as f64),
            upload.store,
            approximate(Duration::from_secs_f64(upload.oldest_s.max(0.0))),
        )?;
    }
    let heads = [
        "NODE",
        "STATE",
        "VERSION",
        "EVENTS/S",
        "BYTES/S",
        "LAG",
        "LOST",
        "SPOOL",
        "CLOCK ±",
        "EST ±",
        "PROCS",
        "IN FLIGHT",
        "RECORDS",
    ];
    table(out, heads.map(str::to_owned), status.nodes.iter().map(cells).collect())?;
    for StandingCommand { nodes, scope, reset, change, .. } in &status.orders {
        let whom = match scope {
            Scope::Job(job) => format!("job {job} on {nodes}"),
            _ => nodes.clone(),
        };
        let start = if *reset { "as configured" } else { "" };
        let change = serde_json::to_string(change).unwrap_or_default();
        let change = if change == "{}" { "" } else { &change };
        writeln!(
            out,
            "remembered: {whom}: {start}{}{change}",
            if *reset && !change.is_empty() { ", then " } else { "" }
        )?;
    }
    Ok(())
}

fn cells(node: &NodeStatus) -> [String; 13] {
    let none = || "-".to_owned();
    let report = node.report.as_ref().filter(|_| node.connected);
    let reported =
        |value: &dyn Fn(&miot_proto::status::NodeReport) -> String| report.map_or_else(none, value);
    let state = match node.connected {
        true if node.holds_back && node.lag_ns.is_some_and(|lag| lag > 2_000_000_000) => "behind",
        true => "up",
        false => "gone",
    };
    [
        node.node.clone(),
        state.to_owned(),
        reported(&|report| report.version.clone()),
        format!("{:.0}", node.events_per_second),
        format!("{:.0}", node.bytes_per_second),
        node.lag_ns.map_or_else(none, since),
        lost(node).to_string(),
        reported(&|report| bytes(report.spool.bytes as f64)),
        node.clock.map_or_else(none, |clock| since(clock.uncertainty_ns)),
        node.clock.and_then(|clock| clock.estimated_error_ns).map_or_else(none, since),
        reported(&|report| report.processes.to_string()),
        reported(&|report| match report.oldest.first() {
            Some(oldest) => {
                format!("{} ({})", report.in_flight, approximate(Duration::from_nanos(oldest.age_ns)))
            }
            None => report.in_flight.to_string(),
        }),
        reported(&|report| {
            let settings = &report.settings;
            let mut text = if settings.enabled { "on" } else { "off" }.to_owned();
            if settings.layers != "all"
                || settings.ops != "all"
                || settings.min_duration_ns > 0
                || settings.sample > 1
            {
                text += ", filtered";
            }
            if settings.flight_recorder {
                text += ", flight recorder";
            }
            for exception in &report.exceptions {
                let whom = exception.job.as_ref().map_or_else(
                    || format!("process {}", exception.pid.unwrap_or(0)),
                    |job| format!("job {job}"),
                );
                text += &format!("; {whom} {}", if exception.settings.enabled { "on" } else { "off" });
            }
            text
        }),
    ]
}

fn since(nanoseconds: i64) -> String {
    approximate(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)))
}

/// Formats a duration with two or three digits.
fn approximate(duration: Duration) -> String {
    let unit = match duration.as_nanos() {
        10_000_000_000.. => 1_000_000_000,
        10_000_000.. => 1_000_000,
        10_000.. => 1_000,
        _ => 1,
    };
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    format_duration(Duration::from_nanos(nanoseconds / unit * unit))
}

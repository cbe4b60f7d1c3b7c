//! `miot ctl`: controls recording in running programs of a node or a cluster.

mod cluster;

use crate::recorded::Recorded;
use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use cluster::Cluster;
use miot_log_client::config::recording::{
    Layers, Ops, SampleRate, SettingsChange, settings_summary, when_full_name,
};
use miot_log_client::{Config, Control, ControlError, ControlView, ReaderStatus, SnapshotStatus};
use miot_proto::command::{self, Action};
use miot_proto::control::{DIR_ENV, Settings, WhenFull};
use miot_proto::units::{format_bytes, format_duration, parse_duration};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use serde::Serialize;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Switch recording in running programs on and off, choose what is recorded, take snapshots
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot ctl status
  miot ctl off                       stop recording; programs continue at a few ns per call
  miot ctl set --ops=-posix.lseek --min-duration 100us
  miot ctl set --layers all --ops all --min-duration 0 --sample 1
                                     record everything again
  miot ctl set --flight-recorder on  keep the latest events in memory ...
  miot ctl snapshot                  ... and deliver them now
  miot ctl --server logs:4747 status             all nodes of a log-server
  miot ctl --server a:4747,b:4747 status         ... of all log-servers of a set
  miot ctl --server logs:4747 off                ... recording off, also for nodes that connect later
  miot ctl --server logs:4747 --node 'n1*' on    ... recording on for some
  miot ctl --server logs:4747 --job 4711 set --ops=read,write
  miot ctl --server logs:4747 --node n17 --pid 2039 off
  miot ctl --server logs:4747 reset              restore the configured settings

Commands other than status must be run as root or as the user of the log-client. Running programs apply a change at their next \
call. Changes last until the log-client restarts or reloads its configuration (SIGHUP); permanent settings belong \
in its configuration file. --server requires a certificate of an operator (miot pki operator), and \
changes also apply to nodes that connect later. See docs/guide/control.md.

Exit codes: 0 done; 1 no log-client is running, or the snapshot timed out, with the reason; 2 wrong \
usage. Settings can be changed while no log-client is running, so that no program waits for it.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    node: Node,
    #[command(flatten)]
    cluster: Cluster,
    /// Output format
    #[arg(long, value_enum, default_value_t, global = true)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

/// Option that selects a node of this machine.
#[derive(Args, Debug)]
pub(crate) struct Node {
    /// MIOT directory of this node [default: $MIOT_DIR, else /dev/shm/miot]
    #[arg(long, value_name = "DIR", global = true, env = DIR_ENV, hide_env = true)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the recording settings and the state of the log-client
    Status,
    /// Start recording
    On,
    /// Stop recording; recorded events are still delivered
    Off,
    /// Change recording settings; others stay unchanged
    Set(Box<Set>),
    /// Restore the settings of the nodes' configurations (with --server)
    Reset,
    /// Deliver the content of the lanes, and wait until it has been read
    Snapshot {
        /// Maximum wait
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
        timeout: Duration,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot ctl set --layers posix,stdio          only these layers
  miot ctl set --ops=-posix.lseek,-fstat     all operations except these
  miot ctl set --min-duration 1ms            only slow requests
  miot ctl set --sample 1/64                 a random sample
  miot ctl set --when-full wait --wait 2s    complete, but delays the program

Requests skipped by min-duration and sample are counted in the trace as `filtered`.")]
struct Set {
    #[command(flatten)]
    recorded: Recorded,
    /// Overwrite the oldest events, and read lanes only for a snapshot or when their thread or
    /// process ends
    #[arg(long, value_name = "on|off")]
    flight_recorder: Option<Switch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Node {
    /// Returns the MIOT directory.
    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| Config::default().dir)
    }

    /// Returns the name of this node: that of its log-client's configuration, else the host name.
    pub(crate) fn name(control: Option<&Control>) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        control.and_then(Control::node).unwrap_or_else(host)
    }

    /// Opens the control page of a running log-client.
    fn control(&self) -> Result<Control, ControlError> {
        let control = Control::of_node(&self.dir())?;
        control.check_reader()?;
        Ok(control)
    }
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { node, cluster, format, command } = arguments;
    if let Some(servers) = cluster.servers()? {
        return through(&servers, &cluster, command, format);
    }
    let change = match command {
        Command::Status => return status(&node, format),
        Command::Snapshot { timeout } => return snapshot(&node, timeout),
        Command::Reset => anyhow::bail!(
            "to reset this node, run `systemctl reload miot-log-client` or send SIGHUP to its log-client; \
             to reset nodes of a log-server, add --server HOST:PORT"
        ),
        Command::On => SettingsChange { enabled: Some(true), ..SettingsChange::default() },
        Command::Off => SettingsChange { enabled: Some(false), ..SettingsChange::default() },
        Command::Set(set) => {
            let Set { recorded, flight_recorder } = *set;
            let flight_recorder = flight_recorder.map(|switch| switch == Switch::On);
            SettingsChange { flight_recorder, ..recorded.change() }
        }
    };
    anyhow::ensure!(
        change != SettingsChange::default(),
        "nothing to set: name a setting, e.g. --ops=-posix.lseek; see miot ctl set --help"
    );
    let control = Control::of_node(&node.dir())?;
    let settings = control.change(&change)?;
    // Programs follow the page even while no log-client reads their lanes. They may be waiting for
    // space, so the change matters all the more.
    control
        .check_reader()
        .context("the settings were changed and apply to programs, but no log-client reads their records")?;
    println!("{}: {}", Node::name(Some(&control)), settings_summary(&settings));
    Ok(ExitCode::SUCCESS)
}

/// Runs a command on the nodes of a log-server.
fn through(
    servers: &[String],
    cluster: &Cluster,
    command: Command,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let switch =
        |on| Action::Set(command::SettingsUpdate { enabled: Some(on), ..command::SettingsUpdate::default() });
    let (action, timeout) = match command {
        Command::Status => return cluster.status(servers, format),
        Command::On => (switch(true), None),
        Command::Off => (switch(false), None),
        Command::Set(set) => (Action::Set(cluster::change(set.recorded, set.flight_recorder)), None),
        Command::Reset => (Action::Reset, None),
        Command::Snapshot { timeout } => (Action::Snapshot, Some(timeout)),
    };
    cluster.steer(servers, &action, timeout, format)
}

fn snapshot(node: &Node, timeout: Duration) -> anyhow::Result<ExitCode> {
    let control = node.control()?;
    let snapshot = control.request_snapshot();
    let done = control.wait_for_snapshot(snapshot, timeout).with_context(|| {
        format!(
            "snapshot {snapshot} was requested but not taken within {}: check that the log-server answers and that the spool has \
             space. The request stays pending; use --timeout to wait longer",
            format_duration(timeout)
        )
    })?;
    println!("{}: snapshot {snapshot}, {} records read", Node::name(Some(&control)), done.events);
    Ok(ExitCode::SUCCESS)
}

/// Settings of a node, for JSON.
#[derive(Debug, Serialize)]
struct Status {
    node: String,
    dir: String,
    log_client: &'static str,
    pid: u64,
    sweeps: u64,
    enabled: bool,
    layers: String,
    ops: String,
    min_duration_ns: u64,
    sample: u64,
    when_full: &'static str,
    wait_ns: u64,
    flight_recorder: bool,
    snapshots_asked: u64,
    snapshots_done: u64,
    snapshot_events: u64,
    lane_slots: u64,
    lane_slots_max: u64,
    process_bytes: u64,
    node_full: bool,
    tsc_hz: u64,
}

/// Content of the control page of a node, and the state of its log-client.
struct NodeState {
    node: String,
    check: Result<ReaderStatus, ControlError>,
    settings: Settings,
    reader: ReaderStatus,
    snapshots: SnapshotStatus,
    tsc_hz: u64,
}

impl NodeState {
    fn of(dir: &Path) -> Result<NodeState, ControlError> {
        match Control::of_node(dir) {
            Ok(control) => Ok(NodeState {
                node: Node::name(Some(&control)),
                check: control.check_reader(),
                settings: control.settings(),
                reader: control.reader(),
                snapshots: control.snapshots(),
                tsc_hz: control.tsc_hz(),
            }),
            // The page of another user may be read, but not changed.
            Err(ControlError::NotOurs { .. }) => {
                let mut view = ControlView::of_node(dir)?;
                Ok(NodeState {
                    node: Node::name(None),
                    check: view.check_reader(),
                    settings: view.settings(),
                    reader: view.reader(),
                    snapshots: view.snapshots(),
                    tsc_hz: view.tsc_hz(),
                })
            }
            Err(error) => Err(error),
        }
    }
}

fn status(node: &Node, format: Format) -> anyhow::Result<ExitCode> {
    let NodeState { node: name, check, settings, reader, snapshots, tsc_hz } = NodeState::of(&node.dir())?;
    let (log_client, failure) = match check {
        Ok(_) => ("running", None),
        Err(error @ ControlError::Ended { .. }) => ("ended", Some(error)),
        Err(error @ ControlError::Dead { .. }) => ("dead", Some(error)),
        Err(error @ (ControlError::Silent { .. } | ControlError::Still { .. })) => ("silent", Some(error)),
        Err(error) => return Err(error.into()),
    };
    let status = Status {
        node: name,
        dir: node.dir().display().to_string(),
        log_client,
        pid: reader.pid,
        sweeps: reader.sweeps,
        enabled: settings.enabled,
        layers: Layers(settings.layers).to_string(),
        ops: Ops(settings.chosen).to_string(),
        min_duration_ns: settings.min_duration_ns,
        sample: 1 << settings.sample_shift.min(63),
        when_full: when_full_name(settings.when_full),
        wait_ns: settings.wait_ns,
        flight_recorder: settings.flight_recorder,
        snapshots_asked: snapshots.asked,
        snapshots_done: snapshots.done,
        snapshot_events: snapshots.events,
        lane_slots: settings.lane_slots,
        lane_slots_max: settings.lane_slots_max,
        process_bytes: settings.process_bytes,
        node_full: reader.node_full,
        tsc_hz,
    };
    let mut out = stdout().lock();
    match format {
        Format::Text => text(&status, &settings, &mut out)?,
        _ => records(&mut out, format, true, [&status])?,
    }
    match failure {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Err(error.into()),
    }
}

fn text(status: &Status, settings: &Settings, out: &mut impl Write) -> std::io::Result<()> {
    let is = |on: bool| if on { "on" } else { "off" };
    writeln!(out, "node {} ({})", status.node, status.dir)?;
    let rows = [
        ("log-client", format!("{}: process {}, {} sweeps", status.log_client, status.pid, status.sweeps)),
        ("recording", is(settings.enabled).into()),
        ("layers", status.layers.clone()),
        ("operations", status.ops.clone()),
        ("minimum duration", format_duration(Duration::from_nanos(settings.min_duration_ns))),
        ("sample", SampleRate { shift: settings.sample_shift }.to_string()),
        (
            "when full",
            match settings.when_full {
                WhenFull::Wait => {
                    format!("wait, at most {}", format_duration(Duration::from_nanos(settings.wait_ns)))
                }
                _ => status.when_full.into(),
            },
        ),
        ("flight recorder", is(settings.flight_recorder).into()),
        (
            "snapshots",
            format!(
                "{} taken, {} asked for; the last one read {} records",
                status.snapshots_done, status.snapshots_asked, status.snapshot_events
            ),
        ),
        (
            "lanes",
            format!(
                "{} to {} slots, {} per process{}",
                settings.lane_slots,
                settings.lane_slots_max,
                format_bytes(settings.process_bytes),
                if status.node_full { "; none are made: node_bytes is used up" } else { "" }
            ),
        ),
    ];
    rows.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<18}{value}"))
}

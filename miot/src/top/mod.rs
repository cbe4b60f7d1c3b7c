//! `miot top`: current activity, or activity at some time of a trace.
//!
//! ```text
//! replay (directories) ─┐            ┌─► screen ─► view (keys) ─► draw
//! live (a log-server)   ├─► Update ──┤
//! set (log-servers)    ─┘            └─► print (once, for scripts)
//! ```

mod columns;
mod draw;
mod in_flight;
mod live;
mod print;
mod replay;
mod screen;
mod set;
mod update;
mod view;

use crate::ctl::Node;
use crate::filter::nanoseconds;
use crate::remote::{Tls, address};
use crate::sets::{self, MemberStatus};
use anyhow::Context as _;
use clap::Args;
use columns::View;
use jiff::Timestamp;
use live::Live;
use miot_activity::{ActivitySnapshot, ActivityWindow, MAX_WINDOW_SECONDS};
use miot_proto::units::parse_duration;
use miot_trace_events::Format;
use replay::{LEAST_SPEED, MOST_SPEED, Replay};
use std::io::{IsTerminal as _, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Least number of rows per kind in a snapshot.
const ROWS: usize = 200;
/// Longest interval between updates. A log-server closes connections that are silent for a minute.
const MOST_INTERVAL: Duration = Duration::from_secs(30);
/// Default pause between two updates.
const INTERVAL: Duration = Duration::from_secs(1);

/// Show current I/O by cluster, node, job, process, file and operation, or requests in progress
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot top server:4747                             current activity of the cluster
  miot top server1:4747,server2:4747               the same of a cluster with several log-servers
  miot top /var/lib/miot/trace --since 10m         play back the last ten minutes, then follow
  miot top miot-trace --speed 10x                  play back a whole trace at ten times its speed
  miot top miot-trace --once --view files          a table of the whole trace; --format json|csv for scripts
  miot top --in-flight --min-age 1s                requests in progress on this node for more than 1 s
  miot top --in-flight --interval 2s               print repeatedly until Ctrl-C
  miot top --in-flight --format json | jq -r .file

On the screen, ? lists the keys and q quits. Operations, bytes and latencies are those of the outermost requests of the last ten \
seconds (w: another window); a request made during another one (a write of fwrite) counts only in the view of operations. \
Latencies are exact to a sixteenth. Guide: docs/guide/watching.md.

--in-flight does not need a log-client. It shows the processes of this user, or of all users as root. The file is that of the \
current system call of the thread, from /proc; it is empty if this user may not trace the process. In json and csv, \
times and ages are in nanoseconds.")]
pub(crate) struct Arguments {
    /// Trace directory, host:port of a log-server, or a set of these
    #[arg(
        value_name = "DIR|HOST:PORT|SET",
        conflicts_with = "in_flight",
        required_unless_present = "in_flight"
    )]
    source: Option<String>,
    /// List the requests in progress on this node instead
    #[arg(long)]
    in_flight: bool,
    /// Print once instead of a screen, for a trace directory its whole time; implied by --format
    /// json or csv
    #[arg(long)]
    once: bool,
    /// Interval between updates [default: 1s]; with --in-flight: print repeatedly
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "once")]
    interval: Option<Duration>,
    /// First view, or view to print; csv prints one view, json all
    #[arg(long, value_enum, default_value_t, conflicts_with = "in_flight")]
    view: View,
    /// Length of the window in seconds, or `all` [default: 10; for a directory with --once: all]
    #[arg(long, value_name = "SECONDS|all", value_parser = window, conflicts_with = "in_flight")]
    window: Option<ActivityWindow>,
    /// Speed of the playback of a trace, e.g. 10x or 0.5x
    #[arg(long, value_name = "FACTOR", value_parser = speed, default_value = "1x", conflicts_with = "in_flight")]
    speed: f64,
    /// Start of the playback, e.g. 2026-11-21T12:00:00Z, or an age such as 10m, 90s, 2h, 1d
    #[arg(long, value_name = "TIME|AGO", value_parser = crate::filter::moment, conflicts_with = "in_flight")]
    since: Option<Timestamp>,
    /// Print without colors, like with the environment variable NO_COLOR
    #[arg(long, conflicts_with = "in_flight")]
    no_color: bool,
    /// With --in-flight: only requests that have been in progress for at least this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0", requires = "in_flight")]
    min_age: Duration,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    tls: Tls,
    #[command(flatten)]
    node: Node,
}

fn window(text: &str) -> Result<ActivityWindow, String> {
    if text == "all" {
        return Ok(ActivityWindow::Whole);
    }
    let seconds = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let seconds = seconds.filter(|seconds| (1..=MAX_WINDOW_SECONDS).contains(seconds));
    seconds
        .map(ActivityWindow::Seconds)
        .ok_or_else(|| format!("expected a number of seconds up to {MAX_WINDOW_SECONDS}, or all"))
}

fn speed(text: &str) -> Result<f64, String> {
    let factor = text.strip_suffix('x').unwrap_or(text).parse().ok();
    let factor = factor.filter(|factor| (LEAST_SPEED..=MOST_SPEED).contains(factor));
    factor.ok_or_else(|| "expected a factor such as 10x or 0.5x".to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Some(source) = &arguments.source else {
        return in_flight::run(arguments);
    };
    let servers = sets::servers(source)?;
    anyhow::ensure!(
        arguments.since.is_none() || servers.is_none() || Path::new(source).exists(),
        "--since requires a trace directory; a log-server shows only current activity"
    );
    let since = arguments.since.map(nanoseconds);
    if arguments.once || arguments.format != Format::Text {
        return once(source, since, arguments);
    }
    // A file names the log-servers and the traces of a set: without --since, the screen shows what
    // is current.
    let playing = match servers.filter(|_| since.is_none()).as_deref() {
        Some([address]) => Source::Live(Live::connect(address, &arguments.tls)?),
        Some(servers) => Source::Set(sets::examine(servers, &arguments.tls)?),
        None => Source::Replay(Box::new(Replay::open(Path::new(source), since)?)),
    };
    anyhow::ensure!(
        stdout().is_terminal(),
        "standard output is not a terminal: add --once, or --format json or csv"
    );
    let interval = arguments.interval.unwrap_or(INTERVAL).max(Duration::from_millis(50));
    let window = arguments.window.unwrap_or(ActivityWindow::Seconds(10));
    let speed = arguments.speed;
    let colours = !arguments.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let view = view::ScreenState::new(source.clone(), arguments.view, window, colours);
    let tls = arguments.tls.clone();
    screen::show(view, move |orders, updates| match playing {
        Source::Live(live) => live.run(orders, updates, (window, interval.min(MOST_INTERVAL))),
        Source::Set(members) => {
            set::run(&members, &tls, orders, updates, (window, interval.min(MOST_INTERVAL)));
        }
        Source::Replay(replay) => replay.run(orders, updates, (window, speed, interval)),
    })
}

/// Source of the numbers.
enum Source {
    Live(Live),
    Set(Vec<MemberStatus>),
    Replay(Box<Replay>),
}

fn once(source: &str, since: Option<i64>, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        arguments.view != View::Requests,
        "requests in flight are shown only on the screen; `miot ctl status --server HOST:PORT --format json` lists them too"
    );
    let print = |snapshot: &ActivitySnapshot, window| {
        print::snapshot(snapshot, window, arguments.view, arguments.format, &mut stdout().lock())
            .context("cannot print")
    };
    let servers = sets::servers(source)?.filter(|servers| servers.len() > 1);
    if let Some(servers) = servers.filter(|_| !Path::new(source).exists()) {
        let window = arguments.window.unwrap_or(ActivityWindow::Seconds(10));
        print(&set::of_servers(&servers, &arguments.tls, window)?, window)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(address) = address(source) {
        let window = arguments.window.unwrap_or(ActivityWindow::Seconds(10));
        print(&Live::connect(address, &arguments.tls)?.ask(window)?.snapshot, window)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut activity = match sets::traces(Path::new(source))?.len() {
        1 => Replay::open(Path::new(source), since)?.all()?,
        _ => set::of_traces(Path::new(source), since)?,
    };
    let window = arguments.window.unwrap_or(ActivityWindow::Whole);
    if window != ActivityWindow::Whole {
        // Complete the second of the last event.
        activity.advance(activity.last().saturating_add(1_000_000_000));
    }
    let snapshot = activity.snapshot(window, ROWS);
    print(&snapshot, window)?;
    Ok(ExitCode::SUCCESS)
}

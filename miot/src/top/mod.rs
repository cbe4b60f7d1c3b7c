//! `miot top`: what programs do to files now, or did at some moment of a trace.
//!
//! ```text
//! replay (a directory) ─┐            ┌─► screen ─► view (keys) ─► draw
//!                       ├─► Update ──┤
//! live (a log-server) ──┘            └─► print (once, for scripts)
//! ```

mod columns;
mod draw;
mod in_flight;
mod live;
mod print;
mod replay;
mod screen;
mod update;
mod view;

use crate::ctl::Node;
use crate::filter::nanoseconds;
use crate::remote::{Tls, address};
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

/// Rows per kind that a snapshot has at least.
const ROWS: usize = 200;
/// A log-server forgets who says nothing for a minute.
const MOST_INTERVAL: Duration = Duration::from_secs(30);
/// Default pause between two updates.
const INTERVAL: Duration = Duration::from_secs(1);

/// Show what programs do to files: by cluster, node, job, process, file and operation; or what hangs
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  miot top server:4747                             what the cluster does now, as its log-server sees it
  miot top /var/lib/miot/trace --since 10m         the last ten minutes, played back, and on
  miot top miot-trace --speed 10x                  a whole trace, ten times as fast as it was
  miot top miot-trace --once --view files          a table of it all; --format json|csv for scripts
  miot top --in-flight --min-age 1s                what hangs on this node
  miot top --in-flight --interval 2s               again and again, until Ctrl-C
  miot top --in-flight --format json | jq -r .file

On the screen ? explains the keys and q quits. Operations, bytes and latencies are of the last ten seconds (w: another \
window) and of the outermost requests; a request within a request (a write of fwrite) counts in the operations alone. \
Latencies are right to a sixteenth. docs/guide/watching.md is the guide.

--in-flight needs no log-client. It shows the processes of this user, and those of all as root. The file is that of the system \
call in which the thread is, as /proc shows it to who may trace the process; else it is left empty. In json and csv \
times and ages are nanoseconds.")]
pub(crate) struct Arguments {
    /// A trace directory, or the host:port of a log-server
    #[arg(value_name = "DIR|HOST:PORT", conflicts_with = "in_flight", required_unless_present = "in_flight")]
    source: Option<String>,
    /// List the requests of this node that have begun and not ended, instead
    #[arg(long)]
    in_flight: bool,
    /// Print once, no screen: of a trace directory all of it; also with --format json or csv
    #[arg(long)]
    once: bool,
    /// Pause between two updates [default: 1s]; with --in-flight: print again and again
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "once")]
    interval: Option<Duration>,
    /// What to begin with, or to print; csv prints one view, json all
    #[arg(long, value_enum, default_value_t, conflicts_with = "in_flight")]
    view: View,
    /// Seconds that the numbers are of, or `all` [default: 10; of a directory with --once: all]
    #[arg(long, value_name = "SECONDS|all", value_parser = window, conflicts_with = "in_flight")]
    window: Option<ActivityWindow>,
    /// How fast a trace is played back, such as 10x or 0.5x
    #[arg(long, value_name = "FACTOR", value_parser = speed, default_value = "1x", conflicts_with = "in_flight")]
    speed: f64,
    /// Play back from this time on, e.g. 2026-11-21T12:00:00Z, or from so long ago: 10m, 90s, 2h, 1d
    #[arg(long, value_name = "TIME|AGO", value_parser = crate::filter::moment, conflicts_with = "in_flight")]
    since: Option<Timestamp>,
    /// No colours; as with the environment variable NO_COLOR
    #[arg(long, conflicts_with = "in_flight")]
    no_color: bool,
    /// With --in-flight: only requests that began so long ago
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0", requires = "in_flight")]
    min_age: Duration,
    /// How to print
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
    anyhow::ensure!(
        arguments.since.is_none() || address(source).is_none(),
        "--since plays a trace directory back; a log-server shows what happens now"
    );
    let since = arguments.since.map(nanoseconds);
    if arguments.once || arguments.format != Format::Text {
        return once(source, since, arguments);
    }
    let playing = match address(source) {
        Some(address) => Source::Live(Live::connect(address, &arguments.tls)?),
        None => Source::Replay(Box::new(Replay::open(Path::new(source), since)?)),
    };
    anyhow::ensure!(
        stdout().is_terminal(),
        "standard output is no terminal: add --once, or --format json or csv"
    );
    let interval = arguments.interval.unwrap_or(INTERVAL).max(Duration::from_millis(50));
    let window = arguments.window.unwrap_or(ActivityWindow::Seconds(10));
    let speed = arguments.speed;
    let colours = !arguments.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let view = view::State::new(source.clone(), arguments.view, window, colours);
    screen::show(view, move |orders, updates| match playing {
        Source::Live(live) => live.run(orders, updates, (window, interval.min(MOST_INTERVAL))),
        Source::Replay(replay) => replay.run(orders, updates, (window, speed, interval)),
    })
}

/// Where numbers come from.
enum Source {
    Live(Live),
    Replay(Box<Replay>),
}

fn once(source: &str, since: Option<i64>, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        arguments.view != View::Requests,
        "requests in flight are on the screen alone; `miot ctl status --server HOST:PORT --format json` has them too"
    );
    let print = |snapshot: &ActivitySnapshot, window| {
        print::snapshot(snapshot, window, arguments.view, arguments.format, &mut stdout().lock())
            .context("cannot print")
    };
    if let Some(address) = address(source) {
        let window = arguments.window.unwrap_or(ActivityWindow::Seconds(10));
        print(&Live::connect(address, &arguments.tls)?.ask(window)?.snapshot, window)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut activity = Replay::open(Path::new(source), since)?.all()?;
    let window = arguments.window.unwrap_or(ActivityWindow::Whole);
    if window != ActivityWindow::Whole {
        // The second of the last event is over.
        activity.advance(activity.last().saturating_add(1_000_000_000));
    }
    let snapshot = activity.snapshot(window, ROWS);
    print(&snapshot, window)?;
    Ok(ExitCode::SUCCESS)
}

//! `miot tail`: prints the latest and further events of a trace directory or a log-server.

mod set;

use crate::filter::{Filter, Matcher};
use crate::output::Out;
use crate::remote::{Tls, connect, receive, send};
use crate::{sets, unread};
use arrow_array::RecordBatch;
use clap::Args;
use miot_proto::wire::{Message, Role};
use miot_trace_events::{Format, RowPrinter};
use miot_trace_store::{arrow_stream, follow};
use std::collections::VecDeque;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Polling interval of a directory: half of the 0.1 s within which an event should be printed.
const POLL: Duration = Duration::from_millis(50);

/// Print the last events of a trace, or follow it as it grows
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot tail miot-trace                    the last ten events\n  miot tail -f /var/lib/miot/trace        the last ten events, then new ones\n  miot tail -f server:4747 --op open      opens of the whole cluster as they complete\n  miot tail -f --since 10m server:4747    events of the last ten minutes, then new ones\n  miot tail -f a:4747,b:4747               log-servers of a set, in one order\n  miot tail -f server:4747 --tls-certificate alice.pem --tls-key alice.key --tls-authority ca.pem"
)]
pub(crate) struct Arguments {
    /// Trace directory, or host:port of a log-server (with -f); or a set of these: separated by
    /// commas, or a file set.toml
    #[arg(value_name = "DIR|HOST:PORT|SET", default_value = ".")]
    source: String,
    /// Print further events as they arrive
    #[arg(short, long)]
    follow: bool,
    /// Number of existing events to print first
    #[arg(short = 'n', long, default_value_t = 10)]
    lines: usize,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    tls: Tls,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let matcher = arguments.filter.matcher()?;
    let mut printer = RowPrinter::new(Out::new(arguments.format == Format::Json), arguments.format, None);
    let source = Path::new(&arguments.source);
    // Without -f, the traces of a set file are read.
    let servers = sets::servers(&arguments.source)?.filter(|_| arguments.follow || !source.exists());
    let Some(servers) = servers else {
        return match sets::traces(source)?.as_slice() {
            dirs @ [_, _, ..] if arguments.follow => {
                set::directories(dirs, arguments.lines, &matcher, &mut printer)
            }
            _ => local(source, arguments, &matcher, &mut printer),
        };
    };
    anyhow::ensure!(
        arguments.follow,
        "a log-server can only be followed: add -f, or read its trace directory"
    );
    let subscribe = set::subscribe(&arguments.filter);
    match servers.as_slice() {
        [address] => remote(address, &subscribe, &arguments.tls, &matcher, &mut printer),
        several => set::servers(several, &subscribe, &arguments.tls, &matcher, &mut printer),
    }
}

fn local(
    dir: &Path,
    arguments: &Arguments,
    matcher: &Matcher,
    printer: &mut RowPrinter<'_>,
) -> anyhow::Result<ExitCode> {
    // Start to follow before reading the last lines, so that no event is missed in between. Events
    // that both read are printed once, by position.
    let mut follower =
        if arguments.follow { Some(unread::follow(dir, follow::FollowFrom::Start)?) } else { None };
    if let Some(follower) = &mut follower {
        let mut last = LastRows::new(arguments.lines);
        loop {
            let batches = follower.poll()?;
            if batches.is_empty() {
                break;
            }
            batches.into_iter().for_each(|batch| last.push(batch));
        }
        last.print(matcher, printer)?;
        let mut missed = follower.missed();
        loop {
            if follower.missed() > missed {
                let parts = follower.missed() - missed;
                eprintln!("miot: retention removed {parts} of the parts before they could be read");
                missed = follower.missed();
            }
            for batch in follower.poll()? {
                printer.print(&batch, u64::MAX, &matcher.rows())?;
            }
            printer.flush()?;
            unread::report_unread();
            std::thread::sleep(POLL);
        }
    }
    let mut last = LastRows::new(arguments.lines);
    for batch in unread::open(dir)?.rows()? {
        last.push(batch?);
    }
    last.print(matcher, printer)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps as many of the last batches as the last lines require.
struct LastRows {
    lines: usize,
    batches: VecDeque<RecordBatch>,
    rows: usize,
}

impl LastRows {
    fn new(lines: usize) -> LastRows {
        LastRows { lines, batches: VecDeque::new(), rows: 0 }
    }

    fn push(&mut self, batch: RecordBatch) {
        self.rows += batch.num_rows();
        self.batches.push_back(batch);
        while let Some(first) = self.batches.front().map(RecordBatch::num_rows)
            && self.rows - first >= self.lines
        {
            self.rows -= first;
            self.batches.pop_front();
        }
    }

    fn print(mut self, matcher: &Matcher, printer: &mut RowPrinter<'_>) -> anyhow::Result<()> {
        if let Some(first) = self.batches.front_mut() {
            let skip = self.rows.saturating_sub(self.lines).min(first.num_rows());
            *first = first.slice(skip, first.num_rows() - skip);
        }
        for batch in &self.batches {
            printer.print(batch, u64::MAX, &matcher.rows())?;
        }
        Ok(printer.flush()?)
    }
}

fn remote(
    address: &str,
    subscribe: &Message,
    tls: &Tls,
    matcher: &Matcher,
    printer: &mut RowPrinter<'_>,
) -> anyhow::Result<ExitCode> {
    let mut stream = connect(address, tls, Role::Tail, None)?;
    send(&mut *stream, subscribe)?;
    loop {
        match receive(&mut *stream)? {
            Message::Rows { arrow } => {
                for batch in arrow_stream::read(&arrow)? {
                    printer.print(&batch, u64::MAX, &matcher.rows())?;
                }
                printer.flush()?;
            }
            Message::SubscriptionEnd { reason } => anyhow::bail!("the log-server ended the stream: {reason}"),
            Message::Bye => return Ok(ExitCode::SUCCESS),
            _ => {}
        }
    }
}

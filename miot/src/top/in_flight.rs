//! `miot top --in-flight`: requests in progress on this node.

use super::Arguments;
use crate::ctl::Node;
use crate::filter::nanoseconds;
use anyhow::Context as _;
use jiff::Timestamp;
use miot_log_client::Control;
use miot_log_client::in_flight::{InFlight, InFlightList, InFlightReader};
use miot_proto::op::{Layer, Op};
use miot_proto::units::format_duration;
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{duration, printable, table, time};
use serde::Serialize;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// JSON or CSV row of a request.
#[derive(Debug, Serialize)]
struct InFlightRow<'a> {
    time: &'a str,
    age: u64,
    node: &'a str,
    pid: u32,
    tid: u32,
    comm: String,
    exe: String,
    layer: String,
    op: String,
    request: u32,
    handle: Option<u64>,
    offset: Option<u64>,
    length: Option<u64>,
    file: Option<String>,
    enclosing_layer: Option<String>,
    enclosing_op: Option<String>,
    enclosing_request: Option<u32>,
    enclosing_age: Option<u64>,
    caller_tid: Option<u32>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut reader = InFlightReader::open(&arguments.node.dir())
        .context("no recording found there: name the directory of a log-client (--dir, MIOT_DIR)")?;
    let node = Node::name(Control::of_node(&arguments.node.dir()).ok().as_ref());
    let mut out = stdout().lock();
    let mut is_first = true;
    loop {
        let listing = reader.list(arguments.min_age)?;
        let now = time(nanoseconds(Timestamp::now()));
        match arguments.format {
            Format::Text => {
                if let Some(interval) = arguments.interval {
                    writeln!(
                        out,
                        "{}{now}, every {}",
                        if is_first { "" } else { "\n" },
                        format_duration(interval)
                    )?;
                }
                text(&node, &listing, &mut out)?;
            }
            format => {
                let rows = listing.requests.iter().map(|request| row(&now, &node, request));
                records(&mut out, format, is_first, rows)?;
            }
        }
        out.flush()?;
        if is_first {
            say_what_is_missing(&listing);
        }
        is_first = false;
        match arguments.interval {
            Some(interval) => std::thread::sleep(interval),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn say_what_is_missing(listing: &InFlightList) {
    if listing.hidden > 0 {
        eprintln!("miot: {} processes of other users are not shown: run as root to see them", listing.hidden);
    }
    if listing.unfit > 0 {
        eprintln!(
            "miot: {} processes are not shown, their segments are of another version or invalid",
            listing.unfit
        );
    }
}

fn text(node: &str, listing: &InFlightList, out: &mut impl Write) -> std::io::Result<()> {
    if listing.requests.is_empty() {
        return writeln!(out, "no request in flight in {} processes", listing.processes);
    }
    let shown = |bytes: &[u8]| printable(&String::from_utf8_lossy(bytes)).into_owned();
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let rows = listing.requests.iter().map(|request| {
        let mut file = shown(&request.file);
        if let Some(outer) = &request.parent {
            file = format!("{file} (in {}, {})", name(outer.op), age(outer.age)).trim_start().to_owned();
        }
        if let Some(caller) = request.caller {
            file = format!("{file} (for thread {caller})").trim_start().to_owned();
        }
        [
            age(request.age),
            node.to_owned(),
            request.pid.to_string(),
            request.tid.to_string(),
            shown(&request.comm),
            shown(&request.exe),
            name(request.op),
            number(request.offset),
            number(request.length),
            file,
        ]
    });
    let header = ["AGE", "NODE", "PID", "TID", "COMM", "EXE", "OP", "OFFSET", "LENGTH", "FILE"];
    table(out, header.map(str::to_owned), rows.collect())
}

fn row<'a>(time: &'a str, node: &'a str, request: &InFlight) -> InFlightRow<'a> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let age = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    let outer = request.parent.as_ref();
    InFlightRow {
        time,
        age: age(request.age),
        node,
        pid: request.pid,
        tid: request.tid,
        comm: text(&request.comm),
        exe: text(&request.exe),
        layer: layer(request.op),
        op: op(request.op),
        request: request.request,
        handle: request.handle,
        offset: request.offset,
        length: request.length,
        file: Some(text(&request.file)).filter(|file| !file.is_empty()),
        enclosing_layer: outer.map(|outer| layer(outer.op)),
        enclosing_op: outer.map(|outer| op(outer.op)),
        enclosing_request: outer.map(|outer| outer.request),
        enclosing_age: outer.map(|outer| age(outer.age)),
        caller_tid: request.caller,
    }
}

fn age(age: Duration) -> String {
    duration(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX))
}

fn name(of: Op) -> String {
    format!("{}.{}", layer(of), op(of))
}

fn layer(op: Op) -> String {
    Layer::from_number(op.layer).map_or_else(|| op.layer.to_string(), |layer| layer.name().to_owned())
}

fn op(op: Op) -> String {
    op.name().map_or_else(|| op.number.to_string(), str::to_owned)
}

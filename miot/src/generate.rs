//! `miot generate`: writes a trace of a model of a program.

use crate::source::bar;
use anyhow::Context as _;
use clap::Args;
use miot_proto::event::flag;
use miot_proto::op::{Op, by_name};
use miot_simulator::Request;
use miot_simulator::generate::{self, Generated, MODELS, Model};
use miot_trace_exchange::build::{Event, Process, ProcessId, Thread, TraceBuilder};
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

/// Generate the trace of a model of one of the programs that Miller traced in 1990
#[derive(Args, Debug)]
#[command(
    after_help = "The traces of 1990 are not public. These are models: the number of requests, bytes, processor time, data and shares of reads\nare those of Miller's Tables 1 and 2, cycles and asynchronous requests those of his text; names of files, pauses within\na cycle and the rate of bursts are assumptions of MIOT. See docs/guide/simulate.md.\n\nExamples:\n  miot generate --like venus -o venus-trace\n  miot generate --like les,venus --seconds 60 -o two        two processes\n  miot generate --list\n  miot simulate venus-trace --cache 4M..512M"
)]
pub(crate) struct Arguments {
    /// Programs: bvi, ccm, forma, gcm, les, upw, venus; each becomes a process
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',', value_parser = model, required_unless_present = "list")]
    like: Vec<String>,
    /// Directory of the new trace
    #[arg(short, long, value_name = "DIR", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Limit to this number of seconds of processor time
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Seed of the computing times between requests and of the blocks of sparse matrices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the models and their parameters
    #[arg(long)]
    list: bool,
}

fn model(name: &str) -> Result<String, String> {
    let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
    if names.contains(&name) { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds such as 60 or 0.5")?;
    if seconds.is_finite() && seconds > 0.0 { Ok(seconds) } else { Err("expected more than 0".into()) }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut out = stdout().lock();
    if arguments.list {
        for model in &MODELS {
            writeln!(out, "{:<6} {}", model.name, model.what)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let Some(dir) = &arguments.output else { return Ok(ExitCode::SUCCESS) };
    let mut builder =
        TraceBuilder::create(dir).with_context(|| format!("cannot create a trace in {}", dir.display()))?;
    for (nth, name) in arguments.like.iter().enumerate() {
        let model = generate::named(name).context("the name was checked")?;
        let made = generate::generate(model, arguments.seconds, arguments.seed.wrapping_add(nth as u64));
        add(&mut builder, model, &made, nth as u32 + 1)?;
    }
    let (events, files) = (builder.events(), builder.files());
    let bar = bar(events, "events");
    builder.finish(|written| bar.inc(written))?;
    drop(bar);
    let names = arguments.like.join(", ");
    writeln!(
        out,
        "{events} events on {files} files in {}: a model of {names}, not a recorded trace",
        dir.display()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Start time of a trace: 14 December 1990, the date of the report. Nanoseconds since 1970.
const BEGIN: i64 = 661_132_800_000_000_000;
/// Fixed part of a request's duration, nanoseconds. A request takes 10 us and 1 ns per byte, as if
/// storage were memory. A simulation does not use it.
const LEAST: i64 = 10_000;

fn add(builder: &mut TraceBuilder, model: &Model, made: &Generated, pid: u32) -> anyhow::Result<()> {
    let process = builder.process(Process {
        node: "model".to_owned(),
        pid,
        exe: format!("/model/{}", model.name),
        cmdline: format!("{} (a model after Miller 1990, not a recorded trace)", model.name),
        cwd: "/model".to_owned(),
        ..Process::default()
    });
    let thread = builder.thread(process, pid, model.name);
    let mut program = Writing { builder, process, thread, time: BEGIN, cpu: 0 };
    for nth in 0..made.files.len() {
        program.whole(model, made, nth, "openat")?;
    }
    for request in &made.requests {
        program.request(model, made, request)?;
    }
    program.compute(made.rest);
    for nth in 0..made.files.len() {
        program.whole(model, made, nth, "close")?;
    }
    Ok(())
}

/// Writer of the events of a program.
struct Writing<'a> {
    builder: &'a mut TraceBuilder,
    process: ProcessId,
    thread: Thread,
    /// Current time of the program's clock.
    time: i64,
    /// Processor time used so far.
    cpu: i64,
}

impl Writing<'_> {
    fn compute(&mut self, cpu: u64) {
        let cpu = i64::try_from(cpu).unwrap_or(i64::MAX);
        self.time = self.time.saturating_add(cpu);
        self.cpu = self.cpu.saturating_add(cpu);
    }

    /// Writes an operation on a whole file, e.g. open or close.
    fn whole(&mut self, model: &Model, made: &Generated, nth: usize, op: &str) -> anyhow::Result<()> {
        let mut event = self.event(op, LEAST)?;
        event.file = Some(self.builder.file(self.process, path(model, made, nth).as_bytes())?);
        event.handle = Some(nth as u64 + 1);
        event.result = if op == "close" { 0 } else { nth as i64 + 3 };
        self.time += LEAST;
        Ok(self.builder.event(&event)?)
    }

    fn request(&mut self, model: &Model, made: &Generated, request: &Request) -> anyhow::Result<()> {
        self.compute(request.cpu);
        let length = request.length as i64;
        let takes = LEAST + length;
        let op = match (request.is_async, request.write) {
            (false, false) => "pread",
            (false, true) => "pwrite",
            (true, false) => "aio_read",
            (true, true) => "aio_write",
        };
        let mut event = self.event(op, takes)?;
        let nth = request.file as usize;
        event.file = Some(self.builder.file(self.process, path(model, made, nth).as_bytes())?);
        event.handle = Some(u64::from(request.file) + 1);
        event.offset = Some(request.offset as i64);
        event.length = Some(length);
        event.result = length;
        if request.is_async {
            event.flags |= flag::ASYNC;
        } else {
            self.time += takes;
        }
        Ok(self.builder.event(&event)?)
    }

    fn event(&self, op: &str, takes: i64) -> anyhow::Result<Event> {
        let op: Op = by_name("posix", op).with_context(|| format!("the operation {op}"))?.op;
        let mut event = Event::new(self.thread, op, self.time, self.time + takes);
        event.cpu_time = Some(self.cpu);
        Ok(event)
    }
}

fn path(model: &Model, made: &Generated, nth: usize) -> String {
    format!("/model/{}/{}", model.name, made.files[nth])
}

//! The JSON trace event format, which ui.perfetto.dev, `chrome://tracing` and speedscope display as
//! a timeline.
//!
//! A request is a complete event (`X`) of its thread; its child requests are drawn below it. A
//! region is one with its own name, and the requests within it are drawn below it. A request that
//! completes asynchronously, or that overlaps another one of its thread without being within it, is
//! a pair of asynchronous events (`b`, `e`) on a separate line. Times are microseconds with three
//! decimals from an origin that `otherData` contains in nanoseconds since 1970. Readers use
//! floating-point numbers, which cannot represent the time since 1970 to the nanosecond.
//!
//! Process and thread ids of different nodes may be equal, which the format does not support.
//! Therefore the first process with an id keeps it, and later ones get numbers beyond the range of
//! Linux. The names contain the original ids and the nodes.

use crate::numbers::Numbers;
use arrow_array::RecordBatch;
use arrow_array::types::{UInt32Type, UInt64Type};
use miot_proto::event::flag;
use miot_trace_events::row::{self, Column, EventRow, Value};
use miot_trace_store::schema::{column, text};
use std::collections::HashMap;
use std::io::{self, Write};

/// Number of recent requests of a thread that are kept to detect overlaps.
const REMEMBERED: usize = 64;
/// Nanoseconds of a day.
const DAY: i64 = 86_400_000_000_000;
/// Floating-point numbers represent integers up to this value exactly.
const EXACT: u64 = 1 << 53;

/// Columns without an argument: the event, its process or its thread contains them.
const IMPLIED: [&str; 9] = ["time", "duration", "node", "process", "pid", "tid", "comm", "layer", "op"];

/// Writes a trace. Memory grows with the number of threads and processes, not with the number of
/// events.
#[derive(Debug)]
pub struct Perfetto<W> {
    to: W,
    tracer: String,
    arguments: Vec<&'static Column>,
    facts: HashMap<u64, Facts>,
    processes: HashMap<u64, u32>,
    process_numbers: Numbers,
    threads: HashMap<(u64, u32), Thread>,
    thread_numbers: Numbers,
    /// Time 0 in nanoseconds since 1970; `None` until something is written.
    origin: Option<i64>,
    any: bool,
}

/// Data of a process from the table `processes`.
#[derive(Debug, Default)]
struct Facts {
    program: String,
    labels: String,
}

#[derive(Debug, Default)]
struct Thread {
    number: u32,
    /// Begin and end of recent requests that are not within another one.
    recent: Vec<(i64, i64)>,
}

impl<W: Write> Perfetto<W> {
    /// Returns a writer. `tracer` is the name and version of the recording tracer, as the trace
    /// states them.
    pub fn new(to: W, tracer: &str) -> Perfetto<W> {
        let mut arguments = row::columns_by_schema();
        arguments.retain(|column| !IMPLIED.contains(&column.name));
        Perfetto {
            to,
            tracer: tracer.to_owned(),
            arguments,
            facts: HashMap::new(),
            processes: HashMap::new(),
            process_numbers: Numbers::default(),
            threads: HashMap::new(),
            thread_numbers: Numbers::default(),
            origin: None,
            any: false,
        }
    }

    /// Adds rows of the table `processes`. They must be added before the events.
    pub fn processes(&mut self, batch: &RecordBatch) {
        let (Some(ids), Some(programs)) = (column::<UInt64Type>(batch, "process"), text(batch, "exe")) else {
            return;
        };
        let (jobs, ranks) = (text(batch, "job"), column::<UInt32Type>(batch, "rank"));
        for row in 0..batch.num_rows() {
            let program = programs.value(row).rsplit('/').next().unwrap_or("").to_owned();
            let mut labels = Vec::new();
            labels.extend(jobs.and_then(|jobs| jobs.iter().nth(row)?).map(|job| format!("job {job}")));
            labels.extend(
                ranks.as_ref().and_then(|ranks| ranks.iter().nth(row)?).map(|rank| format!("rank {rank}")),
            );
            self.facts.insert(ids.value(row), Facts { program, labels: labels.join(", ") });
        }
    }

    /// Adds events in the schema of `miot_trace_store::schema::rows`, in the order of the trace.
    ///
    /// # Errors
    /// Errors of writing; missing columns.
    pub fn add(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let columns = row::columns(batch)?;
        for i in 0..columns.rows() {
            let row = EventRow::of(&columns, i);
            let end = row.time;
            let begin = end.saturating_sub(row.duration.max(0));
            let origin = self.begin(begin)?;
            let pid = self.process(row.process, row.pid, row.node)?;
            let is_region = (row.layer, row.op) == ("app", "region");
            // A region is one of the thread that began it.
            let (tid, comm) = match row.caller_tid.filter(|tid| is_region && *tid != row.tid) {
                Some(tid) => (tid, ""),
                None => (row.tid, row.comm.unwrap_or("")),
            };
            let number = self.thread(row.process, pid, tid, comm)?;
            let is_async = row.flags & flag::ASYNC != 0 && !is_region;
            let apart = is_async
                || self
                    .threads
                    .get_mut(&(row.process, tid))
                    .is_some_and(|thread| thread.overlaps(begin, end));
            let name = row.path.filter(|_| is_region).unwrap_or(row.op);
            let (layer, op) = (json(row.layer)?, json(name)?);
            let event = format!("\"pid\":{pid},\"tid\":{number},\"cat\":{layer},\"name\":{op}");
            self.separate()?;
            if apart {
                let id = format!("\"id\":\"{}.{}\"", row.stream, row.request);
                write!(self.to, "{{\"ph\":\"b\",{id},\"ts\":{},{event},\"args\":", Micros(begin, origin))?;
                self.arguments(&row)?;
                write!(self.to, "}},\n{{\"ph\":\"e\",{id},\"ts\":{},{event}}}", Micros(end, origin))?;
            } else {
                write!(
                    self.to,
                    "{{\"ph\":\"X\",\"ts\":{},\"dur\":{},{event},\"args\":",
                    Micros(begin, origin),
                    Micros(end, begin)
                )?;
                self.arguments(&row)?;
                self.to.write_all(b"}")?;
            }
        }
        Ok(())
    }

    /// Writes the header before the first event. Returns time 0.
    fn begin(&mut self, first: i64) -> io::Result<i64> {
        if let Some(origin) = self.origin {
            return Ok(origin);
        }
        // Later events may begin earlier, because events are in order of completion.
        let origin = first.div_euclid(DAY).saturating_sub(1).saturating_mul(DAY);
        self.origin = Some(origin);
        let tracer = json(&self.tracer)?;
        writeln!(
            self.to,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"recorded_by\":{tracer},\"nanoseconds_since_1970_at_0\":\"{origin}\"}},\"traceEvents\":["
        )?;
        Ok(origin)
    }

    fn separate(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.any, true) {
            self.to.write_all(b",\n")?;
        }
        Ok(())
    }

    fn process(&mut self, process: u64, pid: u32, node: &str) -> io::Result<u32> {
        if let Some(number) = self.processes.get(&process) {
            return Ok(*number);
        }
        let number = self.process_numbers.give(pid);
        self.processes.insert(process, number);
        let facts = self.facts.get(&process);
        let program = facts.map_or("", |facts| facts.program.as_str());
        let name = json(format!("{program} {pid} @ {node}").trim_start())?;
        let mut labels = format!("node {node}");
        if let Some(more) = facts.map(|facts| facts.labels.as_str()).filter(|more| !more.is_empty()) {
            labels = labels + ", " + more;
        }
        let labels = json(&labels)?;
        self.separate()?;
        write!(
            self.to,
            "{{\"ph\":\"M\",\"pid\":{number},\"name\":\"process_name\",\"args\":{{\"name\":{name}}}}},\n{{\"ph\":\"M\",\"pid\":{number},\"name\":\"process_labels\",\"args\":{{\"labels\":{labels}}}}}"
        )?;
        Ok(number)
    }

    fn thread(&mut self, process: u64, pid: u32, tid: u32, comm: &str) -> io::Result<u32> {
        if let Some(thread) = self.threads.get(&(process, tid)) {
            return Ok(thread.number);
        }
        let number = self.thread_numbers.give(tid);
        self.threads.insert((process, tid), Thread { number, recent: Vec::new() });
        let name = json(format!("{comm} {tid}").trim_start())?;
        self.separate()?;
        write!(
            self.to,
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{number},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
        )?;
        Ok(number)
    }

    fn arguments(&mut self, row: &EventRow<'_>) -> io::Result<()> {
        self.to.write_all(b"{")?;
        let mut separator = "";
        for column in &self.arguments {
            let Some(value) = column.value(row) else { continue };
            write!(self.to, "{separator}\"{}\":", column.name)?;
            separator = ",";
            match value {
                Value::Time(number) | Value::Signed(number) if number.unsigned_abs() <= EXACT => {
                    write!(self.to, "{number}")?
                }
                Value::Time(number) | Value::Signed(number) => write!(self.to, "\"{number}\"")?,
                Value::Unsigned(number) if number <= EXACT => write!(self.to, "{number}")?,
                Value::Unsigned(number) => write!(self.to, "\"{number}\"")?,
                Value::Text(text) => serde_json::to_writer(&mut self.to, text.as_ref())?,
            }
        }
        self.to.write_all(b"}")
    }

    /// Writes the end of the trace.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> io::Result<()> {
        self.begin(0)?;
        self.to.write_all(b"\n]}\n")?;
        self.to.flush()
    }
}

impl Thread {
    /// Adds the next request in order of completion. Returns true if it overlaps an earlier one
    /// that is not within it.
    fn overlaps(&mut self, begin: i64, end: i64) -> bool {
        while self.recent.last().is_some_and(|(earlier, _)| *earlier >= begin) {
            self.recent.pop();
        }
        if self.recent.last().is_some_and(|(_, ended)| *ended > begin) {
            return true;
        }
        if self.recent.len() >= REMEMBERED {
            self.recent.remove(0);
        }
        self.recent.push((begin, end));
        false
    }
}

fn json(text: &str) -> io::Result<String> {
    Ok(serde_json::to_string(text)?)
}

/// Microseconds from the second time to the first, with three decimals.
struct Micros(i64, i64);

impl std::fmt::Display for Micros {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Micros(time, from) = *self;
        let apart = time.abs_diff(from);
        let sign = if time < from { "-" } else { "" };
        write!(out, "{sign}{}.{:03}", apart / 1000, apart % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::{Micros, Thread};

    #[test]
    fn times_have_three_decimals() {
        let shown = [(0, 0), (5, 0), (1_234_567, 0), (0, 1), (i64::MAX, i64::MIN)];
        let shown = shown.map(|(time, from)| Micros(time, from).to_string());
        assert_eq!(shown, ["0.000", "0.005", "1234.567", "-0.001", "18446744073709551.615"]);
    }

    #[test]
    fn child_requests_do_not_overlap_parents() {
        let mut thread = Thread::default();
        // Two within a third, one after it, one that begins within that one and ends after it.
        let requests = [(1, 2), (3, 4), (0, 5), (5, 8), (7, 9), (6, 10), (10, 11), (4, 12)];
        let found = requests.map(|(begin, end)| thread.overlaps(begin, end));
        assert_eq!(found, [false, false, false, false, true, true, false, true]);
    }
}

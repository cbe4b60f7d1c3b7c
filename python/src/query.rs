//! SQL: `miot-query` runs it in a process of its own, with its memory limit, and writes the result
//! as an Arrow stream to its standard output.

use crate::signals::{Failure, Signals, reading};
use crate::stream::{Batches, Stream};
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::{Schema, SchemaRef};
use miot_trace_results::Error;
use pyo3::prelude::*;
use std::io::Read as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Batches that may wait for the caller.
const AHEAD: usize = 4;
/// Time between two looks for signals.
const POLL: Duration = Duration::from_millis(50);
/// Exit code of the engine if the result lacks damaged data, which it names on standard error.
const EXIT_INCOMPLETE: i32 = 4;
/// Exit code for SQL that is not valid.
const EXIT_USAGE: i32 = 2;

/// What the thread that reads the output of the engine sends.
enum Output {
    Schema(SchemaRef),
    Batch(RecordBatch),
    /// The output is not an Arrow stream: the engine failed, or was killed.
    Failed(String),
}

/// The rows of a query.
struct Rows {
    child: Child,
    output: Receiver<Output>,
    /// Standard error of the engine.
    errors: Option<JoinHandle<String>>,
    notes: Arc<Mutex<Vec<String>>>,
    signals: Signals,
    ended: bool,
}

impl Drop for Rows {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stdout: ChildStdout, to: &SyncSender<Output>) -> Result<(), String> {
    let reader = StreamReader::try_new(stdout, None).map_err(|error| error.to_string())?;
    if to.send(Output::Schema(reader.schema())).is_err() {
        return Ok(());
    }
    for batch in reader {
        if to.send(Output::Batch(batch.map_err(|error| error.to_string())?)).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

impl Rows {
    fn begin(command: &[String], signals: Signals, notes: Arc<Mutex<Vec<String>>>) -> Result<Rows, Error> {
        let cannot = |error: std::io::Error| {
            Error::Failed(format!("cannot run {}: {error}", command.first().map_or("", String::as_str)))
        };
        let mut words = command.iter();
        let mut child = Command::new(words.next().map_or("", String::as_str));
        child.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().map_err(cannot)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (sender, output) = sync_channel(AHEAD);
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stderr) = stderr {
                // What was read before an error is kept.
                let _ = stderr.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        });
        std::thread::spawn(move || {
            if let Some(Err(error)) = stdout.map(|stdout| read(stdout, &sender)) {
                let _ = sender.send(Output::Failed(error));
            }
        });
        Ok(Rows { child, output, errors: Some(errors), notes, signals, ended: false })
    }

    /// Waits for the next output; `None` at the end.
    fn receive(&mut self) -> Result<Option<Output>, Error> {
        loop {
            match self.output.recv_timeout(POLL) {
                Ok(Output::Failed(error)) => return Err(self.end().err().unwrap_or(Error::Failed(error))),
                Ok(output) => {
                    self.signals.check()?;
                    return Ok(Some(output));
                }
                Err(RecvTimeoutError::Timeout) => self.signals.check()?,
                Err(RecvTimeoutError::Disconnected) => return self.end().map(|()| None),
            }
        }
    }

    /// Waits for the end of the engine: takes its notes, or returns its error.
    fn end(&mut self) -> Result<(), Error> {
        self.ended = true;
        let status = self.child.wait().map_err(|error| Error::Failed(error.to_string()))?;
        // After Ctrl-C both processes got the signal.
        std::thread::sleep(if status.success() { Duration::ZERO } else { POLL });
        self.signals.check()?;
        let text = self.errors.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let lines = text.lines().map(|line| line.strip_prefix("miot query: ").unwrap_or(line).to_owned());
        let lines: Vec<String> = lines.collect();
        match status.code() {
            Some(0 | EXIT_INCOMPLETE) => {
                self.notes.lock().unwrap_or_else(PoisonError::into_inner).extend(lines);
                Ok(())
            }
            Some(EXIT_USAGE) => Err(Error::Option(lines.join("\n"))),
            _ if lines.is_empty() => Err(Error::Failed(format!("the query engine ended: {status}"))),
            _ => Err(Error::Failed(lines.join("\n"))),
        }
    }
}

impl Iterator for Rows {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.receive() {
                Ok(Some(Output::Batch(batch))) => return Some(Ok(batch)),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Runs a command that writes an Arrow stream, and streams its rows.
#[pyfunction]
pub(crate) fn query(py: Python<'_>, command: Vec<String>) -> PyResult<Stream> {
    let failure = Failure::default();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let begun = reading(py, |_| {
        let signals = Signals::new(failure.clone());
        let mut rows = Rows::begin(&command, signals, Arc::clone(&notes))?;
        let schema = match rows.receive()? {
            Some(Output::Schema(schema)) => schema,
            _ => Arc::new(Schema::empty()),
        };
        Ok((rows, schema))
    });
    let (rows, schema) = match (failure.take(), begun) {
        // The exception of a signal handler.
        (Some(error), Err(_)) => return Err(error),
        (_, begun) => begun?,
    };
    let all = Batches::new(rows, schema, failure.clone());
    let of_stream = move || notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Stream::new(Box::new(all), failure, Box::new(of_stream)))
}

//! Events as they arrive: from a trace directory, or from a log-server.

use crate::batch::Batch;
use crate::signals::{Signals, reading};
use arrow_array::{BooleanArray, RecordBatch};
use miot_proto::wire::{Message, Role};
use miot_trace_events::EventColumns;
use miot_trace_results::server::{Certificates, Connection, connect, receive, send};
use miot_trace_results::{Error, EventFilter, Matcher};
use miot_trace_store::{UnreadLog, arrow_stream, follow};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between two looks at a directory, and between two looks for signals.
const POLL: Duration = Duration::from_millis(50);

/// Batches of a log-server that may wait for the caller. Then the log-server waits.
const AHEAD: usize = 4;

/// Where the events come from.
enum Source {
    Directory(Box<follow::Follow>),
    Server { batches: Receiver<Result<RecordBatch, Error>>, socket: TcpStream },
    Closed,
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Source::Server { socket, .. } = self {
            // Ends the thread that reads it.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

struct State {
    source: Source,
    waiting: VecDeque<RecordBatch>,
}

/// Events as they arrive.
#[pyclass(module = "miot._miot", frozen)]
pub(crate) struct Follow {
    state: Mutex<State>,
    matcher: Matcher,
    unread: UnreadLog,
}

fn filter(
    op: Vec<String>,
    layer: Vec<String>,
    path: Vec<String>,
    pid: Vec<u32>,
    node: Vec<String>,
    since: Option<i64>,
) -> EventFilter {
    EventFilter { op, layer, path, pid, node, since, until: None }
}

#[pymethods]
impl Follow {
    /// Follows a trace directory, from a time on; without a time, from now on.
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "arguments of a function of Python")]
    fn directory(
        py: Python<'_>,
        dir: PathBuf,
        op: Vec<String>,
        layer: Vec<String>,
        path: Vec<String>,
        pid: Vec<u32>,
        node: Vec<String>,
        since: Option<i64>,
    ) -> PyResult<Follow> {
        reading(py, |_| {
            let matcher = filter(op, layer, path, pid, node, since).matcher()?;
            let from = since.map_or(follow::FollowFrom::End, follow::FollowFrom::Time);
            let followed = follow::Follow::tolerant(&dir, from)?;
            let unread = followed.unread();
            let source = Source::Directory(Box::new(followed));
            Ok(Follow { state: Mutex::new(State { source, waiting: VecDeque::new() }), matcher, unread })
        })
    }

    /// Follows a log-server.
    #[staticmethod]
    #[allow(clippy::too_many_arguments, reason = "arguments of a function of Python")]
    fn server(
        py: Python<'_>,
        address: &str,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        authority: Option<PathBuf>,
        op: Vec<String>,
        layer: Vec<String>,
        path: Vec<String>,
        pid: Vec<u32>,
        node: Vec<String>,
        since: Option<i64>,
    ) -> PyResult<Follow> {
        reading(py, |_| {
            let filter = filter(op, layer, path, pid, node, since);
            let matcher = filter.matcher()?;
            let tls = Certificates {
                certificate: certificate.as_deref(),
                key: key.as_deref(),
                authority: authority.as_deref(),
            };
            let Connection { mut stream, socket } = connect(address, tls, Role::Tail, None)?;
            let EventFilter { op, layer, path, pid, node, since, .. } = filter;
            let subscribe =
                Message::Subscribe { layers: layer, ops: op, paths: path, pids: pid, nodes: node, since };
            send(&mut *stream, &subscribe)?;
            let (sender, batches) = sync_channel(AHEAD);
            let thread = std::thread::Builder::new().name("miot-follow".into());
            let read = move || while pass_on(&mut *stream, &sender) {};
            thread.spawn(read).map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
            let source = Source::Server { batches, socket };
            let state = Mutex::new(State { source, waiting: VecDeque::new() });
            Ok(Follow { state, matcher, unread: UnreadLog::default() })
        })
    }

    /// Waits for events; returns `None` if none arrive within `timeout` seconds, or after the end.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        let timeout = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
        let until = timeout.and_then(Result::ok).and_then(|timeout| Instant::now().checked_add(timeout));
        reading(py, |signals| self.wait(signals, until))
    }

    /// Ends the connection. Later calls of `next` return `None`.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            *state = State { source: Source::Closed, waiting: VecDeque::new() };
        });
    }

    /// Returns what could not be read so far.
    fn notes(&self) -> Vec<String> {
        crate::trace::notes(&self.unread)
    }

    /// Returns whether it was closed, or the log-server ended.
    fn is_closed(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            matches!(state.source, Source::Closed)
        })
    }
}

impl Follow {
    fn wait(&self, signals: &Signals, until: Option<Instant>) -> Result<Option<Batch>, Error> {
        loop {
            // Not held while waiting, so that another thread can close it.
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(batch) = state.waiting.pop_front() {
                let batch = self.selected(&batch)?;
                if batch.num_rows() > 0 {
                    return Ok(Some(Batch(batch)));
                }
            }
            if let Source::Closed = state.source {
                return Ok(None);
            }
            if !state.receive()? {
                drop(state);
                signals.check()?;
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(None);
                }
                std::thread::sleep(POLL);
            }
        }
    }

    /// Returns the rows that the filter selects.
    fn selected(&self, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        let columns = EventColumns::of(batch, &[]).map_err(|error| Error::Failed(error.to_string()))?;
        let wanted: BooleanArray =
            (0..columns.rows()).map(|row| Some(self.matcher.matches_row(&columns, row))).collect();
        miot_trace_results::select::filtered(batch, &wanted)
    }
}

impl State {
    /// Receives batches that have arrived; returns false if there are none. At the end of a
    /// connection the source is closed.
    fn receive(&mut self) -> Result<bool, Error> {
        match &mut self.source {
            Source::Directory(followed) => self.waiting.extend(followed.poll()?),
            Source::Server { batches, .. } => match batches.recv_timeout(POLL) {
                Ok(batch) => self.waiting.push_back(batch?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.source = Source::Closed;
                    return Ok(true);
                }
            },
            Source::Closed => {}
        }
        Ok(!self.waiting.is_empty())
    }
}

/// Passes the rows of the next message on; returns false at the end.
fn pass_on(
    stream: &mut dyn miot_trace_results::server::Stream,
    to: &SyncSender<Result<RecordBatch, Error>>,
) -> bool {
    let arrow = match receive(stream) {
        Ok(Message::Rows { arrow }) => arrow,
        Ok(Message::SubscriptionEnd { reason }) => {
            let _ = to.send(Err(Error::Failed(format!("the log-server ended the stream: {reason}"))));
            return false;
        }
        Ok(Message::Bye) => return false,
        Ok(_) => return true,
        Err(error) => {
            let _ = to.send(Err(error));
            return false;
        }
    };
    let batches = match arrow_stream::read(&arrow) {
        Ok(batches) => batches,
        Err(error) => {
            let _ = to.send(Err(error.into()));
            return false;
        }
    };
    batches.into_iter().all(|batch| to.send(Ok(batch)).is_ok())
}

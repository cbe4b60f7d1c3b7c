//! The thread that seals and removes parts while the writer continues. It also encodes the events
//! of the live part, see [`crate::seal::early`].

#![expect(clippy::disallowed_types, reason = "stop flag and backlog of the sealing thread")]

use crate::carried::RemovedParts;
use crate::error::Error;
use crate::layout::Layout;
use crate::retain::{RetainRequest, retain};
use crate::seal::early::{EarlyEvents, NewEvents};
use crate::seal::{SealRequest, Sealed, seal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time until a part that could not be sealed is retried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of committed events that wait for the thread: about 64 MiB. Those beyond are read
/// from the live stream later.
const MAX_BACKLOG: usize = 1 << 19;

#[derive(Debug)]
enum Work {
    Encode(NewEvents),
    Seal(SealRequest),
    Retain(RetainRequest),
}

#[derive(Debug)]
enum Outcome {
    Seal(SealRequest, Result<Option<Sealed>, Error>),
    Retain(Result<Option<RemovedParts>, Error>),
}

/// State of the thread.
struct SealingThread {
    layout: Layout,
    stop: Arc<AtomicBool>,
    backlog: Arc<AtomicUsize>,
    early: Option<EarlyEvents>,
    /// Part whose events could not be encoded early.
    given_up: Option<u64>,
}

impl SealingThread {
    fn run(&mut self, work: Work) -> Option<Outcome> {
        match work {
            Work::Encode(events) => {
                let rows = events.rows();
                self.encode(events);
                self.backlog.fetch_sub(rows, Ordering::Relaxed);
                None
            }
            Work::Seal(request) => {
                let sealed = seal(&self.layout, request, self.early.take(), &self.stop);
                Some(Outcome::Seal(request, sealed))
            }
            Work::Retain(request) => Some(Outcome::Retain(retain(&self.layout, &request, &self.stop))),
        }
    }

    fn encode(&mut self, events: NewEvents) {
        let part = events.part;
        if self.given_up == Some(part) || self.stop.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.try_encode(events) {
            // The part is sealed from its live stream, which reports errors that remain.
            tracing::debug!(part, %error, "events cannot be encoded while the part is live");
            self.early = None;
            self.given_up = Some(part);
        }
    }

    fn try_encode(&mut self, events: NewEvents) -> Result<(), Error> {
        let early = match &mut self.early {
            Some(early) if early.part() == events.part => early,
            early => early.insert(EarlyEvents::create(&self.layout, events.part)?),
        };
        early.add(&self.layout, events, &self.stop).map(|_| ())
    }
}

/// Seals parts in order of the requests, in one thread.
#[derive(Debug)]
pub(crate) struct Sealer {
    layout: Layout,
    stop: Arc<AtomicBool>,
    /// Number of events that wait for the thread.
    backlog: Arc<AtomicUsize>,
    worker: Option<Worker>,
    underway: BTreeMap<u64, SealRequest>,
    failed: BTreeMap<u64, SealRequest>,
    failed_at: Option<Instant>,
    error: Option<Error>,
    total: Sealed,
    parts: u64,
    retaining: bool,
    retain_error: Option<Error>,
    removed: Option<RemovedParts>,
}

#[derive(Debug)]
struct Worker {
    work: Sender<Work>,
    done: Receiver<Outcome>,
    thread: JoinHandle<()>,
}

impl Sealer {
    pub(crate) fn new(layout: Layout) -> Sealer {
        Sealer {
            layout,
            stop: Arc::new(AtomicBool::new(false)),
            backlog: Arc::new(AtomicUsize::new(0)),
            worker: None,
            underway: BTreeMap::new(),
            failed: BTreeMap::new(),
            failed_at: None,
            error: None,
            total: Sealed::default(),
            parts: 0,
            retaining: false,
            retain_error: None,
            removed: None,
        }
    }

    /// Passes committed events of the live part on. If too many wait already, or the thread cannot
    /// be started, they are read from the live stream later.
    pub(crate) fn encode(&mut self, mut events: NewEvents) {
        let backlog = self.backlog.load(Ordering::Relaxed);
        if backlog > 0 && backlog + events.rows() > MAX_BACKLOG {
            events.events.clear();
            events.end = events.begin;
        }
        if self.worker.is_none() {
            self.worker = self.start().ok();
        }
        let Some(worker) = &self.worker else { return };
        self.backlog.fetch_add(events.rows(), Ordering::Relaxed);
        if worker.work.send(Work::Encode(events)).is_err() {
            self.worker = None;
        }
    }

    /// Starts to seal a part. If the thread cannot be started, the part waits for a retry.
    pub(crate) fn seal(&mut self, request: SealRequest) {
        if self.worker.is_none() {
            match self.start() {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => return self.fail(request, error),
            }
        }
        // If the thread has panicked, this thread does the work.
        let sent = self.worker.as_ref().is_some_and(|w| w.work.send(Work::Seal(request)).is_ok());
        if sent {
            self.underway.insert(request.part, request);
        } else {
            self.worker = None;
            let sealed = seal(&self.layout, request, None, &self.stop);
            self.record(Outcome::Seal(request, sealed));
        }
    }

    /// Starts to remove parts beyond the limits, after the parts requested so far are sealed.
    /// Returns false if an earlier removal is still under way.
    pub(crate) fn retain(&mut self, request: RetainRequest) -> bool {
        self.collect();
        if self.retaining {
            return false;
        }
        if self.worker.is_none() {
            match self.start() {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => {
                    self.record(Outcome::Retain(Err(error)));
                    return true;
                }
            }
        }
        self.retaining = self.worker.as_ref().is_some_and(|w| w.work.send(Work::Retain(request)).is_ok());
        true
    }

    /// Returns the error of a removal since the last call.
    pub(crate) fn retain_error(&mut self) -> Option<Error> {
        self.retain_error.take()
    }

    /// Returns what was removed in total, if parts were removed since the last call.
    pub(crate) fn removed(&mut self) -> Option<RemovedParts> {
        self.collect();
        self.removed.take()
    }

    fn collect(&mut self) {
        while let Some(outcome) = self.worker.as_ref().and_then(|w| w.done.try_recv().ok()) {
            self.record(outcome);
        }
    }

    /// Retries the parts that failed. Returns false if there are none.
    pub(crate) fn retry(&mut self) -> bool {
        let failed = std::mem::take(&mut self.failed);
        self.failed_at = None;
        for request in failed.values() {
            self.seal(*request);
        }
        !failed.is_empty()
    }

    /// Returns true if a part failed and has waited long enough.
    pub(crate) fn retry_due(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() >= RETRY_AFTER)
    }

    /// Returns the last error of a seal since the last call.
    pub(crate) fn error(&mut self) -> Option<Error> {
        self.collect();
        self.error.take()
    }

    /// Waits until every requested part is sealed or has failed.
    pub(crate) fn wait(&mut self) {
        while !self.underway.is_empty() {
            match self.worker.as_ref().map(|w| w.done.recv()) {
                Some(Ok(outcome)) => self.record(outcome),
                _ => {
                    self.worker = None;
                    self.failed.append(&mut self.underway);
                    self.retry();
                }
            }
        }
    }

    /// Returns the number of sealed parts and their total size.
    pub(crate) fn total(&self) -> (u64, Sealed) {
        (self.parts, self.total)
    }

    /// Records the outcome of a request.
    fn record(&mut self, outcome: Outcome) {
        let (request, outcome) = match outcome {
            Outcome::Seal(request, outcome) => (request, outcome),
            Outcome::Retain(outcome) => {
                self.retaining = false;
                match outcome {
                    Ok(removed) => self.removed = removed.or(self.removed),
                    Err(error) => self.retain_error = Some(Error::Retain { source: Box::new(error) }),
                }
                return;
            }
        };
        self.underway.remove(&request.part);
        match outcome {
            Ok(Some(sealed)) => {
                self.parts += 1;
                self.total.events += sealed.events;
                self.total.bytes += sealed.bytes;
            }
            Ok(None) => {}
            Err(error) => self.fail(request, error),
        }
    }

    fn fail(&mut self, request: SealRequest, error: Error) {
        self.failed.insert(request.part, request);
        self.failed_at = Some(Instant::now());
        self.error = Some(Error::Seal { part: request.part, source: Box::new(error) });
    }

    fn start(&self) -> Result<Worker, Error> {
        let (work, requests) = channel::<Work>();
        let (report, done) = channel();
        self.backlog.store(0, Ordering::Relaxed);
        let mut state = SealingThread {
            layout: self.layout.clone(),
            stop: Arc::clone(&self.stop),
            backlog: Arc::clone(&self.backlog),
            early: None,
            given_up: None,
        };
        let thread = Builder::new()
            .name("miot-seal".to_owned())
            .spawn(move || {
                for request in requests {
                    if let Some(outcome) = state.run(request)
                        && report.send(outcome).is_err()
                    {
                        break;
                    }
                }
            })
            .map_err(Error::io("start a thread for", self.layout.root()))?;
        Ok(Worker { work, done, thread })
    }
}

impl Drop for Sealer {
    /// Stops the thread. A part that is being sealed stays live.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Worker { work, done, thread }) = self.worker.take() {
            drop((work, done));
            let _ = thread.join();
        }
    }
}

//! Two threads that work while the writer continues. One encodes the events of the live part, see
//! [`crate::seal::early`]; the other seals and removes parts. The end of a part waits for the disk
//! several times. With one thread for both, more events of the next part would arrive meanwhile
//! than may wait for it.

#![expect(clippy::disallowed_types, reason = "stop flag of the threads")]

use crate::carried::RemovedParts;
use crate::error::Error;
use crate::layout::Layout;
use crate::retain::{RetainRequest, retain};
use crate::seal::early::{EarlyEvents, NewEvents};
use crate::seal::{SealRequest, Sealed, seal};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time until a part that could not be sealed is retried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Number of committed events that may wait for the encoding thread. With more, the writer waits:
/// few events are encoded while they are in the cache of the processor, and take less memory.
const BACKLOG: usize = 1 << 17;
/// Maximum time for which the writer waits at a commit.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// Maximum number of committed events that wait for the encoding thread: about 64 MiB. Those beyond
/// are read from the live stream later.
const MAX_BACKLOG: usize = 1 << 19;

/// Number of events that wait for the encoding thread.
#[derive(Debug, Default)]
struct Backlog {
    rows: Mutex<usize>,
    less: Condvar,
}

impl Backlog {
    /// Waits until no more than [`BACKLOG`] events wait, but not long. Adds `rows` unless too many
    /// wait even then.
    fn try_add(&self, rows: usize) -> bool {
        let waiting = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |waiting: &mut usize| *waiting > 0 && *waiting + rows > BACKLOG;
        let result = self.less.wait_timeout_while(waiting, MAX_WAIT, is_full);
        let (mut waiting, _) = result.unwrap_or_else(PoisonError::into_inner);
        let fits = *waiting == 0 || *waiting + rows <= MAX_BACKLOG;
        *waiting += if fits { rows } else { 0 };
        fits
    }

    fn remove(&self, rows: usize) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) -= rows;
        self.less.notify_one();
    }
}

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

/// Work for the sealing thread: what the encoding thread does not do itself.
enum SealWork {
    Seal(SealRequest, Option<Box<EarlyEvents>>),
    Retain(RetainRequest),
}

/// State of the encoding thread.
struct EncodingThread {
    layout: Layout,
    stop: Arc<AtomicBool>,
    backlog: Arc<Backlog>,
    early: Option<EarlyEvents>,
    /// Part whose events could not be encoded early.
    given_up: Option<u64>,
    sealing: Sender<SealWork>,
}

impl EncodingThread {
    /// Runs until the writer, or the sealing thread, has ended.
    fn run(mut self, works: Receiver<Work>) {
        for work in works {
            let passed_on = match work {
                Work::Encode(events) => {
                    let rows = events.rows();
                    self.encode(events);
                    self.backlog.remove(rows);
                    continue;
                }
                Work::Seal(request) => {
                    let early = self.early.take_if(|early| early.part() == request.part);
                    SealWork::Seal(request, early.map(Box::new))
                }
                Work::Retain(request) => SealWork::Retain(request),
            };
            if self.sealing.send(passed_on).is_err() {
                return;
            }
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

/// Seals parts in order of the requests.
#[derive(Debug)]
pub(crate) struct Sealer {
    layout: Layout,
    stop: Arc<AtomicBool>,
    backlog: Arc<Backlog>,
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
    threads: [JoinHandle<()>; 2],
}

impl Sealer {
    pub(crate) fn new(layout: Layout) -> Sealer {
        Sealer {
            layout,
            stop: Arc::new(AtomicBool::new(false)),
            backlog: Arc::default(),
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
        if self.worker.is_none() {
            self.worker = self.start().ok();
        }
        let Some(worker) = &self.worker else { return };
        if !self.backlog.try_add(events.rows()) {
            events.events.clear();
            events.end = events.begin;
        }
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

    fn start(&mut self) -> Result<Worker, Error> {
        let (work, requests) = channel::<Work>();
        let (sealing, of_encoding) = channel::<SealWork>();
        let (report, done) = channel();
        self.backlog = Arc::default();
        let encoding = EncodingThread {
            layout: self.layout.clone(),
            stop: Arc::clone(&self.stop),
            backlog: Arc::clone(&self.backlog),
            early: None,
            given_up: None,
            sealing,
        };
        let (layout, stop) = (self.layout.clone(), Arc::clone(&self.stop));
        let seal = move || {
            for work in of_encoding {
                let outcome = match work {
                    SealWork::Seal(request, early) => {
                        let early = early.map(|early| *early);
                        Outcome::Seal(request, seal(&layout, request, early, &stop))
                    }
                    SealWork::Retain(request) => Outcome::Retain(retain(&layout, &request, &stop)),
                };
                if report.send(outcome).is_err() {
                    break;
                }
            }
        };
        let failed = Error::io("start a thread for", self.layout.root());
        let start =
            |name: &str, run: Box<dyn FnOnce() + Send>| Builder::new().name(name.to_owned()).spawn(run);
        let threads = start("miot-seal", Box::new(seal))
            .and_then(|seal| Ok([start("miot-encode", Box::new(move || encoding.run(requests)))?, seal]));
        Ok(Worker { work, done, threads: threads.map_err(failed)? })
    }
}

impl Drop for Sealer {
    /// Stops the threads. A part that is being sealed stays live.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Worker { work, done, threads }) = self.worker.take() {
            drop((work, done));
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

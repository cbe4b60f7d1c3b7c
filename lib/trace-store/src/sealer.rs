//! The thread that seals and removes parts while the writer continues.

#![expect(clippy::disallowed_types, reason = "stop flag of the sealing thread")]

use crate::carried::RemovedParts;
use crate::error::Error;
use crate::layout::Layout;
use crate::retain::{RetainRequest, retain};
use crate::seal::{SealRequest, Sealed, seal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time until a part that could not be sealed is retried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Work {
    Seal(SealRequest),
    Retain(RetainRequest),
}

#[derive(Debug)]
enum Outcome {
    Seal(SealRequest, Result<Option<Sealed>, Error>),
    Retain(Result<Option<RemovedParts>, Error>),
}

impl Work {
    fn run(self, layout: &Layout, stop: &AtomicBool) -> Outcome {
        match self {
            Work::Seal(request) => Outcome::Seal(request, seal(layout, request, stop)),
            Work::Retain(request) => Outcome::Retain(retain(layout, &request, stop)),
        }
    }
}

/// Seals parts in order of the requests, in one thread.
#[derive(Debug)]
pub(crate) struct Sealer {
    layout: Layout,
    stop: Arc<AtomicBool>,
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
            let outcome = Work::Seal(request).run(&self.layout, &self.stop);
            self.record(outcome);
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
        let (layout, stop) = (self.layout.clone(), Arc::clone(&self.stop));
        let thread = Builder::new()
            .name("miot-seal".to_owned())
            .spawn(move || {
                for request in requests {
                    if report.send(request.run(&layout, &stop)).is_err() {
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

//! The thread that seals parts, and removes those that are not to be kept, while the writer goes on.

use crate::carried::Removed;
use crate::error::Error;
use crate::layout::Layout;
use crate::retain::{Retain, retain};
use crate::seal::{Order, Sealed, seal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long a part that could not be sealed waits for the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Work {
    Seal(Order),
    Retain(Retain),
}

#[derive(Debug)]
enum Outcome {
    Seal(Order, Result<Option<Sealed>, Error>),
    Retain(Result<Option<Removed>, Error>),
}

impl Work {
    fn run(self, layout: &Layout, stop: &AtomicBool) -> Outcome {
        match self {
            Work::Seal(order) => Outcome::Seal(order, seal(layout, order, stop)),
            Work::Retain(order) => Outcome::Retain(retain(layout, &order, stop)),
        }
    }
}

/// Seals parts in the order they are given, on one thread.
#[derive(Debug)]
pub(crate) struct Sealer {
    layout: Layout,
    stop: Arc<AtomicBool>,
    worker: Option<Worker>,
    underway: BTreeMap<u64, Order>,
    failed: BTreeMap<u64, Order>,
    failed_at: Option<Instant>,
    error: Option<Error>,
    total: Sealed,
    parts: u64,
    retaining: bool,
    retain_error: Option<Error>,
    removed: Option<Removed>,
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

    /// Begins to seal a part. If no thread can be started the part waits like a failed one.
    pub(crate) fn give(&mut self, order: Order) {
        if self.worker.is_none() {
            match self.start() {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => return self.fail(order, error),
            }
        }
        // A thread that is gone (it panicked) takes no work: then this thread does it.
        let sent = self.worker.as_ref().is_some_and(|w| w.work.send(Work::Seal(order)).is_ok());
        if sent {
            self.underway.insert(order.part, order);
        } else {
            self.worker = None;
            let outcome = Work::Seal(order).run(&self.layout, &self.stop);
            self.take(outcome);
        }
    }

    /// Begins to remove what is not to be kept, after the parts given so far are sealed; unless that is under
    /// way: then it returns false.
    pub(crate) fn retain(&mut self, order: Retain) -> bool {
        self.collect();
        if self.retaining {
            return false;
        }
        if self.worker.is_none() {
            match self.start() {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => {
                    self.take(Outcome::Retain(Err(error)));
                    return true;
                }
            }
        }
        self.retaining = self.worker.as_ref().is_some_and(|w| w.work.send(Work::Retain(order)).is_ok());
        true
    }

    /// What went wrong with it since the last call.
    pub(crate) fn retain_error(&mut self) -> Option<Error> {
        self.retain_error.take()
    }

    /// What was removed, if anything was since the last call.
    pub(crate) fn removed(&mut self) -> Option<Removed> {
        self.collect();
        self.removed.take()
    }

    fn collect(&mut self) {
        while let Some(outcome) = self.worker.as_ref().and_then(|w| w.done.try_recv().ok()) {
            self.take(outcome);
        }
    }

    /// Gives the parts that failed to the thread again. Returns false if there are none.
    pub(crate) fn retry(&mut self) -> bool {
        let failed = std::mem::take(&mut self.failed);
        self.failed_at = None;
        for order in failed.values() {
            self.give(*order);
        }
        !failed.is_empty()
    }

    /// True if a part failed and has waited long enough.
    pub(crate) fn retry_due(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() >= RETRY_AFTER)
    }

    /// What went wrong since the last call.
    pub(crate) fn error(&mut self) -> Option<Error> {
        self.collect();
        self.error.take()
    }

    /// Waits until every part that was given is sealed or has failed.
    pub(crate) fn wait(&mut self) {
        while !self.underway.is_empty() {
            match self.worker.as_ref().map(|w| w.done.recv()) {
                Some(Ok(outcome)) => self.take(outcome),
                _ => {
                    self.worker = None;
                    self.failed.append(&mut self.underway);
                    self.retry();
                }
            }
        }
    }

    /// Parts sealed, what they hold.
    pub(crate) fn total(&self) -> (u64, Sealed) {
        (self.parts, self.total)
    }

    fn take(&mut self, outcome: Outcome) {
        let (order, outcome) = match outcome {
            Outcome::Seal(order, outcome) => (order, outcome),
            Outcome::Retain(outcome) => {
                self.retaining = false;
                match outcome {
                    Ok(removed) => self.removed = removed.or(self.removed),
                    Err(error) => self.retain_error = Some(Error::Retain { source: Box::new(error) }),
                }
                return;
            }
        };
        self.underway.remove(&order.part);
        match outcome {
            Ok(Some(sealed)) => {
                self.parts += 1;
                self.total.events += sealed.events;
                self.total.bytes += sealed.bytes;
            }
            Ok(None) => {}
            Err(error) => self.fail(order, error),
        }
    }

    fn fail(&mut self, order: Order, error: Error) {
        self.failed.insert(order.part, order);
        self.failed_at = Some(Instant::now());
        self.error = Some(Error::Seal { part: order.part, source: Box::new(error) });
    }

    fn start(&self) -> Result<Worker, Error> {
        let (work, orders) = channel::<Work>();
        let (report, done) = channel();
        let (layout, stop) = (self.layout.clone(), Arc::clone(&self.stop));
        let thread = Builder::new()
            .name("miot-seal".to_owned())
            .spawn(move || {
                for order in orders {
                    if report.send(order.run(&layout, &stop)).is_err() {
                        break;
                    }
                }
            })
            .map_err(Error::io("start a thread for", self.layout.root()))?;
        Ok(Worker { work, done, thread })
    }
}

impl Drop for Sealer {
    /// Leaves a part that is being sealed as it is: live.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Worker { work, done, thread }) = self.worker.take() {
            drop((work, done));
            let _ = thread.join();
        }
    }
}

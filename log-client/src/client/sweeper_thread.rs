//! The sweeper's thread: start, stop request, result.

#![expect(clippy::disallowed_types, reason = "flags between the sweeper thread and the tasks")]

use crate::clock::{Calibration, NodeClock};
use crate::config::Config;
use crate::directory::{Control, MiotDirectory};
use crate::error::Error;
use crate::facts::{ShippedTotals, Sink as _};
use crate::pace::CurrentPace;
use crate::spool::{Outbox, Writer};
use crate::survey::Survey;
use crate::sweeper::{Predecessor, SweepTotals, Sweeper};
use miot_daemon::Liveness;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Totals of the sweeper and of its outbox, or the reason why sweeping could not start.
type SweepResult = Result<(SweepTotals, ShippedTotals), Error>;

/// Stop request to the sweeper, with a deadline.
#[derive(Debug, Default)]
struct StopRequest {
    wanted: AtomicBool,
    /// The run has ended; the sweeper must return as soon as possible.
    abandoned: AtomicBool,
    /// The remaining records are left to the next log-client.
    handed_over: AtomicBool,
    until: OnceLock<Instant>,
    switch: Mutex<SwitchRequest>,
    switch_wanted: AtomicBool,
}

/// Request to change the log-server.
#[derive(Debug, Default)]
enum SwitchRequest {
    #[default]
    None,
    Wanted(Box<Switch>),
    /// The sweeper stops, and takes no more requests.
    Closed,
}

/// Request to continue at another log-server.
pub(super) struct Switch {
    /// Writes to the spool of that log-server.
    pub(super) to: Writer,
    /// Makes the new spool the current one, after the streams have ended in the old one and are
    /// defined in the new one. If it fails, the streams continue in the old one.
    pub(super) commit: Box<dyn FnOnce() -> Result<(), Error> + Send>,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Switch {
    /// Moves all streams. Returns the outbox in use from then on.
    fn perform(self, sweeper: &mut Sweeper, mut from: Outbox) -> Outbox {
        let Switch { to, commit, done } = self;
        let mut to = Outbox::new(to);
        let before = from.shipped();
        if !sweeper.move_streams(&mut from, &mut to) {
            let _ = done.send(Err(cannot_switch("records are not written to the spool yet")));
            return from;
        }
        // Streams report these again, as totals, when they end at the new log-server.
        let ShippedTotals { streams, processes, lost_nested, lost_no_lane, filtered, .. } = before;
        let totals =
            ShippedTotals { streams, processes, lost_nested, lost_no_lane, filtered, ..from.shipped() };
        let committed = match to.is_written() {
            true => commit(),
            false => Err(cannot_switch("the new spool cannot be written")),
        };
        let mut outbox = if committed.is_ok() {
            from.end();
            to
        } else {
            sweeper.move_streams(&mut to, &mut from);
            from
        };
        outbox.set_totals(totals);
        let _ = done.send(committed);
        outbox
    }
}

fn cannot_switch(reason: &'static str) -> Error {
    Error::system("cannot change the log-server", std::io::Error::other(reason))
}

impl StopRequest {
    /// Requests a switch, unless the sweeper stops: then it is dropped.
    fn request_switch(&self, switch: Switch) {
        let mut request = self.switch.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*request, SwitchRequest::Closed) {
            *request = SwitchRequest::Wanted(Box::new(switch));
            self.switch_wanted.store(true, Relaxed);
        }
    }

    /// Takes the requested switch. Takes none, and no later one, if `close` is true.
    fn take_switch(&self, close: bool) -> Option<Switch> {
        self.switch_wanted.store(false, Relaxed);
        let next = if close { SwitchRequest::Closed } else { SwitchRequest::None };
        match std::mem::replace(&mut *self.switch.lock().unwrap_or_else(PoisonError::into_inner), next) {
            SwitchRequest::Wanted(switch) if !close => Some(*switch),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        self.abandoned.load(Relaxed) || self.until.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// What a clean stop does with the remaining records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopMode {
    /// End recording, and deliver all committed records.
    Deliver,
    /// Leave them to the next log-client.
    HandOver,
}

/// Everything a [`Sweeper`] is made from. It is made in its own thread, because finishing the
/// calibration may take 20 ms.
#[derive(Debug)]
pub(super) struct SweeperSetup {
    pub(super) directory: MiotDirectory,
    pub(super) calibration: Calibration,
    pub(super) boot: u128,
    pub(super) config: Config,
    pub(super) predecessor: Predecessor,
    pub(super) survey: Arc<Mutex<Survey>>,
    pub(super) pace: Arc<CurrentPace>,
}

impl SweeperSetup {
    fn build(self) -> Result<(Sweeper, NodeClock), Error> {
        let SweeperSetup { directory, calibration, boot, config, predecessor, survey, pace } = self;
        let clocks = calibration.finish();
        let clock = clocks.shared();
        directory.control().publish_tsc_hz(clocks.tsc_hz());
        let sweeper = Sweeper::new(directory, clocks, boot, &config, predecessor, survey, pace)?;
        Ok((sweeper, clock))
    }
}

/// Handle of the thread. Dropping it stops the thread without waiting for it.
#[derive(Debug)]
pub(super) struct SweeperThread {
    stop: Arc<StopRequest>,
    /// The sweeper sleeps on this.
    control: Arc<Control>,
    /// Completes when the clocks are calibrated; fails if sweeping cannot start.
    clock: Option<oneshot::Receiver<NodeClock>>,
    result: oneshot::Receiver<SweepResult>,
}

impl SweeperThread {
    pub(super) fn start(
        setup: SweeperSetup,
        outbox: Outbox,
        liveness: Liveness,
    ) -> Result<SweeperThread, Error> {
        let stop = Arc::new(StopRequest::default());
        let (send_clock, clock) = oneshot::channel();
        let (send_result, result) = oneshot::channel();
        let (thread_stop, control) = (Arc::clone(&stop), Arc::clone(setup.directory.control()));
        std::thread::Builder::new()
            .name("miot-sweeper".into())
            .spawn(move || {
                let result = setup.build().map(|(sweeper, clock)| {
                    let _ = send_clock.send(clock);
                    sweep(sweeper, outbox, &thread_stop, &liveness)
                });
                let _ = send_result.send(result);
            })
            .map_err(|error| Error::system("cannot start the sweeper's thread", error))?;
        Ok(SweeperThread { stop, control, clock: Some(clock), result })
    }

    /// Waits until the sweeper is set up, and returns the node's clock.
    ///
    /// # Errors
    /// Those of setting it up.
    pub(super) async fn clock(&mut self) -> Result<NodeClock, Error> {
        let clock = match self.clock.take() {
            Some(clock) => clock.await.ok(),
            None => None,
        };
        match clock {
            Some(clock) => Ok(clock),
            None => Err(self.result().await.err().unwrap_or_else(thread_died)),
        }
    }

    /// Requests a stop that takes at most `at_most`.
    pub(super) fn stop(&self, at_most: Duration, mode: StopMode) {
        self.stop.handed_over.store(mode == StopMode::HandOver, Relaxed);
        let _ = self.stop.until.set(Instant::now() + at_most);
        self.stop.wanted.store(true, Relaxed);
        self.control.interrupt_sleep();
    }

    /// Handle for changing the log-server.
    pub(super) fn switcher(&self) -> Switcher {
        Switcher { stop: Arc::clone(&self.stop), control: Arc::clone(&self.control) }
    }

    /// Requests an immediate stop: nothing waits for the remaining records any more.
    pub(super) fn abandon(&self) {
        self.stop.abandoned.store(true, Relaxed);
        self.stop.wanted.store(true, Relaxed);
        self.control.interrupt_sleep();
    }

    /// Waits for the end of the thread.
    pub(super) async fn result(&mut self) -> SweepResult {
        (&mut self.result).await.unwrap_or_else(|_| Err(thread_died()))
    }
}

/// Requests changes of the log-server.
#[derive(Clone, Debug)]
pub(crate) struct Switcher {
    stop: Arc<StopRequest>,
    control: Arc<Control>,
}

impl Switcher {
    /// True once a stop was requested: the log-server is not changed any more.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.wanted.load(Relaxed)
    }

    /// Moves all streams to another log-server. See [`Switch`].
    ///
    /// # Errors
    /// Those of `commit`; [`Error::System`] if the sweeper stops, or a spool cannot be written.
    pub(crate) async fn switch(
        &self,
        to: Writer,
        commit: Box<dyn FnOnce() -> Result<(), Error> + Send>,
    ) -> Result<(), Error> {
        let (done, result) = oneshot::channel();
        self.stop.request_switch(Switch { to, commit, done });
        self.control.interrupt_sleep();
        result.await.unwrap_or_else(|_| Err(cannot_switch("the log-client stops")))
    }
}

impl Drop for SweeperThread {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Body of the thread.
fn sweep(
    mut sweeper: Sweeper,
    mut outbox: Outbox,
    stop: &StopRequest,
    liveness: &Liveness,
) -> (SweepTotals, ShippedTotals) {
    // Called once per sweep.
    let wanted = || {
        liveness.beat();
        stop.wanted.load(Relaxed)
    };
    loop {
        sweeper.run(&mut outbox, &|| wanted() || stop.switch_wanted.load(Relaxed));
        let stops = wanted();
        if let Some(switch) = stop.take_switch(stops) {
            outbox = switch.perform(&mut sweeper, outbox);
        }
        if stops {
            break;
        }
    }
    if stop.handed_over.load(Relaxed) {
        // Records that were taken are in the spool; all others are still in the lanes.
        return (sweeper.totals(), outbox.shipped());
    }
    let totals = sweeper.finish(&mut outbox, &|| stop.is_over());
    outbox.end();
    (totals, outbox.shipped())
}

fn thread_died() -> Error {
    Error::system("the sweeper's thread", std::io::Error::other("it panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SpoolFull;
    use crate::spool::Spool;

    /// Otherwise a stop during a change of the log-server would last as long as `stop` allows.
    #[tokio::test]
    async fn change_of_the_log_server_fails_once_the_sweeper_stops() {
        let dir = tempfile::tempdir().unwrap();
        let stop = StopRequest::default();
        let request = |name: &str| {
            let spool = Spool::open(&dir.path().join(name), 16 << 20, SpoolFull::KeepOldest, "test", 1);
            let (done, result) = oneshot::channel();
            let to = Writer::new(Arc::new(spool.unwrap().0), None);
            stop.request_switch(Switch { to, commit: Box::new(|| Ok(())), done });
            result
        };
        let first = request("first");
        assert!(stop.take_switch(false).is_some());
        first.await.unwrap_err();
        let pending = request("second");
        assert!(stop.take_switch(true).is_none());
        pending.await.unwrap_err();
        request("third").await.unwrap_err();
        assert!(!stop.switch_wanted.load(Relaxed));
    }
}

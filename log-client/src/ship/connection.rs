//! The connection to the log-server, and reconnection.

use super::Peer;
use super::backoff::Backoff;
use super::transport::{ConnectOutcome, Receiver, Sender, ServerMessage, Transport};
use crate::clock::NodeClock;
use crate::error::Error;
use crate::pace::CurrentPace;
use crate::report::{CommandHandler, OutcomeQueue, Reporter};
use crate::spool::{Reader, Spool};
use miot_proto::wire::{Message, Pace};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Bytes per write: large enough that the cost of the system call does not matter.
const WRITE_BYTES: usize = 256 << 10;

/// A connection that lasted at least this long, or on which something was acknowledged, resets the
/// backoff.
const GOOD_AFTER: Duration = Duration::from_secs(30);

/// Interval of status reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The same if the log-server has thousands of nodes.
const REPORT_EVERY_CROWDED: Duration = Duration::from_secs(10);
/// A report goes with other messages if it is due within this time.
const REPORT_EARLY: Duration = Duration::from_millis(250);

/// Services of the node besides its records: status reports, command execution, and the pace of
/// watermarks.
#[derive(Clone, Debug)]
pub(crate) struct NodeServices {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) commands: Arc<CommandHandler>,
    pub(crate) pace: Arc<CurrentPace>,
}

impl NodeServices {
    /// Records that there is no connection, for instance because the log-server changes.
    pub(crate) fn disconnected(&self) {
        self.pace.set(Pace::Idle);
        self.reporter.connected.store(false, Relaxed);
    }
}

/// How a connection ended.
enum ConnectionEnd {
    /// Everything was acknowledged, and nothing more will be written.
    Done,
    Broken(io::Error),
    Refused(String),
}

/// Ships until the spool has ended and everything in it is acknowledged.
///
/// # Errors
/// [`Error::Refused`] if the server refuses before it has ever accepted this log-client, for a
/// permanent reason. A later refusal is retried: the spooled data is worth it, and the server may
/// not yet have noticed that an earlier connection broke. [`Error::System`] if there are no random
/// numbers.
pub(crate) async fn ship<T: Transport>(
    mut transport: T,
    peer: &Peer,
    mut spooled: Reader,
    clock: NodeClock,
    services: Option<NodeServices>,
) -> Result<(), Error> {
    let spool = Arc::clone(spooled.spool());
    let shipper =
        Shipper { spool, clock_queries: Mutex::default(), clock, services, outcomes: Mutex::default() };
    let mut backoff = Backoff::new(shipper.spool.session());
    let mut accepted = false;
    loop {
        let reason = match transport.connect(shipper.spool.session()).await {
            Ok(ConnectOutcome::Welcome { sender, receiver, through, steerable }) => {
                accepted = true;
                let (before, since) = (shipper.spool.acknowledged(), Instant::now());
                shipper.connected(true);
                let end = shipper.serve(peer, (sender, receiver), through, steerable, &mut spooled).await;
                shipper.connected(false);
                let end = end?;
                if shipper.spool.acknowledged() > before || since.elapsed() >= GOOD_AFTER {
                    backoff.reset();
                }
                match end {
                    ConnectionEnd::Done => return Ok(()),
                    ConnectionEnd::Refused(reason) => format!("refused: {reason}"),
                    ConnectionEnd::Broken(error) => error.to_string(),
                }
            }
            Ok(ConnectOutcome::Refused(reason)) if !accepted => {
                return Err(Error::Refused { server: peer.server.clone(), reason });
            }
            Ok(ConnectOutcome::Refused(reason) | ConnectOutcome::NotNow(reason)) => {
                format!("refused: {reason}")
            }
            Err(error) => error.to_string(),
        };
        let wait = backoff.next();
        tracing::warn!(
            server = peer.server,
            reason,
            retry_ms = wait.as_millis() as u64,
            "no connection to the log-server, retrying"
        );
        sleep(wait).await;
    }
}

struct Shipper {
    spool: Arc<Spool>,
    /// Unanswered clock queries of the server: its time, and the time of receipt by this node's
    /// clock.
    clock_queries: Mutex<Vec<(i64, i64)>>,
    clock: NodeClock,
    services: Option<NodeServices>,
    /// Outcomes of the commands of the current connection.
    outcomes: Mutex<Arc<OutcomeQueue>>,
}

impl Shipper {
    fn connected(&self, connected: bool) {
        // Outcomes of commands of an earlier connection are dropped.
        *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        if let Some(NodeServices { reporter, pace, .. }) = &self.services {
            // Until the log-server says otherwise. Without a connection nobody waits.
            pace.set(if connected { Pace::Live } else { Pace::Idle });
            reporter.connected.store(connected, Relaxed);
            reporter.connects.fetch_add(u64::from(connected), Relaxed);
        }
    }

    fn outcomes(&self) -> Arc<OutcomeQueue> {
        Arc::clone(&self.outcomes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn report(&self, out: &mut Vec<u8>) {
        if let Some(message) = self.services.as_ref().and_then(|services| services.reporter.message()) {
            message.append_frame(out);
        }
    }

    fn report_every(&self) -> Duration {
        match self.services.as_ref().map(|services| services.pace.get()) {
            Some(Pace::Crowded) => REPORT_EVERY_CROWDED,
            _ => REPORT_EVERY,
        }
    }

    fn clock_queries(&self) -> MutexGuard<'_, Vec<(i64, i64)>> {
        self.clock_queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection after the handshake.
    async fn serve(
        &self,
        peer: &Peer,
        (mut sender, mut receiver): (impl Sender, impl Receiver),
        through: u64,
        steerable: bool,
        spooled: &mut Reader,
    ) -> Result<ConnectionEnd, Error> {
        if through > self.spool.last() {
            self.spool.renew_session()?;
            let reason = "the log-server has messages that the spool has lost, starting a new session";
            return Ok(ConnectionEnd::Broken(io::Error::other(reason)));
        }
        let mut definitions = Vec::new();
        if let Some(set) = &peer.set {
            set.message(&peer.server).append_frame(&mut definitions);
        }
        spooled.restart(through, &mut definitions);
        self.clock_queries().clear();
        tracing::info!(
            server = peer.server,
            through,
            to_send = self.spool.left(),
            "connected to the log-server"
        );
        Ok(tokio::select! {
            end = self.read(&mut receiver, peer.dead_after) => end,
            result = self.write(&mut sender, spooled, definitions, steerable) => match result {
                Ok(()) => ConnectionEnd::Done,
                Err(error) => ConnectionEnd::Broken(error),
            },
        })
    }

    /// Receives messages until the connection ends.
    async fn read(&self, receiver: &mut impl Receiver, dead_after: Duration) -> ConnectionEnd {
        loop {
            // A log-server that has nothing to acknowledge sends clock queries.
            let Ok(message) = timeout(dead_after, receiver.next()).await else {
                let reason = format!("no message from the log-server for {dead_after:?} (dead_after)");
                return ConnectionEnd::Broken(io::Error::new(io::ErrorKind::TimedOut, reason));
            };
            match message {
                Ok(ServerMessage::Acknowledged(through)) => self.spool.acknowledge(through),
                Ok(ServerMessage::ClockQuery(sent)) => {
                    let received = self.clock.now();
                    self.clock_queries().push((sent, received));
                }
                Ok(ServerMessage::Refused(reason)) => return ConnectionEnd::Refused(reason),
                Ok(ServerMessage::Pace(pace)) => {
                    if let Some(services) = &self.services {
                        services.pace.set(pace);
                    }
                    continue;
                }
                Ok(ServerMessage::Command(id, command)) => {
                    if let Some(NodeServices { commands, .. }) = &self.services {
                        let (outcomes, spool) = (self.outcomes(), Arc::clone(&self.spool));
                        commands.start(id, &command, move |outcome| outcomes.push(outcome, &spool.news));
                    }
                    continue;
                }
                Err(error) => return ConnectionEnd::Broken(error),
            }
            self.spool.news.notify_one();
        }
    }

    /// Sends messages until nothing more comes and everything is acknowledged. `out` is sent first.
    async fn write(
        &self,
        sender: &mut impl Sender,
        spooled: &mut Reader,
        mut out: Vec<u8>,
        steerable: bool,
    ) -> io::Result<()> {
        let mut report_at = Instant::now();
        loop {
            for (sent, received) in self.clock_queries().drain(..) {
                let answered = self.clock.now();
                Message::Pong { sent, received, answered }.append_frame(&mut out);
            }
            if !out.is_empty() {
                // Without delay: the longer an answer takes, the less precise it is.
                sender.send(&out).await?;
                out.clear();
            }
            if steerable {
                self.outcomes().take().iter().for_each(|outcome| outcome.append_frame(&mut out));
                let now = Instant::now();
                if now + REPORT_EARLY >= report_at {
                    self.report(&mut out);
                    report_at = report_at.max(now) + self.report_every();
                }
            }
            // Checked first: a spool that has ended holds its last watermark already.
            let done = self.spool.is_done();
            spooled.take(&mut out, WRITE_BYTES);
            if done {
                Message::Bye.append_frame(&mut out);
            }
            if out.is_empty() {
                tokio::select! {
                    () = self.spool.news.notified() => {}
                    () = tokio::time::sleep_until(report_at), if steerable => {}
                }
                continue;
            }
            sender.send(&out).await?;
            out.clear();
            if done {
                sender.finish().await;
                return Ok(());
            }
        }
    }
}

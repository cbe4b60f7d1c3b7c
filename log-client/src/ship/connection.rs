//! The connection to the log-server, and reconnection.

use super::Peer;
use super::backoff::Backoff;
use super::transport::{ConnectOutcome, Receiver, Sender, ServerMessage, Transport};
use crate::clock::NodeClock;
use crate::error::Error;
use crate::pace::CurrentPace;
use crate::report::{CommandHandler, OutcomeQueue, Reporter};
use crate::spool::{Reader, Spool};
use miot_proto::wire::{ACK_AT_ONCE_SINCE_MINOR, COMMANDS_SINCE_MINOR, Message, PROMPT_ANSWERS, Pace};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Bytes per write: large enough that the cost of the system call does not matter.
const WRITE_BYTES: usize = 256 << 10;

/// When status reports are sent.
struct ReportTimes {
    /// Time between two reports.
    every: Duration,
    /// A report goes with other messages if it is due within this time.
    early: Duration,
}

const REPORTS: ReportTimes = ReportTimes { every: Duration::from_secs(1), early: Duration::from_millis(250) };
/// The same if the log-server has thousands of nodes: a report never takes a message of its own,
/// because other messages go more often.
const REPORTS_CROWDED: ReportTimes =
    ReportTimes { every: Duration::from_secs(10), early: Duration::from_secs(3) };

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
    let shipper = Shipper {
        spool,
        answer: watch::Sender::new(None),
        clock_queries: Mutex::default(),
        clock,
        services,
        outcomes: Mutex::default(),
    };
    let mut backoff = Backoff::new(shipper.spool.session());
    let mut accepted = false;
    loop {
        let reason = match transport.connect(shipper.spool.session()).await {
            Ok(ConnectOutcome::Welcome { sender, receiver, through, minor }) => {
                accepted = true;
                let answer = Some(Answer { through, minor });
                match shipper.connection(peer, (sender, receiver), answer, &mut spooled, &mut backoff).await?
                {
                    Some(reason) => reason,
                    None => return Ok(()),
                }
            }
            Ok(ConnectOutcome::Unanswered { sender, receiver }) => {
                accepted = true;
                match shipper.connection(peer, (sender, receiver), None, &mut spooled, &mut backoff).await? {
                    Some(reason) => reason,
                    None => return Ok(()),
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

/// Answer of the log-server to the greeting.
#[derive(Clone, Copy)]
struct Answer {
    /// The server has everything up to this number.
    through: u64,
    /// Minor version of the server.
    minor: u16,
}

struct Shipper {
    spool: Arc<Spool>,
    /// Answer to the greeting of the current connection; `None` before.
    answer: watch::Sender<Option<Answer>>,
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

    /// The log-server has thousands of nodes.
    fn is_crowded(&self) -> bool {
        self.services.as_ref().is_some_and(|services| services.pace.get() == Pace::Crowded)
    }

    /// Appends the answers to all clock queries. Returns their number.
    fn answer_clock_queries(&self, out: &mut Vec<u8>) -> usize {
        let queries = std::mem::take(&mut *self.clock_queries());
        for (sent, received) in &queries {
            let (sent, received, answered) = (*sent, *received, self.clock.now());
            Message::Pong { sent, received, answered }.append_frame(out);
        }
        queries.len()
    }

    fn clock_queries(&self) -> MutexGuard<'_, Vec<(i64, i64)>> {
        self.clock_queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection. Returns the reason why it ended; `None`: everything is acknowledged.
    async fn connection(
        &self,
        peer: &Peer,
        halves: (impl Sender, impl Receiver),
        answer: Option<Answer>,
        spooled: &mut Reader,
        backoff: &mut Backoff,
    ) -> Result<Option<String>, Error> {
        let (before, since) = (self.spool.acknowledged(), Instant::now());
        self.answer.send_replace(answer);
        if answer.is_some() {
            self.connected(true);
        }
        let end = self.serve(peer, halves, spooled).await;
        self.connected(false);
        let end = end?;
        backoff.connection_ended(self.spool.acknowledged() > before, since.elapsed());
        Ok(match end {
            ConnectionEnd::Done => None,
            ConnectionEnd::Refused(reason) => Some(format!("refused: {reason}")),
            ConnectionEnd::Broken(error) => Some(error.to_string()),
        })
    }

    /// Renews the session if the log-server has more of it than the spool, which ended with `last`.
    fn check_session(&self, through: u64, last: u64) -> Result<Option<ConnectionEnd>, Error> {
        if through <= last {
            return Ok(None);
        }
        self.spool.renew_session()?;
        let reason = "the log-server has messages that the spool has lost, starting a new session";
        Ok(Some(ConnectionEnd::Broken(io::Error::other(reason))))
    }

    /// Sends and receives until the connection ends.
    async fn serve(
        &self,
        peer: &Peer,
        (mut sender, mut receiver): (impl Sender, impl Receiver),
        spooled: &mut Reader,
    ) -> Result<ConnectionEnd, Error> {
        let (answer, last) = (*self.answer.borrow(), self.spool.last());
        let through = answer.map_or(self.spool.acknowledged(), |answer| answer.through);
        if let Some(end) = self.check_session(through, last)? {
            return Ok(end);
        }
        let mut definitions = Vec::new();
        if let Some(set) = &peer.set {
            set.message(&peer.server).append_frame(&mut definitions);
        }
        spooled.restart(through, &mut definitions);
        self.clock_queries().clear();
        let (server, to_send) = (&peer.server, self.spool.left());
        if answer.is_some() {
            tracing::info!(server, through, to_send, "connected to the log-server");
        } else {
            tracing::warn!(server, through, to_send, "no log-server has answered, sending to the broker");
        }
        tokio::select! {
            end = self.read(&mut receiver, peer, last) => end,
            result = self.write(&mut sender, spooled, definitions) => Ok(match result {
                Ok(()) => ConnectionEnd::Done,
                Err(error) => ConnectionEnd::Broken(error),
            }),
        }
    }

    /// Receives messages until the connection ends. `last`: last message of the spool when the
    /// connection began.
    async fn read(
        &self,
        receiver: &mut impl Receiver,
        peer: &Peer,
        last: u64,
    ) -> Result<ConnectionEnd, Error> {
        let dead_after = peer.dead_after;
        loop {
            let message = if self.answer.borrow().is_none() {
                receiver.next().await
            } else if let Ok(message) = timeout(dead_after, receiver.next()).await {
                // A log-server that has nothing to acknowledge sends clock queries.
                message
            } else {
                let reason = format!("no message from the log-server for {dead_after:?} (dead_after)");
                return Ok(ConnectionEnd::Broken(io::Error::new(io::ErrorKind::TimedOut, reason)));
            };
            match message {
                Ok(ServerMessage::Welcome { through, minor }) => {
                    if self.answer.borrow().is_some() {
                        continue;
                    }
                    if let Some(end) = self.check_session(through, last)? {
                        return Ok(end);
                    }
                    tracing::info!(server = peer.server, through, "the log-server has answered");
                    self.answer.send_replace(Some(Answer { through, minor }));
                    self.connected(true);
                    self.spool.acknowledge(through);
                }
                Ok(ServerMessage::Acknowledged(through)) => self.spool.acknowledge(through),
                Ok(ServerMessage::ClockQuery(sent)) => {
                    let received = self.clock.now();
                    self.clock_queries().push((sent, received));
                }
                Ok(ServerMessage::Refused(reason)) => return Ok(ConnectionEnd::Refused(reason)),
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
                Err(error) => return Ok(ConnectionEnd::Broken(error)),
            }
            self.spool.news.notify_one();
        }
    }

    /// Sends messages until nothing more comes and everything is acknowledged. `out` is sent first.
    async fn write<S: Sender>(
        &self,
        sender: &mut S,
        spooled: &mut Reader,
        mut out: Vec<u8>,
    ) -> io::Result<()> {
        let (mut report_at, mut answers, mut has_asked) = (Instant::now(), Vec::new(), false);
        let mut answered = 0;
        loop {
            // With thousands of nodes, a message of its own costs more than a delay.
            let answers_wait = self.is_crowded() && answered >= PROMPT_ANSWERS && !S::OVERTAKES;
            if !answers_wait {
                answered += self.answer_clock_queries(&mut answers);
                if !answers.is_empty() {
                    // Without delay: the longer an answer takes, the less precise it is.
                    sender.send_now(&answers).await?;
                    answers.clear();
                }
            }
            if !out.is_empty() {
                sender.send(&out).await?;
                out.clear();
            }
            // Checked first: a spool that has ended holds its last watermark already.
            let done = self.spool.is_done();
            spooled.take(&mut out, WRITE_BYTES);
            let server_has = |minor| self.answer.borrow().is_some_and(|answer| answer.minor >= minor);
            let steerable = server_has(COMMANDS_SINCE_MINOR);
            if steerable {
                self.outcomes().take().iter().for_each(|outcome| outcome.append_frame(&mut out));
                let ReportTimes { every, early } = if self.is_crowded() { REPORTS_CROWDED } else { REPORTS };
                let now = Instant::now();
                if now >= report_at || !out.is_empty() && now + early >= report_at {
                    self.report(&mut out);
                    report_at = report_at.max(now) + every;
                }
            }
            if !has_asked && server_has(ACK_AT_ONCE_SINCE_MINOR) && self.spool.needs_acknowledgments() {
                Message::AckAtOnce.append_frame(&mut out);
                has_asked = true;
            }
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
            if answers_wait {
                self.answer_clock_queries(&mut out);
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

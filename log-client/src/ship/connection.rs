//! The connection to the log-server, and the next one when it breaks.

use super::Peer;
use super::retry::Retry;
use super::transport::{Answer, News, Receiver, Sender, Transport};
use crate::clock::NodeClock;
use crate::error::Error;
use crate::report::{Answers, Desk, Reporter};
use crate::spool::{Reader, Spool};
use miot_proto::wire::Message;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Bytes gathered for one write: large enough that the system call does not count.
const WRITE: usize = 256 << 10;

/// A connection on which something was acknowledged, or that lasted so long, was a good one: after it the first wait
/// is short again.
const GOOD_AFTER: Duration = Duration::from_secs(30);

/// Between two reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What a log-client has to say besides its records, and who does what the log-server wants of it.
#[derive(Debug)]
pub(crate) struct Office {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) desk: Arc<Desk>,
}

/// How a connection ended.
enum End {
    /// Everything was acknowledged, and nothing more comes.
    Done,
    Broken(io::Error),
    Refused(String),
}

/// Ships until the spool has ended and everything in it is acknowledged.
///
/// # Errors
/// [`Error::Refused`] if the server refuses before it has ever welcomed this log-client, for a reason that does not pass by
/// itself. A later refusal is tried again: what is held here is worth it, and the reason may be that the server has not noticed yet
/// that an earlier connection broke. [`Error::System`] if there are no random numbers.
pub(crate) async fn ship<T: Transport>(
    mut transport: T,
    peer: &Peer,
    mut spooled: Reader,
    clock: NodeClock,
    office: Option<Office>,
) -> Result<(), Error> {
    let spool = Arc::clone(spooled.spool());
    let shipper = Shipper { spool, questions: Mutex::default(), clock, office, answers: Mutex::default() };
    let mut retry = Retry::new(shipper.spool.session());
    let mut welcomed = false;
    loop {
        let reason = match transport.connect(shipper.spool.session()).await {
            Ok(Answer::Welcome(sender, receiver, through, steers)) => {
                welcomed = true;
                let (before, since) = (shipper.spool.acknowledged(), Instant::now());
                shipper.connected(true);
                let end = shipper.converse(peer, (sender, receiver), through, steers, &mut spooled).await;
                shipper.connected(false);
                let end = end?;
                if shipper.spool.acknowledged() > before || since.elapsed() >= GOOD_AFTER {
                    retry.reset();
                }
                match end {
                    End::Done => return Ok(()),
                    End::Refused(reason) => format!("refused: {reason}"),
                    End::Broken(error) => error.to_string(),
                }
            }
            Ok(Answer::Refused(reason)) if !welcomed => {
                return Err(Error::Refused { server: peer.server.clone(), reason });
            }
            Ok(Answer::Refused(reason) | Answer::NotNow(reason)) => format!("refused: {reason}"),
            Err(error) => error.to_string(),
        };
        let wait = retry.next();
        tracing::warn!(
            server = peer.server,
            reason,
            retry_ms = wait.as_millis() as u64,
            "no connection to the log-server"
        );
        sleep(wait).await;
    }
}

struct Shipper {
    spool: Arc<Spool>,
    /// Clock questions not answered yet, and when they were there by this node's clock.
    questions: Mutex<Vec<(i64, i64)>>,
    clock: NodeClock,
    office: Option<Office>,
    /// To errands of the connection that stands.
    answers: Mutex<Arc<Answers>>,
}

impl Shipper {
    fn connected(&self, connected: bool) {
        // Answers to errands of an earlier connection are nobody's.
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        if let Some(Office { reporter, .. }) = &self.office {
            reporter.connected.store(connected, Relaxed);
            reporter.connects.fetch_add(u64::from(connected), Relaxed);
        }
    }

    fn answers(&self) -> Arc<Answers> {
        Arc::clone(&self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn report(&self, out: &mut Vec<u8>) {
        if let Some(message) = self.office.as_ref().and_then(|office| office.reporter.message()) {
            message.put_frame(out);
        }
    }

    fn questions(&self) -> MutexGuard<'_, Vec<(i64, i64)>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One connection, from the server's welcome on.
    async fn converse(
        &self,
        peer: &Peer,
        (mut sender, mut receiver): (impl Sender, impl Receiver),
        through: u64,
        steers: bool,
        spooled: &mut Reader,
    ) -> Result<End, Error> {
        if through > self.spool.last() {
            self.spool.renew_session()?;
            let reason = "the log-server has messages that the spool has lost: a new session begins";
            return Ok(End::Broken(io::Error::other(reason)));
        }
        let mut definitions = Vec::new();
        spooled.restart(through, &mut definitions);
        self.questions().clear();
        tracing::info!(
            server = peer.server,
            through,
            to_send = self.spool.left(),
            "connected to the log-server"
        );
        Ok(tokio::select! {
            end = self.read(&mut receiver, peer.dead_after) => end,
            result = self.write(&mut sender, spooled, definitions, steers) => match result {
                Ok(()) => End::Done,
                Err(error) => End::Broken(error),
            },
        })
    }

    /// Takes acknowledgements and questions until the connection ends.
    async fn read(&self, receiver: &mut impl Receiver, dead_after: Duration) -> End {
        loop {
            // A log-server that has nothing to acknowledge asks for the time.
            let Ok(news) = timeout(dead_after, receiver.next()).await else {
                let reason = format!("the log-server has said nothing for {dead_after:?} (dead_after)");
                return End::Broken(io::Error::new(io::ErrorKind::TimedOut, reason));
            };
            match news {
                Ok(News::Acknowledged(through)) => self.spool.acknowledge(through),
                Ok(News::Asked(sent)) => {
                    let received = self.clock.now();
                    self.questions().push((sent, received));
                }
                Ok(News::Refused(reason)) => return End::Refused(reason),
                Ok(News::Errand(id, errand)) => {
                    if let Some(Office { desk, .. }) = &self.office {
                        let (answers, spool) = (self.answers(), Arc::clone(&self.spool));
                        desk.take(id, &errand, move |answer| answers.put(answer, &spool.news));
                    }
                    continue;
                }
                Err(error) => return End::Broken(error),
            }
            self.spool.news.notify_one();
        }
    }

    /// Sends what there is to send until nothing more comes and all is acknowledged. `out` is sent first.
    async fn write(
        &self,
        sender: &mut impl Sender,
        spooled: &mut Reader,
        mut out: Vec<u8>,
        reports: bool,
    ) -> io::Result<()> {
        let mut report_at = Instant::now();
        loop {
            for (sent, received) in self.questions().drain(..) {
                let answered = self.clock.now();
                Message::Pong { sent, received, answered }.put_frame(&mut out);
            }
            if !out.is_empty() {
                // At once: the longer an answer is on its way the less it says.
                sender.send(&out).await?;
                out.clear();
            }
            if reports {
                self.answers().take().iter().for_each(|answer| answer.put_frame(&mut out));
                if Instant::now() >= report_at {
                    self.report(&mut out);
                    report_at = Instant::now() + REPORT_EVERY;
                }
            }
            // Asked before: an end that is seen has its last promise before it.
            let done = self.spool.is_done();
            spooled.take(&mut out, WRITE);
            if done {
                Message::Bye.put_frame(&mut out);
            }
            if out.is_empty() {
                tokio::select! {
                    () = self.spool.news.notified() => {}
                    () = tokio::time::sleep_until(report_at), if reports => {}
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

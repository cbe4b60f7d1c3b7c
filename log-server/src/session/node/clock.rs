//! Exchanges of messages that measure a node's clock.
//!
//! The first exchanges happen before the first times are converted. Later ones happen when the
//! error of the correction may have grown.

#![expect(clippy::disallowed_types, reason = "time of the last ping, shared by both halves of a session")]

use super::Session;
use crate::clock::{ClockEffort, Correction, Exchange, NodeClock};
use crate::now;
use crate::session::SessionEnd;
use crate::store::input::{InputKind, NodeInput};
use miot_proto::wire::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Number of exchanges before the first times are converted.
const FIRST_EXCHANGES: u32 = 8;
/// Maximum time for the first exchanges.
const FIRST_EXCHANGES_WITHIN: Duration = Duration::from_millis(500);
/// Maximum time for the very first exchange, if the node's clock is unknown.
const FIRST_EXCHANGE_WITHIN: Duration = Duration::from_secs(2);
/// A question without an answer is repeated after this time.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Maximum number of questions sent at once after an answer that was long on its way.
const MAX_REPEATS: u32 = 3;
/// Stands for the time of a question that was not written yet.
pub(super) const NOT_SENT: i64 = i64::MIN;

/// The clock of a connected node, and the exchanges with the node.
pub(super) struct ClockSync {
    pub(super) node: NodeClock,
    /// Times are converted. Before that, messages are held back.
    pub(super) known: bool,
    /// The uncertainty exceeds the configured limit, which was logged.
    doubtful: bool,
    answers: u32,
    opened: Instant,
    /// Time of the open question.
    asked: Option<Instant>,
    /// Time at which the open question was written, by the server's clock, nanoseconds since 1970.
    /// The writer task sets it.
    ping_sent: Arc<AtomicI64>,
    /// Number of questions in a row after answers with wide bounds.
    repeats: u32,
    /// Time of the next action.
    pub(super) due: Instant,
}

impl ClockSync {
    pub(super) fn new(node: NodeClock, ping_sent: Arc<AtomicI64>) -> ClockSync {
        let opened = Instant::now();
        ClockSync {
            node,
            known: false,
            doubtful: false,
            answers: 0,
            opened,
            asked: None,
            ping_sent,
            repeats: 0,
            due: opened + FIRST_EXCHANGES_WITHIN,
        }
    }

    /// True while the session should wait longer for a first answer: otherwise the times of an
    /// unknown clock would not be corrected at all.
    fn should_wait(&self) -> bool {
        self.answers == 0 && self.node.current().is_none() && self.opened.elapsed() < FIRST_EXCHANGE_WITHIN
    }
}

impl Session {
    /// Sets how often the node is asked. When that becomes more often, it is asked at once.
    pub(super) fn set_clock_effort(&mut self, effort: ClockEffort) -> Result<(), SessionEnd> {
        let is_change = self.clock.node.set_effort(effort);
        if !self.clock.known || !is_change {
            return Ok(());
        }
        if effort == ClockEffort::Full {
            self.clock.due = Instant::now();
        }
        // The error until the next question is another one now.
        self.update_correction(self.clock.node.estimated(now()))
    }

    pub(super) fn ping(&mut self) {
        self.clock.asked = Some(Instant::now());
        self.clock.ping_sent.store(NOT_SENT, Ordering::Relaxed);
        if self.clock.known {
            self.clock.due = Instant::now() + self.clock.node.pause();
        }
        let _ = self.out.send(Message::Ping { sent: NOT_SENT });
    }

    /// Handles an answer. An answer without an open question is ignored.
    pub(super) fn pong(&mut self, sent: i64, times: (i64, i64)) -> Result<(), SessionEnd> {
        let back = now();
        let is_open = sent != NOT_SENT && self.clock.ping_sent.load(Ordering::Relaxed) == sent;
        if self.clock.asked.take_if(|_| is_open).is_none() {
            return Ok(());
        }
        self.clock.answers += 1;
        if !self.clock.node.add(Exchange::new(sent, times, back)) {
            tracing::info!(node = self.node, "the node's clock was stepped, or its rate changed");
        }
        if self.clock.known {
            if self.clock.repeats < MAX_REPEATS && self.clock.node.is_worth_asking_again() {
                self.clock.repeats += 1;
                self.ping();
            } else {
                self.clock.repeats = 0;
                self.clock.due = Instant::now() + self.clock.node.pause();
            }
            self.update_correction(times.1)
        } else if self.clock.answers < FIRST_EXCHANGES {
            self.ping();
            Ok(())
        } else {
            self.clock_known()
        }
    }

    /// Acts at the due time: asks a question, or continues without an answer.
    pub(super) fn clock_due(&mut self) -> Result<(), SessionEnd> {
        if !self.clock.known {
            if self.clock.should_wait() {
                self.clock.due = Instant::now() + FIRST_EXCHANGES_WITHIN;
                return Ok(());
            }
            return self.clock_known();
        }
        match self.clock.asked {
            // The answer may be delayed behind batches. Meanwhile the error grows.
            Some(asked) if asked.elapsed() < ASK_AGAIN => {
                self.clock.due = Instant::now() + self.clock.node.pause();
                self.update_correction(self.clock.node.estimated(now()))
            }
            _ => {
                self.ping();
                Ok(())
            }
        }
    }

    /// Ends the first exchanges: times are converted from now on.
    pub(super) fn clock_known(&mut self) -> Result<(), SessionEnd> {
        self.clock.known = true;
        self.clock.due = Instant::now() + self.clock.node.pause();
        self.update_correction(self.clock.node.estimated(now()))?;
        self.release()
    }

    /// Begins new pieces of the correction if they matter.
    fn update_correction(&mut self, node_time: i64) -> Result<(), SessionEnd> {
        let pieces = self.clock.node.decide(node_time);
        self.correct_with(pieces)
    }

    /// Sends new pieces of the correction to the store.
    pub(super) fn correct_with(&mut self, pieces: Vec<Correction>) -> Result<(), SessionEnd> {
        let Some(last) = pieces.last() else { return Ok(()) };
        self.shared.monitor.clock(&self.node, last);
        self.log_uncertainty(last);
        self.send_to_store(self.shared.input(self.conn, InputKind::Node(NodeInput::Clock(pieces))))
    }

    /// Logs when the uncertainty crosses the configured limit.
    fn log_uncertainty(&mut self, correction: &Correction) {
        let limit = self.shared.tuning.get().clock_uncertainty.as_nanos() as i64;
        let doubtful = correction.uncertainty > limit;
        if doubtful == std::mem::replace(&mut self.clock.doubtful, doubtful) {
            return;
        }
        let (node, uncertainty_us, limit_us) = (&self.node, correction.uncertainty / 1000, limit / 1000);
        if doubtful && correction.uncertainty == i64::MAX {
            tracing::warn!(node, "the node's clock is unknown: the node has answered no question yet");
        } else if doubtful {
            tracing::warn!(
                node,
                uncertainty_us,
                limit_us,
                round_trip_us = correction.round_trip / 1000,
                "the uncertainty of the node's times exceeds `clock_uncertainty`"
            );
        } else {
            tracing::info!(
                node,
                uncertainty_us,
                limit_us,
                "the uncertainty of the node's times is within `clock_uncertainty`"
            );
        }
    }
}

//! What a log-server sees, asked for again and again.

use super::update::{Order, State, Update};
use crate::remote::{Stream, Tls, connect, receive, say};
use miot_proto::activity::{Watched, Window};
use miot_proto::steer::{Reply, Request};
use miot_proto::wire::{Message, Role};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds of the history.
const HISTORY: u32 = 300;

/// A connection with a log-server.
pub(crate) struct Live {
    stream: Box<dyn Stream + Send>,
}

impl Live {
    pub(crate) fn connect(address: &str, tls: &Tls) -> anyhow::Result<Live> {
        Ok(Live { stream: connect(address, tls, Role::Operator, Some(PATIENCE))? })
    }

    /// What happens now.
    pub(crate) fn ask(&mut self, window: Window) -> anyhow::Result<Watched> {
        let request = Request::Watch { window, top: 100, step: 1, steps: HISTORY };
        say(&mut *self.stream, &Message::Ask { request: serde_json::to_vec(&request)? })?;
        let Message::Answer { reply } = receive(&mut *self.stream)? else {
            anyhow::bail!("that does not answer like a log-server");
        };
        match serde_json::from_slice(&reply)? {
            Reply::Watched(watched) => Ok(*watched),
            Reply::Refused(reason) => anyhow::bail!("the log-server refused: {reason}"),
            _ => anyhow::bail!("the log-server answers something else"),
        }
    }

    /// Asks until the other side is gone.
    pub(crate) fn run(
        mut self,
        orders: &Receiver<Order>,
        updates: &SyncSender<anyhow::Result<Update>>,
        (mut window, interval): (Window, Duration),
    ) {
        loop {
            let update = self.ask(window).map(|Watched { status, snapshot, history }| Update {
                snapshot,
                window,
                history,
                state: State::Live(Box::new(status)),
            });
            let failed = update.is_err();
            match updates.try_send(update) {
                Ok(()) => {}
                Err(TrySendError::Full(update)) if failed => drop(updates.send(update)),
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return,
            }
            if failed {
                return;
            }
            match orders.recv_timeout(interval) {
                Ok(Order::Window(wanted)) => window = wanted,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

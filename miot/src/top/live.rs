//! Polls the activity of a log-server.

use super::update::{Order, SourceState, Update, UpdateError};
use crate::chain;
use crate::remote::{Stream, Tls, ask, operator, unexpected_reply};
use miot_proto::activity::{ActivityWindow, ClusterActivity};
use miot_proto::command::{OperatorReply, OperatorRequest};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

/// Least interval between attempts to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Length of the history, seconds.
pub(super) const HISTORY: u32 = 300;

/// Connection to a log-server, reopened after it breaks.
pub(crate) struct Live {
    address: String,
    tls: Tls,
    /// Connection, while it works.
    stream: Option<Box<dyn Stream + Send>>,
}

impl Live {
    pub(crate) fn new(address: &str, tls: &Tls) -> Live {
        Live { address: address.to_owned(), tls: tls.clone(), stream: None }
    }

    pub(crate) fn connect(address: &str, tls: &Tls) -> anyhow::Result<Live> {
        let mut live = Live::new(address, tls);
        live.stream = Some(live.call()?);
        Ok(live)
    }

    fn call(&self) -> anyhow::Result<Box<dyn Stream + Send>> {
        operator(&self.address, &self.tls, Duration::ZERO)
    }

    /// Requests the current activity.
    pub(crate) fn ask(&mut self, window: ActivityWindow) -> anyhow::Result<ClusterActivity> {
        let mut stream = self.stream.take().map_or_else(|| self.call(), Ok)?;
        let request = OperatorRequest::Watch { window, top: 100, step: 1, steps: HISTORY };
        let OperatorReply::Watched(watched) = ask(&mut *stream, &request)? else {
            return Err(unexpected_reply());
        };
        self.stream = Some(stream);
        Ok(*watched)
    }

    /// Polls until a receiver is dropped.
    pub(crate) fn run(
        mut self,
        orders: &Receiver<Order>,
        updates: &SyncSender<Result<Update, UpdateError>>,
        (mut window, interval): (ActivityWindow, Duration),
    ) {
        loop {
            let update = match self.ask(window) {
                Ok(ClusterActivity { status, snapshot, history }) => {
                    let state = SourceState::Live(Box::new(status));
                    Ok(Update { snapshot, window, history, state, away: Vec::new() })
                }
                Err(error) => Err(UpdateError { reason: chain(&error), is_over: false }),
            };
            let pause = if update.is_ok() { interval } else { interval.max(RECONNECT_INTERVAL) };
            // A slow screen skips this update and gets the next one.
            if let Err(TrySendError::Disconnected(_)) = updates.try_send(update) {
                return;
            }
            match orders.recv_timeout(pause) {
                Ok(Order::Window(wanted)) => window = wanted,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

//! Polls the activity of a log-server.

use super::update::{Order, SourceState, Update, UpdateError};
use crate::chain;
use crate::remote::{Stream, Tls, ask, operator, strange};
use miot_proto::activity::{ActivityWindow, ClusterActivity};
use miot_proto::command::{OperatorReply, OperatorRequest};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

/// A log-server that is away is called again after so long, at the soonest.
const AGAIN: Duration = Duration::from_secs(1);
/// Seconds of the history.
const HISTORY: u32 = 300;

/// A log-server, called again when its connection breaks.
pub(crate) struct Live {
    address: String,
    tls: Tls,
    /// While it is good.
    stream: Option<Box<dyn Stream + Send>>,
}

impl Live {
    pub(crate) fn connect(address: &str, tls: &Tls) -> anyhow::Result<Live> {
        let mut live = Live { address: address.to_owned(), tls: tls.clone(), stream: None };
        live.stream = Some(live.call()?);
        Ok(live)
    }

    fn call(&self) -> anyhow::Result<Box<dyn Stream + Send>> {
        operator(&self.address, &self.tls, Duration::ZERO)
    }

    /// What happens now.
    pub(crate) fn ask(&mut self, window: ActivityWindow) -> anyhow::Result<ClusterActivity> {
        let mut stream = self.stream.take().map_or_else(|| self.call(), Ok)?;
        let request = OperatorRequest::Watch { window, top: 100, step: 1, steps: HISTORY };
        let OperatorReply::Watched(watched) = ask(&mut *stream, &request)? else { return Err(strange()) };
        self.stream = Some(stream);
        Ok(*watched)
    }

    /// Asks until the other side is gone.
    pub(crate) fn run(
        mut self,
        orders: &Receiver<Order>,
        updates: &SyncSender<Result<Update, UpdateError>>,
        (mut window, interval): (ActivityWindow, Duration),
    ) {
        loop {
            let update = match self.ask(window) {
                Ok(ClusterActivity { status, snapshot, history }) => {
                    Ok(Update { snapshot, window, history, state: SourceState::Live(Box::new(status)) })
                }
                Err(error) => Err(UpdateError { reason: chain(&error), is_over: false }),
            };
            let pause = if update.is_ok() { interval } else { interval.max(AGAIN) };
            // A screen that does not keep up gets the next one.
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

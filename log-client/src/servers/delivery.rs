//! Delivers the spools of one log-server, one after the other.

use super::Spools;
use super::spool_dirs::SpoolDirs;
use super::spools::NumberedSpool;
use crate::clock::NodeClock;
use crate::error::Error;
use crate::ship::{NodeServices, Peer, Tcp, ship};
use crate::spool::Reader;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Pause after a log-server has refused this node.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// The spools of one log-server, ascending.
pub(super) struct Delivery {
    pub(super) peer: Peer,
    pub(super) queue: Vec<NumberedSpool>,
    /// For the spool in use, if it is the last of the queue.
    pub(super) services: Option<NodeServices>,
    pub(super) spools: Arc<Spools>,
    pub(super) dirs: SpoolDirs,
    pub(super) clock: NodeClock,
}

impl Delivery {
    /// Delivers everything. Spools that are not in use are removed then.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(super) async fn run(mut self) -> Result<(), Error> {
        for (index, NumberedSpool { number, spool, server }) in self.queue.iter().enumerate() {
            let is_last = index + 1 == self.queue.len();
            loop {
                let services = if is_last { self.services.clone() } else { None };
                let reader = Reader::new(Arc::clone(spool));
                match ship(Tcp::new(self.peer.clone()), &self.peer, reader, self.clock.clone(), services)
                    .await
                {
                    Ok(()) => break,
                    Err(Error::Refused { reason, .. }) => {
                        tracing::error!(server, reason, "refused by a log-server, retrying");
                        sleep(REFUSED_PAUSE).await;
                    }
                    Err(error) => return Err(error),
                }
            }
            if !(is_last && self.services.is_some()) && spool.clear() {
                tracing::info!(server, number, "the spool of an earlier log-server is delivered");
                self.spools.remove(*number);
                self.dirs.remove(*number);
            }
        }
        self.queue.clear();
        Ok(())
    }
}

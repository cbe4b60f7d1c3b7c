//! Connections of nodes through a broker.

use crate::session::Peer;
use crate::shared::Shared;
use tokio::io::DuplexStream;

/// Accepts connections of nodes through the broker of the configuration, if there is one.
#[derive(Debug)]
pub(super) struct BrokerListener {
    #[cfg(feature = "broker")]
    running: Option<running::Running>,
}

impl BrokerListener {
    /// Connects in the background, and again whenever the connection ends. Without the feature
    /// `broker` the configuration was refused if it names one.
    #[cfg_attr(not(feature = "broker"), expect(unused_variables, reason = "there is no broker"))]
    pub(super) fn start(shared: &Shared) -> BrokerListener {
        BrokerListener {
            #[cfg(feature = "broker")]
            running: shared.config.broker().map(|broker| running::Running::start(broker, shared)),
        }
    }

    /// Waits for the next connection; forever without a broker.
    pub(super) async fn accept(&mut self) -> (DuplexStream, Peer) {
        #[cfg(feature = "broker")]
        if let Some(running) = &mut self.running {
            return running.accept().await;
        }
        std::future::pending().await
    }
}

#[cfg(feature = "broker")]
mod running {
    use crate::monitor::Monitor;
    use crate::session::{Peer, PeerAddress};
    use crate::shared::Shared;
    use miot_broker::Settings;
    use miot_broker::server::{Incoming, serve};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::DuplexStream;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    /// Bounds of the wait before the next connection to the broker.
    const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

    /// The task that reads the broker; it ends with this.
    #[derive(Debug)]
    pub(super) struct Running {
        nodes: mpsc::Receiver<Incoming>,
        _task: JoinSet<()>,
    }

    impl Running {
        pub(super) fn start(settings: Settings, shared: &Shared) -> Running {
            let (incoming, nodes) = mpsc::channel(1);
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let description = format!("{host}, trace {}", shared.config.trace.display());
            let mut task = JoinSet::new();
            task.spawn(connect(settings, description, incoming, Arc::clone(&shared.monitor)));
            Running { nodes, _task: task }
        }

        pub(super) async fn accept(&mut self) -> (DuplexStream, Peer) {
            match self.nodes.recv().await {
                Some(Incoming { node, stream }) => {
                    let through_broker = Some(node);
                    (stream, Peer { address: PeerAddress::Broker, certificate: None, through_broker })
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Reads the broker, and connects again whenever that ends.
    async fn connect(
        settings: Settings,
        description: String,
        incoming: mpsc::Sender<Incoming>,
        monitor: Arc<Monitor>,
    ) {
        let (mut wait, mut logged) = (RETRY.0, String::new());
        loop {
            let ended = serve(&settings, &description, &incoming, &monitor.broker).await;
            let reason = ended.err().map_or_else(String::new, |error| error.to_string());
            let mut was_connected = false;
            monitor.broker.send_modify(|state| {
                was_connected = std::mem::take(&mut state.connected);
                (state.stream, state.error) = (None, Some(reason.clone()));
            });
            if was_connected {
                wait = RETRY.0;
            }
            if was_connected || reason != logged {
                tracing::error!(
                    broker = settings.url,
                    reason,
                    "nodes cannot send through the broker, retrying"
                );
            }
            logged = reason;
            tokio::time::sleep(wait.mul_f64(0.5 + fraction())).await;
            wait = (wait * 2).min(RETRY.1);
        }
    }

    /// A random number from 0 to 1: log-servers that refused each other do not come back together.
    fn fraction() -> f64 {
        f64::from(crate::now() as u32) / f64::from(u32::MAX)
    }
}

//! Signals of a daemon: stop and reload.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Returns a future that ends with the first SIGINT or SIGTERM from now on.
///
/// # Errors
/// If signals cannot be watched.
pub fn stop() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// SIGHUP, by which `systemctl reload` requests a reload of the configuration.
#[derive(Debug)]
pub struct Reload(Signal);

impl Reload {
    /// Watches the signal, which no longer ends the process.
    ///
    /// # Errors
    /// If signals cannot be watched.
    pub fn watch() -> io::Result<Reload> {
        Ok(Reload(signal(SignalKind::hangup())?))
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn wanted(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

//! The signals that every daemon knows.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ends with the first SIGINT or SIGTERM. To be called before anything waits for it.
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

/// SIGHUP, with which `systemctl reload` asks for the configuration to be read again.
#[derive(Debug)]
pub struct Reload(Signal);

impl Reload {
    /// From here on the signal does not end the process.
    ///
    /// # Errors
    /// If signals cannot be watched.
    pub fn watch() -> io::Result<Reload> {
        Ok(Reload(signal(SignalKind::hangup())?))
    }

    /// Waits for the next one. Nothing is lost if it is not awaited to its end.
    pub async fn wanted(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

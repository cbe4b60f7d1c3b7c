//! Notifications to the service manager (sd_notify(3)): `Type=notify` and `Type=notify-reload`.

use sd_notify::NotifyState;

/// Reports that the daemon serves. `status`: one line for `systemctl status`.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports the status, one line for `systemctl status`.
pub fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// Reports that the daemon is stopping.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Reports that the daemon reloads its configuration, until the returned guard is dropped.
#[must_use]
pub fn reloading() -> Reloading {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
    Reloading(())
}

/// Guard of [`reloading`].
#[derive(Debug)]
pub struct Reloading(());

impl Drop for Reloading {
    fn drop(&mut self) {
        send(&[NotifyState::Ready]);
    }
}

pub(crate) fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

//! What the service manager is told (sd_notify(3)): `Type=notify` and `Type=notify-reload`.

use sd_notify::NotifyState;

/// The daemon serves. `status`: one line for `systemctl status`.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What it is at, one line for `systemctl status`.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// It has begun to stop.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// It reads its configuration again, until what is returned is dropped.
#[must_use]
pub fn reloading() -> Reloading {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
    Reloading(())
}

/// See [`reloading`].
#[derive(Debug)]
pub struct Reloading(());

impl Drop for Reloading {
    fn drop(&mut self) {
        tell(&[NotifyState::Ready]);
    }
}

pub(crate) fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

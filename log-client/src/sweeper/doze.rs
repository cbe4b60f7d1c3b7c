//! Long sleeps on an idle node.
//!
//! While no node has events ([`Pace::Idle`](miot_proto::wire::Pace)), sweeps only find that nothing
//! has happened. Instead, the log-client asks every request to wake
//! it (the doorbell of [`miot_proto::control`]) and sweeps once a second.
//!
//! A request that began before the doorbell was set does not ring when it ends. So some sweeps
//! follow before the first long sleep; a request that takes longer than these is read with the next
//! request, or within [`LONG`].

use crate::directory::Control;
use std::time::Duration;

/// Time between two sweeps: the interval at which a node must show that it is alive.
const LONG: Duration = Duration::from_secs(1);

/// Number of sweeps with the doorbell set before the first long sleep.
const SWEEPS_BEFORE: u32 = 2;

/// State of the sweeper on an idle node.
#[derive(Debug, Default)]
pub(super) struct Doze {
    /// Number of sweeps since the doorbell was set.
    sweeps: u32,
}

impl Doze {
    /// Sets or clears the doorbell after a sweep. Returns the time to sleep if the node can sleep
    /// long. `is_idle`: nothing has happened on the node for some time, and nobody waits for it.
    pub(super) fn after_sweep(&mut self, is_idle: bool, control: &Control) -> Option<Duration> {
        // Read each time: a tool may have replaced the settings.
        let has_doorbell = control.has_doorbell();
        if has_doorbell != is_idle {
            control.set_doorbell(is_idle);
            self.sweeps = 0;
            return None;
        }
        self.sweeps = self.sweeps.saturating_add(1);
        (is_idle && self.sweeps > SWEEPS_BEFORE).then_some(LONG)
    }
}

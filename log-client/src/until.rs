//! For tests: waiting for what happens in a while.

use std::time::{Duration, Instant};

/// Far above what anything takes, so that only a hang meets it.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Waits until a condition holds, naming `what` if it does not come to hold.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "{what}: not after {WATCHDOG:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! For tests: waits for a condition.

use std::time::{Duration, Instant};

/// Far longer than any test needs, so that only a hang reaches it.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Waits until a condition holds. Panics with `what` after [`WATCHDOG`].
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "{what}: not after {WATCHDOG:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! Whether the log-server waits for the watermarks of this node.

#![expect(clippy::disallowed_types, reason = "flag between the connection and the sweeper")]

use crate::directory::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The pace that the log-server wants, see [`miot_proto::wire::Message::Pace`].
#[derive(Debug)]
pub(crate) struct Pace {
    relaxed: AtomicBool,
    control: Arc<Control>,
}

impl Pace {
    /// The sweeper sleeps on `control`.
    pub(crate) fn new(control: Arc<Control>) -> Arc<Pace> {
        Arc::new(Pace { relaxed: AtomicBool::new(false), control })
    }

    /// True if nobody waits for a watermark.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.relaxed.load(Relaxed)
    }

    /// Changes the pace. The sweeper sends a watermark at once if it is not relaxed any more.
    pub(crate) fn set_relaxed(&self, relaxed: bool) {
        if self.relaxed.swap(relaxed, Relaxed) && !relaxed {
            self.control.interrupt_sleep();
        }
    }
}

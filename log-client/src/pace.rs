//! How soon the log-server needs the events and watermarks of this node.

use crate::directory::Control;
use miot_proto::wire::Pace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The current pace, set by the connection and read by the sweeper.
#[derive(Debug)]
pub(crate) struct CurrentPace {
    pace: Mutex<Pace>,
    control: Arc<Control>,
}

impl CurrentPace {
    /// The sweeper sleeps on `control`.
    pub(crate) fn new(control: Arc<Control>) -> Arc<CurrentPace> {
        Arc::new(CurrentPace { pace: Mutex::default(), control })
    }

    pub(crate) fn get(&self) -> Pace {
        *self.lock()
    }

    /// Changes the pace. Ends the sleep of the sweeper, unless the pace becomes idle.
    pub(crate) fn set(&self, pace: Pace) {
        let before = std::mem::replace(&mut *self.lock(), pace);
        if before != pace && pace != Pace::Idle {
            self.control.interrupt_sleep();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

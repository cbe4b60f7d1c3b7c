//! Messages between a source and the screen.

use miot_activity::{ActivityHistory, ActivitySnapshot, ActivityWindow, MAX_WINDOW_SECONDS};
use miot_proto::status::ClusterStatus;

/// What is shown.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) snapshot: ActivitySnapshot,
    /// Over which time the snapshot is.
    pub(crate) window: ActivityWindow,
    pub(crate) history: ActivityHistory,
    pub(crate) state: SourceState,
}

/// Where it comes from, and how far it is.
#[derive(Clone, Debug)]
pub(crate) enum SourceState {
    /// A trace directory is played back.
    Replay {
        /// Nanoseconds since 1970.
        at: i64,
        speed: f64,
        paused: bool,
        /// Everything that is in the directory has been shown.
        ended: bool,
    },
    /// A log-server, and how it and its nodes are.
    Live(Box<ClusterStatus>),
}

/// Why there is no update.
#[derive(Clone, Debug)]
pub(crate) struct UpdateError {
    pub(crate) reason: String,
    /// There will be no further one.
    pub(crate) is_over: bool,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Window(ActivityWindow),
    /// Twice as fast, or half.
    Faster(bool),
    Pause,
    /// On to the next event.
    Next,
}

/// Windows to choose from, in turn.
pub(crate) const WINDOWS: [ActivityWindow; 4] = [
    ActivityWindow::Seconds(1),
    ActivityWindow::Seconds(10),
    ActivityWindow::Seconds(MAX_WINDOW_SECONDS),
    ActivityWindow::Whole,
];

pub(crate) fn window_name(window: ActivityWindow) -> String {
    match window {
        ActivityWindow::Seconds(1) => "last second".to_owned(),
        ActivityWindow::Seconds(seconds) => format!("last {seconds} s"),
        ActivityWindow::Whole => "whole time".to_owned(),
    }
}

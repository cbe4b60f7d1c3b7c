//! Messages between a source and the screen.

use miot_activity::{ActivityHistory, ActivitySnapshot, ActivityWindow, MAX_WINDOW_SECONDS};
use miot_proto::status::ClusterStatus;

/// Content of the screen.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) snapshot: ActivitySnapshot,
    /// Window of the snapshot.
    pub(crate) window: ActivityWindow,
    pub(crate) history: ActivityHistory,
    pub(crate) state: SourceState,
    /// Log-servers of a set that are not in it, with the reasons.
    pub(crate) away: Vec<String>,
}

/// Source of the update, and its progress.
#[derive(Clone, Debug)]
pub(crate) enum SourceState {
    /// A trace directory is played back.
    Replay {
        /// Nanoseconds since 1970.
        at: i64,
        speed: f64,
        paused: bool,
        /// All of the directory has been shown.
        ended: bool,
    },
    /// A log-server or several, with their status and that of their nodes.
    Live(Box<ClusterStatus>),
}

/// Reason why there is no update.
#[derive(Clone, Debug)]
pub(crate) struct UpdateError {
    pub(crate) reason: String,
    /// True if no further update follows.
    pub(crate) is_over: bool,
}

/// Command of the user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Window(ActivityWindow),
    /// Double the speed, or halve it.
    Faster(bool),
    Pause,
    /// Skip to the next event.
    Next,
}

/// Windows to cycle through.
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

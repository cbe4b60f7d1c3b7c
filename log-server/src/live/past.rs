//! Earlier rows for a subscriber, and the switch to live rows.
//!
//! The rows are read from the trace directory by a thread of the subscriber, batch by batch, as
//! fast as the subscriber takes them; the merge is not affected. At the end of the directory, the
//! thread asks the store to [`join`](JoinRequest) the subscriber: the store commits, notes the
//! position up to which the directory has all rows, and passes on the rows after it. The thread
//! reads on up to exactly this position of the part that was live then, even if the part is sealed
//! meanwhile. So each row comes once, by position and not by time, whether it is late or not.

use crate::live::tail::{RowFilter, Subscription, encode};
use arrow_schema::ArrowError;
use bytes::Bytes;
use crossbeam::channel::Sender;
use miot_trace_store::{Error, Follow, TracePosition, follow};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Time between two requests to a store that cannot write its directory at present.
const RETRY: Duration = Duration::from_millis(500);

/// Request of a subscriber that has read all earlier rows.
#[derive(Debug)]
pub(crate) struct JoinRequest {
    /// Receives the rows after the position.
    pub(crate) subscription: Box<Subscription>,
    /// Receives the position; or the subscription, if the directory cannot be written or read.
    pub(crate) reply: Sender<Result<TracePosition, Box<Subscription>>>,
}

/// Reason why earlier rows cannot be read. The subscriber displays the text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PastError {
    #[error("the log-server cannot read its trace: {0}")]
    Trace(#[from] Error),
    #[error("events that were not read yet were removed (retention); read faster, or request fewer events")]
    Removed,
    #[error(transparent)]
    Columns(#[from] ArrowError),
}

/// Reads the events that completed at or after `since`, and joins the subscription to the live
/// ones. `ask` sends the request to the store.
///
/// # Errors
/// [`PastError`].
pub(crate) fn read(
    trace: &Path,
    since: i64,
    mut filter: RowFilter,
    frames: &mpsc::Sender<Result<Bytes, PastError>>,
    subscription: Subscription,
    ask: impl Fn(JoinRequest) -> Option<()>,
) -> Result<(), PastError> {
    let mut subscription = Some(subscription);
    let mut follow = Follow::open(trace, follow::FollowFrom::Time(since))?;
    let missed = follow.missed();
    loop {
        let batches = follow.poll()?;
        if follow.missed() > missed {
            return Err(PastError::Removed);
        }
        let reached = batches.is_empty();
        for rows in batches {
            let mut encoded = Vec::new();
            if let Some(rows) = filter.apply(&rows)? {
                encode(&rows, &mut encoded)?;
            }
            for frame in encoded {
                if frames.blocking_send(Ok(frame)).is_err() {
                    return Ok(());
                }
            }
        }
        if frames.is_closed() {
            return Ok(());
        }
        if reached {
            let Some(joining) = subscription.take() else { return Ok(()) };
            match join(joining, &ask) {
                JoinResult::At(position) => follow.end_at(position),
                JoinResult::NotYet(waiting) => {
                    subscription = Some(*waiting);
                    std::thread::sleep(RETRY);
                }
                JoinResult::Never => return Ok(()),
            }
        }
    }
}

enum JoinResult {
    At(TracePosition),
    NotYet(Box<Subscription>),
    /// The server stops.
    Never,
}

fn join(subscription: Subscription, ask: impl Fn(JoinRequest) -> Option<()>) -> JoinResult {
    let (reply, answer) = crossbeam::channel::bounded(1);
    let asked = ask(JoinRequest { subscription: Box::new(subscription), reply });
    match asked.and_then(|()| answer.recv().ok()) {
        Some(Ok(position)) => JoinResult::At(position),
        Some(Err(subscription)) => JoinResult::NotYet(subscription),
        None => JoinResult::Never,
    }
}

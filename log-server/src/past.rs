//! What was before a subscriber came, and the change to what is now.
//!
//! Read from the trace directory by a thread of the subscriber's own, batch by batch, as fast as the subscriber
//! takes them: the merge knows nothing of it. When the end is reached the store is asked to [`join`](Join) the
//! subscriber: it commits, notes the place up to which the directory holds everything, and hands over what
//! comes after. The thread reads on up to that very place, of the part that was live then, also if it is sealed
//! meanwhile; so each row comes once, by position and not by time, whether it is late or not.

use crate::tail::{Filter, Subscription, encode};
use bytes::Bytes;
use crossbeam::channel::Sender;
use miot_trace_store::{Error, Follow, Place, follow};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often the store is asked again that cannot write its directory at present.
const RETRY: Duration = Duration::from_millis(500);

/// A subscriber that has read what there was.
#[derive(Debug)]
pub(crate) struct Join {
    /// Gets what comes after the place.
    pub(crate) subscription: Box<Subscription>,
    /// For the place; or the subscription comes back, if the directory cannot be written or read.
    pub(crate) reply: Sender<Result<Place, Box<Subscription>>>,
}

/// Reads the events that completed at or after `since`, and joins the subscription to the live ones.
///
/// # Errors
/// A text for the subscriber.
pub(crate) fn read(
    trace: &Path,
    since: i64,
    mut filter: Filter,
    frames: &mpsc::Sender<Result<Bytes, String>>,
    subscription: Subscription,
    ask: impl Fn(Join) -> Option<()>,
) -> Result<(), String> {
    let mut subscription = Some(subscription);
    let cannot = |error: Error| format!("the log-server cannot read its trace: {error}");
    let mut follow = Follow::open(trace, follow::From::Time(since)).map_err(cannot)?;
    let missed = follow.missed();
    loop {
        let batches = follow.poll().map_err(cannot)?;
        if follow.missed() > missed {
            return Err(
                "events you had not read yet were removed (retention); read faster, or ask for less".into()
            );
        }
        let reached = batches.is_empty();
        for rows in batches {
            let mut encoded = Vec::new();
            if let Some(rows) = filter.apply(&rows).map_err(|e| e.to_string())? {
                encode(&rows, &mut encoded).map_err(|e| e.to_string())?;
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
                Joined::At(place) => follow.end_at(place),
                Joined::NotYet(waiting) => {
                    subscription = Some(*waiting);
                    std::thread::sleep(RETRY);
                }
                Joined::Never => return Ok(()),
            }
        }
    }
}

enum Joined {
    At(Place),
    NotYet(Box<Subscription>),
    /// The server ends.
    Never,
}

fn join(subscription: Subscription, ask: impl Fn(Join) -> Option<()>) -> Joined {
    let (reply, answer) = crossbeam::channel::bounded(1);
    let asked = ask(Join { subscription: Box::new(subscription), reply });
    match asked.and_then(|()| answer.recv().ok()) {
        Some(Ok(place)) => Joined::At(place),
        Some(Err(subscription)) => Joined::NotYet(subscription),
        None => Joined::Never,
    }
}

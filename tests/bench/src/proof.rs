//! Checks that what a row names has happened: calls that were made are recorded, and nothing is
//! recorded where nothing must be.

use crate::played::{Played, Recorded, recorded_in};
use crate::worker::Worker;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What the lanes must hold after a number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Nothing at all.
    Nothing,
    /// This number of requests per call, of one slot each.
    Slots(u64),
    /// This number of requests per call, of any number of slots. The reader must copy them.
    Requests(u64),
    /// Each call is recorded or counted as lost, and some are lost.
    Lossy,
    /// Each call is left out by a filter.
    LeftOut,
    /// Each call is recorded or left out by a filter, and some are left out.
    Sampled,
}

impl Expected {
    fn is_met(self, calls: u64, found: Recorded) -> bool {
        let Recorded { slots, requests, lost, filtered } = found;
        match self {
            Expected::Nothing => found == Recorded::default(),
            Expected::Slots(each) => slots == each * calls && lost == 0 && filtered == 0,
            Expected::Requests(each) => requests == each * calls && lost == 0 && filtered == 0,
            Expected::Lossy => slots + lost == calls && lost > 0 && filtered == 0,
            Expected::LeftOut => filtered == calls && slots == 0 && lost == 0,
            Expected::Sampled => slots + filtered == calls && filtered > 0 && slots > 0 && lost == 0,
        }
    }
}

/// Where the records of a variant appear.
#[derive(Clone)]
pub(crate) enum Lanes {
    Played(Rc<Played>),
    /// No log-client looks at this directory.
    Nobody(PathBuf),
}

impl Lanes {
    /// Value of `MIOT_DIR`.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            Lanes::Played(played) => played.dir(),
            Lanes::Nobody(dir) => dir,
        }
    }

    /// The simulated log-client, if there is one.
    pub(crate) fn played(&self) -> Option<&Played> {
        match self {
            Lanes::Played(played) => Some(played),
            Lanes::Nobody(_) => None,
        }
    }

    /// Everything recorded so far.
    ///
    /// # Errors
    /// The reader does not catch up.
    pub(crate) fn recorded(&self) -> Result<Recorded> {
        match self {
            Lanes::Played(played) => {
                played.wake();
                played.catch_up()?;
                Ok(played.recorded())
            }
            Lanes::Nobody(dir) => Ok(recorded_in(dir)),
        }
    }
}

/// A variant's directory, and what must appear in it.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) lanes: Lanes,
    pub(crate) expected: Expected,
}

impl Watched {
    /// A variant that records nothing and finds no log-client.
    pub(crate) fn nobody(dir: &Path) -> Watched {
        Watched { lanes: Lanes::Nobody(dir.into()), expected: Expected::Nothing }
    }

    /// A variant with a simulated log-client.
    pub(crate) fn played(played: &Rc<Played>, expected: Expected) -> Watched {
        Watched { lanes: Lanes::Played(played.clone()), expected }
    }

    /// Starts to count the records of a worker that is ready.
    ///
    /// # Errors
    /// As [`Lanes::recorded`].
    pub(crate) fn start(&self) -> Result<Proof> {
        Ok(Proof { watched: self.clone(), before: self.lanes.recorded()? })
    }
}

/// Records of one variant from now on.
pub(crate) struct Proof {
    watched: Watched,
    before: Recorded,
}

impl Proof {
    /// Checks what was recorded during the calls of a worker, `calls` in number, and that the
    /// worker has found the log-client if there is one: otherwise a dormant worker could pass for
    /// one that is switched off. Returns the counts for the row.
    ///
    /// # Errors
    /// Something else has happened than expected.
    pub(crate) fn end(self, worker: &Worker, calls: u64) -> Result<Value> {
        let (Watched { lanes, expected }, what) = (&self.watched, worker.name());
        let found = lanes.recorded()? - self.before;
        ensure!(calls > 0, "{what}: no call was made");
        ensure!(
            expected.is_met(calls, found),
            "{what}: {calls} calls must give {expected:?}, but the lanes hold {found:?}"
        );
        if let Lanes::Played(played) = lanes {
            worker.expect_mapped(&played.dir().join(miot_proto::control::FILE))?;
        }
        let Recorded { slots, requests, lost, filtered } = found;
        Ok(
            json!({ "calls": calls, "slots": slots, "requests": requests, "lost": lost, "filtered": filtered }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dormant_variant_is_no_recording_one() {
        let nothing = Recorded::default();
        let all = Recorded { slots: 10, requests: 10, lost: 0, filtered: 0 };
        for (expected, found, met) in [
            (Expected::Nothing, nothing, true),
            (Expected::Nothing, all, false),
            (Expected::Slots(1), all, true),
            (Expected::Slots(1), nothing, false),
            (Expected::Slots(2), all, false),
            (Expected::Requests(1), nothing, false),
            (Expected::Requests(1), Recorded { lost: 1, ..all }, false),
            (Expected::Lossy, all, false),
            (Expected::Lossy, Recorded { slots: 3, lost: 7, ..nothing }, true),
            (Expected::LeftOut, Recorded { filtered: 10, ..nothing }, true),
            (Expected::LeftOut, nothing, false),
            (Expected::Sampled, Recorded { slots: 1, filtered: 9, ..nothing }, true),
            (Expected::Sampled, all, false),
        ] {
            assert_eq!(expected.is_met(10, found), met, "{expected:?} of {found:?}");
        }
    }
}

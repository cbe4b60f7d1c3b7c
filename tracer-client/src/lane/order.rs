//! The memory orders of a lane by name, and for each a mutant that is too weak.
//!
//! `tests/loom.sh` builds with `--cfg mutant="…"` for each and requires that the model fails: so the model
//! would notice if an order were weakened by mistake.

use std::sync::atomic::Ordering;

macro_rules! orders {
    ($($(#[$doc:meta])* $name:ident = $order:ident, mutant $mutant:literal;)*) => {
        $(
            $(#[$doc])*
            #[cfg(not(mutant = $mutant))]
            pub(crate) const $name: Ordering = Ordering::$order;
            $(#[$doc])*
            #[cfg(mutant = $mutant)]
            pub(crate) const $name: Ordering = Ordering::Relaxed;
        )*
    };
}

orders! {
    /// Store of `tail` that publishes a record.
    COMMIT = Release, mutant "commit";
    /// Store of `tail` that sets the mark. It stands in place of the commit before it for a consumer that
    /// reads it, so it publishes the same slots.
    MARK = Release, mutant "mark";
    /// Load of `head` before slots are written again.
    ROOM = Acquire, mutant "room";
    /// Store of `state` that publishes the identity.
    CLAIM = Release, mutant "claim";
    /// Store of `state` after the last record.
    RETIRE = Release, mutant "retire";
    /// Load of `drained` before a lane is claimed again.
    REUSE = Acquire, mutant "reuse";
}

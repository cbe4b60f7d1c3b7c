//! The memory orders of a lane by name, and for each a mutant that is too weak.
//!
//! `tests/loom.sh` runs the model with `MIOT_MUTANT` set to a name and requires that it fails: so the model would
//! notice if that order were weakened by mistake. Only the model has mutants.

use std::sync::atomic::Ordering;

macro_rules! orders {
    ($($(#[$doc:meta])* $name:ident = $order:ident;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub(crate) fn $name() -> Ordering {
                #[cfg(loom)]
                if mutant(stringify!($name)) {
                    return Ordering::Relaxed;
                }
                Ordering::$order
            }
        )*
    };
}

/// True if the model is to run with this mutant.
#[cfg(loom)]
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("MIOT_MUTANT").ok()).as_deref() == Some(name)
}

orders! {
    /// Store of `tail` that publishes a record.
    commit = Release;
    /// Store of `tail` that sets the mark. It stands in place of the commit before it for a consumer that
    /// reads it, so it publishes the same slots.
    mark = Release;
    /// Load of `head` before slots are written again.
    room = Acquire;
    /// Fence between the store of `oldest` and the words written over what it gave up.
    overwrite = Release;
    /// Store of `state` that publishes the identity.
    claim = Release;
    /// Store of `state` after the last record.
    retire = Release;
    /// Load of `drained` before a lane is claimed again.
    reuse = Acquire;
    /// Store of the first word of a request in flight, which publishes the others.
    show = Release;
    /// Store of `attempts` or `filtered` after the request that it counts is not shown in flight any more.
    count = Release;
}

// What the consumer needs; the log-client gets it from fences and system calls.
#[cfg(loom)]
orders! {
    /// First read of `tail`.
    see_tail = Acquire;
    /// Write of `head` after the copy.
    free = Release;
    /// Read of `state`.
    see_state = Acquire;
    /// Write of `drained` after the last copy.
    drained = Release;
    /// Read of the first word of a request in flight.
    see_shown = Acquire;
    /// Read of `attempts`.
    see_count = Acquire;
    /// Fence between a copy and the read of `oldest`.
    recheck = Acquire;
}

/// A fence of this order; none for a mutant's.
#[inline(always)]
pub(crate) fn fence(order: Ordering) {
    if order != Ordering::Relaxed {
        super::sync::fence(order);
    }
}

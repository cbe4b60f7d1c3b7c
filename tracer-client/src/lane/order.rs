//! The memory orders of a lane by name, and for each a mutant that is too weak.
//!
//! `tests/loom.sh` runs the model once for each name in `MIOT_MUTANT` and requires that it fails.
//! So the model detects an order that is weakened by mistake. Only the model has mutants.

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

/// True if the model runs with this mutant.
#[cfg(loom)]
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("MIOT_MUTANT").ok()).as_deref() == Some(name)
}

orders! {
    /// Store of `tail` that publishes a record.
    commit = Release;
    /// Store of `tail` that sets the mark. A consumer that reads the mark does not read the
    /// previous commit, so the mark publishes the same slots.
    mark = Release;
    /// Load of `head` before slots are reused.
    room = Acquire;
    /// Fence between the store of `oldest` and the stores that overwrite the discarded slots.
    overwrite = Release;
    /// Store of `state` that publishes the identity.
    claim = Release;
    /// Store of `state` after the last record.
    retire = Release;
    /// Load of `drained` before a lane is claimed again.
    reuse = Acquire;
    /// Store of the first word of a request in flight, which publishes the others.
    show = Release;
    /// Store of `attempts` or `filtered` after the counted request was removed from the in-flight
    /// entries.
    count = Release;
}

// Orders of the consumer. The log-client gets them from fences and system calls.
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

/// Executes a fence of this order; none for the order of a mutant.
#[inline(always)]
pub(crate) fn fence(order: Ordering) {
    if order != Ordering::Relaxed {
        super::sync::fence(order);
    }
}

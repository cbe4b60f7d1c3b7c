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
    /// Store of `state` that publishes the identity.
    claim = Release;
    /// Store of `state` after the last record.
    retire = Release;
    /// Load of `drained` before a lane is claimed again.
    reuse = Acquire;
}

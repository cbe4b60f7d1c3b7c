//! Non-blocking requests between their call and their completion, by MPI's handle.

use crate::abi::Handle;
use crate::record::Event;
use miot_tracer::capi::{MIOT_NONE, miot_request};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most requests that are remembered; what is submitted beyond is recorded at once, as if nobody learned how it ended.
const MOST: usize = 1 << 16;

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) request: miot_request,
    pub(crate) event: Event,
    /// See [`this_thread`].
    pub(crate) thread: u64,
}

impl Pending {
    /// The result where nobody learns how it ends: all that it asks for, which MPI goes on to move.
    pub(crate) fn unknown(&self) -> i64 {
        let length = self.event.done.length;
        if length == MIOT_NONE { 0 } else { i64::try_from(length).unwrap_or(0) }
    }
}

// SAFETY: the pointers of an event's extension are null in what is pending.
unsafe impl Send for Pending {}

static PENDING: Mutex<BTreeMap<Handle, Pending>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn pending() -> MutexGuard<'static, BTreeMap<Handle, Pending>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if any request is under way.
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Remembers a request, and returns what has no place: an older one of the same handle, or itself.
pub(crate) fn add(request: Handle, it: Pending) -> Option<Pending> {
    let mut pending = pending();
    if pending.len() >= MOST && !pending.contains_key(&request) {
        return Some(it);
    }
    let older = pending.insert(request, it);
    COUNT.store(pending.len(), Relaxed);
    older
}

/// True if the request is one of these.
pub(crate) fn has(request: Handle) -> bool {
    pending().contains_key(&request)
}

/// Takes a request that has ended: one thread gets it.
pub(crate) fn take(request: Handle) -> Option<Pending> {
    let mut pending = pending();
    let taken = pending.remove(&request);
    COUNT.store(pending.len(), Relaxed);
    taken
}

/// A number that no other thread of this process has or had.
pub(crate) fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    std::thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    // A thread that is at its end gets a new number each time: its requests count as others' then.
    NUMBER
        .try_with(|number| {
            if number.get() == 0 {
                number.set(THREADS.fetch_add(1, Relaxed));
            }
            number.get()
        })
        .unwrap_or_else(|_| THREADS.fetch_add(1, Relaxed))
}

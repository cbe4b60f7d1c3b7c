//! Table of non-blocking requests between their call and their completion, by MPI's handle.

#![expect(
    clippy::disallowed_types,
    reason = "count of open requests, checked before the lock, and thread numbers"
)]

use crate::abi::Handle;
use crate::record::RequestEvent;
use miot_tracer::capi::{MIOT_NONE, miot_request};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Capacity of the table. A request beyond it is recorded at once, with an assumed result.
const MAX_PENDING: usize = 1 << 16;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    pub(crate) request: miot_request,
    pub(crate) event: RequestEvent,
    /// Submitting thread, see [`this_thread`].
    pub(crate) thread: u64,
}

impl PendingRequest {
    /// Result of a request whose completion is not observed: its full length in bytes, which MPI
    /// continues to transfer.
    pub(crate) fn assumed_result(&self) -> i64 {
        let length = self.event.done.length;
        if length == MIOT_NONE { 0 } else { i64::try_from(length).unwrap_or(0) }
    }
}

// SAFETY:
// - The pointers in the extension of a pending event are null.
// - All other fields are plain values.
unsafe impl Send for PendingRequest {}

static PENDING: Mutex<BTreeMap<Handle, PendingRequest>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn pending() -> MutexGuard<'static, BTreeMap<Handle, PendingRequest>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether any request is in flight.
pub(crate) fn any_pending() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Adds a request. Returns the request that has no place in the table: an earlier one with the same
/// handle, or `added` itself.
pub(crate) fn add(request: Handle, added: PendingRequest) -> Option<PendingRequest> {
    let mut pending = pending();
    if pending.len() >= MAX_PENDING && !pending.contains_key(&request) {
        return Some(added);
    }
    let earlier = pending.insert(request, added);
    COUNT.store(pending.len(), Relaxed);
    earlier
}

/// Returns whether the table contains the request.
pub(crate) fn contains(request: Handle) -> bool {
    pending().contains_key(&request)
}

/// Removes a request that has ended. Of several threads, one gets it.
pub(crate) fn take(request: Handle) -> Option<PendingRequest> {
    let mut pending = pending();
    let taken = pending.remove(&request);
    COUNT.store(pending.len(), Relaxed);
    taken
}

/// Returns the number of this thread, which no other thread of this process has or had.
pub(crate) fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    std::thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    // A thread that is exiting gets a new number at each call. Its requests then count as those of
    // another thread.
    NUMBER
        .try_with(|number| {
            if number.get() == 0 {
                number.set(THREADS.fetch_add(1, Relaxed));
            }
            number.get()
        })
        .unwrap_or_else(|_| THREADS.fetch_add(1, Relaxed))
}

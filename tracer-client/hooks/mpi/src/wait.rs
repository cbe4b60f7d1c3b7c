//! Hooks of the calls that complete requests. A pending request of this library is recorded when
//! the program observes its end.

use crate::abi::{Handle, SUCCESS, Status};
use crate::mpi::{Mpi, mpi};
use crate::real::hook;
use crate::record::{complete, transfer_result};
use crate::requests;
use std::ffi::{c_int, c_void};

/// Returns the address of one handle in the program's array of requests.
fn request_at(mpi: &Mpi, requests: *const c_void, index: usize) -> *const c_void {
    requests.cast::<u8>().wrapping_add(index * mpi.abi.handle).cast()
}

/// Returns index and handle of the requests in the array that are pending here.
///
/// # Safety
/// - `requests` points to `count` handles.
unsafe fn pending_requests(mpi: &Mpi, count: c_int, requests: *const c_void) -> Vec<(usize, Handle)> {
    // SAFETY:
    // - `i` is less than `count`, so the address is that of a handle.
    let request = |i| unsafe { mpi.abi.read_handle(request_at(mpi, requests, i)) };
    (0..count.max(0) as usize)
        .map(|i| (i, request(i)))
        .filter(|(_, request)| requests::contains(*request))
        .collect()
}

/// Completes a request that has ended with `error`.
///
/// # Safety
/// - `status` points to the status of that request.
unsafe fn complete_pending(mpi: &Mpi, request: Handle, error: c_int, status: *const c_void) {
    if let Some(pending) = requests::take(request) {
        // SAFETY:
        // - `status` is the status of a request that has ended with `error`, by the contract of
        //   this function.
        complete(&pending, unsafe { transfer_result(mpi, error, status) });
    }
}

/// Records a call on one request. `has_ended` reports after the call whether the request has ended.
///
/// # Safety
/// - `request` points to a handle.
unsafe fn record_one(
    request: *const c_void,
    status: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
    has_ended: impl FnOnce() -> bool,
) -> c_int {
    let Some(mpi) = mpi() else { return call(status) };
    // SAFETY:
    // - `request` points to a handle, by the contract of this function.
    let name = unsafe { mpi.abi.read_handle(request) };
    if !requests::contains(name) {
        return call(status);
    }
    let mut own = Status([0; 24]);
    let status = mpi.status_or_own(status, &mut own);
    let returned = call(status);
    if returned != SUCCESS || has_ended() {
        // SAFETY:
        // - The call that has returned has set the status of the request.
        unsafe { complete_pending(mpi, name, returned, status) };
    }
    returned
}

/// The program's array of statuses, or one of this library where the program ignores statuses.
struct Statuses {
    at: *mut c_void,
    _own: Vec<Status>,
}

impl Statuses {
    fn new(mpi: &Mpi, count: c_int, given: *mut c_void) -> Statuses {
        let mut own = Vec::new();
        let mut at = given;
        if given as usize == mpi.abi.status_ignore {
            own.resize(count.max(1) as usize, Status([0; 24]));
            at = own.as_mut_ptr().cast();
        }
        Statuses { at, _own: own }
    }

    fn status(&self, mpi: &Mpi, index: usize) -> *const c_void {
        self.at.cast::<u8>().wrapping_add(index * mpi.abi.status).cast()
    }

    /// Returns the error of one request: the one in its status if the call returned
    /// `MPI_ERR_IN_STATUS`, else the one that the call returned.
    ///
    /// # Safety
    /// - The call has set this status.
    unsafe fn error(&self, mpi: &Mpi, index: usize, returned: c_int) -> c_int {
        if returned != mpi.abi.in_status {
            return returned;
        }
        let at = self.status(mpi, index).cast::<u8>().wrapping_add(mpi.abi.status_error);
        // SAFETY:
        // - The address is that of `MPI_ERROR` in a status that is set, by the contract of this
        //   function.
        unsafe { at.cast::<c_int>().read_unaligned() }
    }
}

/// Records a call on many requests that all end together, or not at all.
///
/// # Safety
/// - `requests` points to `count` handles.
unsafe fn record_all(
    count: c_int,
    requests: *const c_void,
    statuses: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
    have_ended: impl FnOnce() -> bool,
) -> c_int {
    let Some(mpi) = mpi() else { return call(statuses) };
    // SAFETY:
    // - `requests` points to `count` handles, by the contract of this function.
    let pending = unsafe { pending_requests(mpi, count, requests) };
    if pending.is_empty() {
        return call(statuses);
    }
    let statuses = Statuses::new(mpi, count, statuses);
    let returned = call(statuses.at);
    let class = mpi.class(returned);
    if returned == SUCCESS && !have_ended() {
        return returned;
    }
    for (i, name) in pending {
        // SAFETY:
        // - The call has ended all requests and set their statuses, or returned
        //   `MPI_ERR_IN_STATUS` and set them.
        let error = unsafe { statuses.error(mpi, i, class) };
        if error != mpi.abi.pending {
            // SAFETY:
            // - The call has set the status of this request, as above.
            unsafe { complete_pending(mpi, name, error, statuses.status(mpi, i)) };
        }
    }
    returned
}

/// Records a call on many requests of which some end: `outcount` of them, at `indices`.
///
/// # Safety
/// - `requests` points to `count` handles.
/// - The call sets `outcount` and that many elements of `indices`.
unsafe fn record_some(
    count: c_int,
    requests: *const c_void,
    outcount: *const c_int,
    indices: *const c_int,
    statuses: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let Some(mpi) = mpi() else { return call(statuses) };
    // SAFETY:
    // - `requests` points to `count` handles, by the contract of this function.
    let pending = unsafe { pending_requests(mpi, count, requests) };
    if pending.is_empty() {
        return call(statuses);
    }
    let statuses = Statuses::new(mpi, count, statuses);
    let returned = call(statuses.at);
    let class = mpi.class(returned);
    if returned != SUCCESS && class != mpi.abi.in_status {
        return returned;
    }
    // `MPI_UNDEFINED` is less than zero.
    // SAFETY:
    // - The call has set `outcount`.
    let ended = unsafe { (*outcount).max(0) as usize };
    for nth in 0..ended {
        // SAFETY:
        // - `nth` is less than the number of indices that the call has set.
        let index = unsafe { *indices.add(nth) };
        if let Some((_, name)) = pending.iter().find(|(i, _)| *i as c_int == index) {
            // SAFETY:
            // - The call has set as many statuses as indices.
            let error = unsafe { statuses.error(mpi, nth, class) };
            // SAFETY:
            // - The status is that of the request at this index.
            unsafe { complete_pending(mpi, *name, error, statuses.status(mpi, nth)) };
        }
    }
    returned
}

/// Records a call on many requests of which one ends: the one at `index`, if `has_ended`.
///
/// # Safety
/// - `requests` points to `count` handles.
/// - The call sets `index` if it fails or a request has ended.
unsafe fn record_any(
    count: c_int,
    requests: *const c_void,
    index: *const c_int,
    status: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
    has_ended: impl FnOnce() -> bool,
) -> c_int {
    let Some(mpi) = mpi() else { return call(status) };
    // SAFETY:
    // - `requests` points to `count` handles, by the contract of this function.
    let pending = unsafe { pending_requests(mpi, count, requests) };
    if pending.is_empty() {
        return call(status);
    }
    let mut own = Status([0; 24]);
    let status = mpi.status_or_own(status, &mut own);
    let returned = call(status);
    if returned != SUCCESS || has_ended() {
        // SAFETY:
        // - The call has set `index`, by the contract of this function.
        let index = unsafe { *index };
        if let Some((_, name)) = pending.iter().find(|(i, _)| *i as c_int == index) {
            // SAFETY:
            // - The status is that of the request that has ended.
            unsafe { complete_pending(mpi, *name, returned, status) };
        }
    }
    returned
}

// In the following hooks:
// - `real` gets the caller's arguments, except for a status of this library where the caller
//   ignores it.
// - The caller passes as many handles as the prototype requires.
// - MPI has set `flag`, `index`, `outcount` and `indices` when they are read, after the call.

hook! { "Wait", if requests::any_pending() => |real| (request: *mut c_void, status: *mut c_void) {
    // SAFETY:
    // - See above.
    unsafe { record_one(request, status, |status| real(request, status), || true) }
} }

hook! { "Test", if requests::any_pending() => |real| (request: *mut c_void, flag: *mut c_int, status: *mut c_void) {
    // SAFETY:
    // - See above.
    unsafe { record_one(request, status, |status| real(request, flag, status), || *flag != 0) }
} }

hook! { "Request_get_status", if requests::any_pending() => |real| (
    request: Handle, flag: *mut c_int, status: *mut c_void,
) {
    // SAFETY:
    // - See above.
    // - On a little-endian machine an integer handle is at the address of the word that holds it.
    unsafe {
        record_one((&raw const request).cast(), status, |status| real(request, flag, status), || *flag != 0)
    }
} }

hook! { "Waitall", if requests::any_pending() => |real| (
    count: c_int, requests: *mut c_void, statuses: *mut c_void,
) {
    // SAFETY:
    // - See above.
    unsafe { record_all(count, requests, statuses, |statuses| real(count, requests, statuses), || true) }
} }

hook! { "Testall", if requests::any_pending() => |real| (
    count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void,
) {
    // SAFETY:
    // - See above.
    let call = |statuses| unsafe { real(count, requests, flag, statuses) };
    // SAFETY:
    // - See above.
    unsafe { record_all(count, requests, statuses, call, || *flag != 0) }
} }

hook! { "Waitany", if requests::any_pending() => |real| (
    count: c_int, requests: *mut c_void, index: *mut c_int, status: *mut c_void,
) {
    // SAFETY:
    // - See above.
    let call = |status| unsafe { real(count, requests, index, status) };
    // SAFETY:
    // - See above.
    unsafe { record_any(count, requests, index, status, call, || true) }
} }

hook! { "Testany", if requests::any_pending() => |real| (
    count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int, status: *mut c_void,
) {
    // SAFETY:
    // - See above.
    let call = |status| unsafe { real(count, requests, index, flag, status) };
    // SAFETY:
    // - See above.
    unsafe { record_any(count, requests, index, status, call, || *flag != 0) }
} }

hook! { "Waitsome", if requests::any_pending() => |real| (
    count: c_int, requests: *mut c_void, outcount: *mut c_int, indices: *mut c_int, statuses: *mut c_void,
) {
    // SAFETY:
    // - See above.
    let call = |statuses| unsafe { real(count, requests, outcount, indices, statuses) };
    // SAFETY:
    // - See above.
    unsafe { record_some(count, requests, outcount, indices, statuses, call) }
} }

hook! { "Testsome", if requests::any_pending() => |real| (
    count: c_int, requests: *mut c_void, outcount: *mut c_int, indices: *mut c_int, statuses: *mut c_void,
) {
    // SAFETY:
    // - See above.
    let call = |statuses| unsafe { real(count, requests, outcount, indices, statuses) };
    // SAFETY:
    // - See above.
    unsafe { record_some(count, requests, outcount, indices, statuses, call) }
} }

hook! { "Request_free", if requests::any_pending() => |real| (request: *mut c_void) {
    // SAFETY:
    // - The caller passes a pointer to a handle, which MPI reads as well.
    let name = mpi().map(|mpi| unsafe { mpi.abi.read_handle(request) });
    // SAFETY:
    // - `real` gets the caller's arguments.
    let returned = unsafe { real(request) };
    if let (SUCCESS, Some(pending)) = (returned, name.and_then(requests::take)) {
        complete(&pending, pending.assumed_result());
    }
    returned
} }

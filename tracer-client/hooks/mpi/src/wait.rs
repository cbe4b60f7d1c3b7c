//! Calls that complete requests: each that is one of ours is recorded when the program learns of its end.

use crate::abi::{Handle, SUCCESS, Status};
use crate::mpi::{Mpi, mpi};
use crate::real::hook;
use crate::record::{complete, outcome};
use crate::requests;
use std::ffi::{c_int, c_void};

/// Where the program has a request.
fn at(mpi: &Mpi, requests: *const c_void, index: usize) -> *const c_void {
    requests.cast::<u8>().wrapping_add(index * mpi.abi.handle).cast()
}

/// Those of the program's requests that are ours, with their places.
///
/// # Safety
/// There are `count` requests.
unsafe fn ours(mpi: &Mpi, count: c_int, requests: *const c_void) -> Vec<(usize, Handle)> {
    // SAFETY: by the contract of this function.
    let request = |i| unsafe { mpi.abi.read_handle(at(mpi, requests, i)) };
    (0..count.max(0) as usize)
        .map(|i| (i, request(i)))
        .filter(|(_, request)| requests::has(*request))
        .collect()
}

fn ended(mpi: &Mpi, request: Handle, error: c_int, status: *const c_void) {
    if let Some(pending) = requests::take(request) {
        // SAFETY: the status of a request that has ended with this error.
        complete(&pending, unsafe { outcome(mpi, error, status) });
    }
}

/// One request; `ends` tells after the call whether it is over.
///
/// # Safety
/// `request` points to a request.
unsafe fn one(
    request: *const c_void,
    status: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
    ends: impl FnOnce() -> bool,
) -> c_int {
    let Some(mpi) = mpi() else { return call(status) };
    // SAFETY: by the contract of this function.
    let name = unsafe { mpi.abi.read_handle(request) };
    if !requests::has(name) {
        return call(status);
    }
    let mut own = Status([0; 24]);
    let status = mpi.status(status, &mut own);
    let returned = call(status);
    if returned != SUCCESS || ends() {
        ended(mpi, name, returned, status);
    }
    returned
}

/// Statuses of the program, or ours where it ignores them.
struct Statuses {
    at: *mut c_void,
    _own: Vec<Status>,
}

impl Statuses {
    fn of(mpi: &Mpi, count: c_int, given: *mut c_void) -> Statuses {
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

    /// The error of one request, where the call says that it is in its status.
    ///
    /// # Safety
    /// The call has filled this status.
    unsafe fn error(&self, mpi: &Mpi, index: usize, returned: c_int) -> c_int {
        if returned != mpi.abi.in_status {
            return returned;
        }
        let at = self.status(mpi, index).cast::<u8>().wrapping_add(mpi.abi.status_error);
        // SAFETY: by the contract of this function.
        unsafe { at.cast::<c_int>().read_unaligned() }
    }
}

/// Many requests, all of which end, or none.
///
/// # Safety
/// There are `count` requests.
unsafe fn all(
    count: c_int,
    requests: *const c_void,
    statuses: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
    ends: impl FnOnce() -> bool,
) -> c_int {
    let Some(mpi) = mpi() else { return call(statuses) };
    // SAFETY: by the contract of this function.
    let ours = unsafe { ours(mpi, count, requests) };
    if ours.is_empty() {
        return call(statuses);
    }
    let statuses = Statuses::of(mpi, count, statuses);
    let returned = call(statuses.at);
    let class = mpi.class(returned);
    if returned == SUCCESS && !ends() {
        return returned;
    }
    for (i, name) in ours {
        // SAFETY: filled, as the call has ended all or says that errors are in the statuses.
        let error = unsafe { statuses.error(mpi, i, class) };
        if error != mpi.abi.pending {
            ended(mpi, name, error, statuses.status(mpi, i));
        }
    }
    returned
}

/// Many requests, of which some end; `outcount` of them, at `indices`.
///
/// # Safety
/// There are `count` requests, and the call fills what the pointers point to.
unsafe fn some(
    count: c_int,
    requests: *const c_void,
    outcount: *const c_int,
    indices: *const c_int,
    statuses: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let Some(mpi) = mpi() else { return call(statuses) };
    // SAFETY: by the contract of this function.
    let ours = unsafe { ours(mpi, count, requests) };
    if ours.is_empty() {
        return call(statuses);
    }
    let statuses = Statuses::of(mpi, count, statuses);
    let returned = call(statuses.at);
    let class = mpi.class(returned);
    if returned != SUCCESS && class != mpi.abi.in_status {
        return returned;
    }
    // SAFETY: filled; `MPI_UNDEFINED` is below zero.
    let ended_now = unsafe { (*outcount).max(0) as usize };
    for nth in 0..ended_now {
        // SAFETY: so many were filled.
        let index = unsafe { *indices.add(nth) };
        if let Some((_, name)) = ours.iter().find(|(i, _)| *i as c_int == index) {
            // SAFETY: filled.
            let error = unsafe { statuses.error(mpi, nth, class) };
            ended(mpi, *name, error, statuses.status(mpi, nth));
        }
    }
    returned
}

/// Many requests, of which one ends: the one at `index`, if `ends`.
///
/// # Safety
/// There are `count` requests, and the call fills what the pointers point to.
unsafe fn any(
    count: c_int,
    requests: *const c_void,
    index: *const c_int,
    status: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
    ends: impl FnOnce() -> bool,
) -> c_int {
    let Some(mpi) = mpi() else { return call(status) };
    // SAFETY: by the contract of this function.
    let ours = unsafe { ours(mpi, count, requests) };
    if ours.is_empty() {
        return call(status);
    }
    let mut own = Status([0; 24]);
    let status = mpi.status(status, &mut own);
    let returned = call(status);
    if returned != SUCCESS || ends() {
        // SAFETY: filled.
        let index = unsafe { *index };
        if let Some((_, name)) = ours.iter().find(|(i, _)| *i as c_int == index) {
            ended(mpi, *name, returned, status);
        }
    }
    returned
}

hook! { "Wait", if requests::any() => |real| (request: *mut c_void, status: *mut c_void) {
    // SAFETY: the caller's arguments, but for a status of ours where it ignores it; so below.
    unsafe { one(request, status, |status| real(request, status), || true) }
} }

hook! { "Test", if requests::any() => |real| (request: *mut c_void, flag: *mut c_int, status: *mut c_void) {
    // SAFETY: see above.
    unsafe { one(request, status, |status| real(request, flag, status), || *flag != 0) }
} }

hook! { "Request_get_status", if requests::any() => |real| (request: Handle, flag: *mut c_int, status: *mut c_void) {
    // On this machine the low half of a word comes first.
    // SAFETY: see above.
    unsafe { one((&raw const request).cast(), status, |status| real(request, flag, status), || *flag != 0) }
} }

hook! { "Waitall", if requests::any() => |real| (count: c_int, requests: *mut c_void, statuses: *mut c_void) {
    // SAFETY: see above.
    unsafe { all(count, requests, statuses, |statuses| real(count, requests, statuses), || true) }
} }

hook! { "Testall", if requests::any() => |real| (
    count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void,
) {
    // SAFETY: see above.
    unsafe { all(count, requests, statuses, |statuses| real(count, requests, flag, statuses), || *flag != 0) }
} }

hook! { "Waitany", if requests::any() => |real| (
    count: c_int, requests: *mut c_void, index: *mut c_int, status: *mut c_void,
) {
    // SAFETY: see above.
    unsafe { any(count, requests, index, status, |status| real(count, requests, index, status), || true) }
} }

hook! { "Testany", if requests::any() => |real| (
    count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int, status: *mut c_void,
) {
    // SAFETY: the caller's arguments.
    let call = |status| unsafe { real(count, requests, index, flag, status) };
    // SAFETY: see above.
    unsafe { any(count, requests, index, status, call, || *flag != 0) }
} }

hook! { "Waitsome", if requests::any() => |real| (
    count: c_int, requests: *mut c_void, outcount: *mut c_int, indices: *mut c_int, statuses: *mut c_void,
) {
    // SAFETY: the caller's arguments.
    let call = |statuses| unsafe { real(count, requests, outcount, indices, statuses) };
    // SAFETY: see above.
    unsafe { some(count, requests, outcount, indices, statuses, call) }
} }

hook! { "Testsome", if requests::any() => |real| (
    count: c_int, requests: *mut c_void, outcount: *mut c_int, indices: *mut c_int, statuses: *mut c_void,
) {
    // SAFETY: the caller's arguments.
    let call = |statuses| unsafe { real(count, requests, outcount, indices, statuses) };
    // SAFETY: see above.
    unsafe { some(count, requests, outcount, indices, statuses, call) }
} }

hook! { "Request_free", if requests::any() => |real| (request: *mut c_void) {
    // SAFETY: MPI reads it as well.
    let name = mpi().map(|mpi| unsafe { mpi.abi.read_handle(request) });
    // SAFETY: the caller's arguments.
    let returned = unsafe { real(request) };
    if let (SUCCESS, Some(pending)) = (returned, name.and_then(requests::take)) {
        complete(&pending, pending.unknown());
    }
    returned
} }

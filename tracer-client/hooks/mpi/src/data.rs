//! Calls that move data: at an offset, at the file pointers, collective, split, non-blocking.

use crate::abi::{Handle, Status};
use crate::files::{self, File, Split};
use crate::mpi::{Mpi, mpi};
use crate::real::hook;
use crate::record::{self, Event, on_file, submitted};
use miot_proto::op::{Op, mpi_io as op};
use miot_tracer::capi::MIOT_NONE;
use std::ffi::{c_int, c_void};

/// Where a call starts in the file.
#[derive(Clone, Copy)]
enum At {
    /// At an offset in elementary types.
    Offset(i64),
    /// At the individual file pointer.
    Pointer,
    /// At the shared file pointer, which cannot be asked for without I/O.
    Shared,
}

/// What a call moves: so many elements of a datatype.
#[derive(Clone, Copy)]
struct Elements {
    count: i64,
    datatype: Handle,
}

fn start(mpi: &Mpi, file: &File, fh: Handle, at: At, elements: Elements, event: &mut Event) {
    event.asked = mpi.abi.basic_size(elements.datatype).map(|size| size.wrapping_mul(elements.count as u64));
    let etypes = match at {
        At::Offset(offset) => Some(offset),
        At::Pointer => mpi.position(fh, file.amode),
        At::Shared => None,
    };
    if let Some(etypes) = etypes {
        event.ext.etypes = etypes as u64;
        event.done.offset = mpi.byte_offset(fh, file.amode, etypes).unwrap_or(MIOT_NONE);
    }
}

/// Once MPI has accepted the datatype.
fn measure(mpi: &Mpi, elements: Elements, event: &mut Event) {
    if let Some(size) = mpi.size(elements.datatype) {
        event.ext.type_size = size;
        event.done.length = size.wrapping_mul(elements.count as u64);
    }
}

fn blocking(
    op: Op,
    fh: Handle,
    at: At,
    elements: Elements,
    status: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let mut ours = Status([0; 24]);
    let status = mpi().map_or(status, |mpi| mpi.status(status, &mut ours));
    on_file(
        op,
        fh,
        |mpi, file, event| start(mpi, file, fh, at, elements, event),
        || call(status),
        |mpi, event| {
            measure(mpi, elements, event);
            // SAFETY: the status of the call, which has succeeded.
            event.done.result = unsafe { mpi.bytes(status) };
        },
    )
}

fn nonblocking(
    op: Op,
    fh: Handle,
    at: At,
    elements: Elements,
    request: *mut c_void,
    call: impl FnOnce() -> c_int,
) -> c_int {
    submitted(
        op,
        fh,
        |mpi, file, event| start(mpi, file, fh, at, elements, event),
        call,
        |mpi, event| {
            measure(mpi, elements, event);
            // SAFETY: where the call, which has succeeded, has left the request.
            unsafe { mpi.abi.read_handle(request) }
        },
    )
}

fn split_begin(op: Op, fh: Handle, at: At, elements: Elements, call: impl FnOnce() -> c_int) -> c_int {
    on_file(
        op,
        fh,
        |mpi, file, event| start(mpi, file, fh, at, elements, event),
        call,
        |mpi, event| {
            measure(mpi, elements, event);
            let (done, ext) = (&event.done, &event.ext);
            let split = Split {
                offset: done.offset,
                etypes: ext.etypes,
                length: done.length,
                type_size: ext.type_size,
            };
            files::split(fh, Some(split));
        },
    )
}

fn split_end(op: Op, fh: Handle, status: *mut c_void, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let mut ours = Status([0; 24]);
    let status = mpi().map_or(status, |mpi| mpi.status(status, &mut ours));
    let begun = |event: &mut Event| {
        if let Some(split) = files::split(fh, None) {
            (event.done.offset, event.done.length) = (split.offset, split.length);
            (event.ext.etypes, event.ext.type_size) = (split.etypes, split.type_size);
        }
    };
    on_file(
        op,
        fh,
        |_, _, event| begun(event),
        || call(status),
        // SAFETY: the status of the call, which has succeeded.
        |mpi, event| event.done.result = unsafe { record::outcome(mpi, 0, status) },
    )
}

/// The calls of a row, with small and with large counts (MPI 4).
macro_rules! counted {
    ($name:literal => $hook:ident, $op:ident) => {
        $hook! { concat!("File_", $name), c_int, op::$op }
        $hook! { concat!("File_", $name, "_c"), i64, op::$op }
    };
}

macro_rules! explicit {
    ($name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any() => |real| (
            fh: Handle, offset: i64, buffer: Handle, count: $count, datatype: Handle, status: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            blocking($op, fh, At::Offset(offset), elements, status, |status| {
                // SAFETY: the caller's arguments, but for a status of ours where it ignores it.
                unsafe { real(fh, offset, buffer, count, datatype, status) }
            })
        } }
    };
}

macro_rules! at_pointer {
    ($at:expr, $name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any() => |real| (
            fh: Handle, buffer: Handle, count: $count, datatype: Handle, status: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            blocking($op, fh, $at, elements, status, |status| {
                // SAFETY: the caller's arguments, but for a status of ours where it ignores it.
                unsafe { real(fh, buffer, count, datatype, status) }
            })
        } }
    };
}

macro_rules! individual {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer! { At::Pointer, $name, $count, $op }
    };
}

macro_rules! shared {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer! { At::Shared, $name, $count, $op }
    };
}

macro_rules! explicit_nonblocking {
    ($name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any() => |real| (
            fh: Handle, offset: i64, buffer: Handle, count: $count, datatype: Handle, request: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            nonblocking($op, fh, At::Offset(offset), elements, request, || {
                // SAFETY: the caller's arguments.
                unsafe { real(fh, offset, buffer, count, datatype, request) }
            })
        } }
    };
}

macro_rules! at_pointer_nonblocking {
    ($at:expr, $name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any() => |real| (
            fh: Handle, buffer: Handle, count: $count, datatype: Handle, request: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            nonblocking($op, fh, $at, elements, request, || {
                // SAFETY: the caller's arguments.
                unsafe { real(fh, buffer, count, datatype, request) }
            })
        } }
    };
}

macro_rules! individual_nonblocking {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_nonblocking! { At::Pointer, $name, $count, $op }
    };
}

macro_rules! shared_nonblocking {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_nonblocking! { At::Shared, $name, $count, $op }
    };
}

macro_rules! explicit_begin {
    ($name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any() => |real| (
            fh: Handle, offset: i64, buffer: Handle, count: $count, datatype: Handle,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            split_begin($op, fh, At::Offset(offset), elements, || {
                // SAFETY: the caller's arguments.
                unsafe { real(fh, offset, buffer, count, datatype) }
            })
        } }
    };
}

macro_rules! at_pointer_begin {
    ($at:expr, $name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any() => |real| (fh: Handle, buffer: Handle, count: $count, datatype: Handle) {
            let elements = Elements { count: i64::from(count), datatype };
            split_begin($op, fh, $at, elements, || {
                // SAFETY: the caller's arguments.
                unsafe { real(fh, buffer, count, datatype) }
            })
        } }
    };
}

macro_rules! individual_begin {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_begin! { At::Pointer, $name, $count, $op }
    };
}

macro_rules! shared_begin {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_begin! { At::Shared, $name, $count, $op }
    };
}

macro_rules! end {
    ($name:literal, $op:ident) => {
        hook! { concat!("File_", $name), if files::any() => |real| (fh: Handle, buffer: Handle, status: *mut c_void) {
            // SAFETY: the caller's arguments, but for a status of ours where it ignores it.
            split_end(op::$op, fh, status, |status| unsafe { real(fh, buffer, status) })
        } }
    };
}

counted!("read_at" => explicit, READ_AT);
counted!("read_at_all" => explicit, READ_AT_ALL);
counted!("write_at" => explicit, WRITE_AT);
counted!("write_at_all" => explicit, WRITE_AT_ALL);
counted!("iread_at" => explicit_nonblocking, IREAD_AT);
counted!("iread_at_all" => explicit_nonblocking, IREAD_AT_ALL);
counted!("iwrite_at" => explicit_nonblocking, IWRITE_AT);
counted!("iwrite_at_all" => explicit_nonblocking, IWRITE_AT_ALL);
counted!("read" => individual, READ);
counted!("read_all" => individual, READ_ALL);
counted!("write" => individual, WRITE);
counted!("write_all" => individual, WRITE_ALL);
counted!("iread" => individual_nonblocking, IREAD);
counted!("iread_all" => individual_nonblocking, IREAD_ALL);
counted!("iwrite" => individual_nonblocking, IWRITE);
counted!("iwrite_all" => individual_nonblocking, IWRITE_ALL);
counted!("read_shared" => shared, READ_SHARED);
counted!("write_shared" => shared, WRITE_SHARED);
counted!("iread_shared" => shared_nonblocking, IREAD_SHARED);
counted!("iwrite_shared" => shared_nonblocking, IWRITE_SHARED);
counted!("read_ordered" => shared, READ_ORDERED);
counted!("write_ordered" => shared, WRITE_ORDERED);
counted!("read_at_all_begin" => explicit_begin, READ_AT_ALL_BEGIN);
counted!("write_at_all_begin" => explicit_begin, WRITE_AT_ALL_BEGIN);
counted!("read_all_begin" => individual_begin, READ_ALL_BEGIN);
counted!("write_all_begin" => individual_begin, WRITE_ALL_BEGIN);
counted!("read_ordered_begin" => shared_begin, READ_ORDERED_BEGIN);
counted!("write_ordered_begin" => shared_begin, WRITE_ORDERED_BEGIN);
end!("read_at_all_end", READ_AT_ALL_END);
end!("write_at_all_end", WRITE_AT_ALL_END);
end!("read_all_end", READ_ALL_END);
end!("write_all_end", WRITE_ALL_END);
end!("read_ordered_end", READ_ORDERED_END);
end!("write_ordered_end", WRITE_ORDERED_END);

//! Hooks of the calls that move data: at an offset, at the file pointers, collective, split and
//! non-blocking.

use crate::abi::{Handle, SUCCESS, Status};
use crate::files::{self, OpenFile, SplitCollective};
use crate::mpi::{Mpi, mpi};
use crate::real::hook;
use crate::record::{RequestEvent, record_blocking, record_nonblocking, transfer_result};
use miot_proto::op::{Op, mpi_io as op};
use miot_tracer::capi::MIOT_NONE;
use std::ffi::{c_int, c_void};

/// Start position of a call in the file.
#[derive(Clone, Copy)]
enum Position {
    /// Explicit offset in elementary types.
    Offset(i64),
    /// Individual file pointer.
    Individual,
    /// Shared file pointer, which cannot be queried without I/O.
    Shared,
}

/// Data of a call: `count` elements of a datatype.
#[derive(Clone, Copy)]
struct Elements {
    count: i64,
    datatype: Handle,
}

/// Sets the requested bytes and the offset, before the call.
fn set_start(
    mpi: &Mpi,
    file: &OpenFile,
    fh: Handle,
    position: Position,
    elements: Elements,
    event: &mut RequestEvent,
) {
    event.requested_bytes =
        mpi.abi.basic_size(elements.datatype).map(|size| size.wrapping_mul(elements.count as u64));
    let etypes = match position {
        Position::Offset(offset) => Some(offset),
        Position::Individual => mpi.position(fh, file.amode),
        Position::Shared => None,
    };
    if let Some(etypes) = etypes {
        event.ext.etypes = etypes as u64;
        event.done.offset = mpi.byte_offset(fh, file.amode, etypes).unwrap_or(MIOT_NONE);
    }
}

/// Sets the length, after MPI has accepted the datatype.
fn set_length(mpi: &Mpi, elements: Elements, event: &mut RequestEvent) {
    if let Some(size) = mpi.size(elements.datatype) {
        event.ext.type_size = size;
        event.done.length = size.wrapping_mul(elements.count as u64);
    }
}

fn blocking(
    op: Op,
    fh: Handle,
    position: Position,
    elements: Elements,
    status: *mut c_void,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let mut own = Status([0; 24]);
    let status = mpi().map_or(status, |mpi| mpi.status_or_own(status, &mut own));
    record_blocking(
        op,
        fh,
        |mpi, file, event| set_start(mpi, file, fh, position, elements, event),
        || call(status),
        |mpi, event| {
            set_length(mpi, elements, event);
            // SAFETY:
            // - The call has succeeded and has set `status`.
            event.done.result = unsafe { mpi.bytes_moved(status) };
        },
    )
}

fn nonblocking(
    op: Op,
    fh: Handle,
    position: Position,
    elements: Elements,
    request: *mut c_void,
    call: impl FnOnce() -> c_int,
) -> c_int {
    record_nonblocking(
        op,
        fh,
        |mpi, file, event| set_start(mpi, file, fh, position, elements, event),
        call,
        |mpi, event| {
            set_length(mpi, elements, event);
            // SAFETY:
            // - The call has succeeded and has stored the handle at `request`.
            unsafe { mpi.abi.read_handle(request) }
        },
    )
}

fn split_begin(
    op: Op,
    fh: Handle,
    position: Position,
    elements: Elements,
    call: impl FnOnce() -> c_int,
) -> c_int {
    record_blocking(
        op,
        fh,
        |mpi, file, event| set_start(mpi, file, fh, position, elements, event),
        call,
        |mpi, event| {
            set_length(mpi, elements, event);
            let (done, ext) = (&event.done, &event.ext);
            let split = SplitCollective {
                offset: done.offset,
                etypes: ext.etypes,
                length: done.length,
                type_size: ext.type_size,
            };
            files::begin_split(fh, split);
        },
    )
}

fn split_end(op: Op, fh: Handle, status: *mut c_void, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let mut own = Status([0; 24]);
    let status = mpi().map_or(status, |mpi| mpi.status_or_own(status, &mut own));
    let restore_split = |event: &mut RequestEvent| {
        if let Some(split) = files::end_split(fh) {
            (event.done.offset, event.done.length) = (split.offset, split.length);
            (event.ext.etypes, event.ext.type_size) = (split.etypes, split.type_size);
        }
    };
    record_blocking(
        op,
        fh,
        |_, _, event| restore_split(event),
        || call(status),
        // SAFETY:
        // - The call has succeeded and has set `status`.
        |mpi, event| event.done.result = unsafe { transfer_result(mpi, SUCCESS, status) },
    )
}

/// Declares the hooks of a call with small and with large counts (MPI 4).
macro_rules! counted {
    ($name:literal => $hook:ident, $op:ident) => {
        $hook! { concat!("File_", $name), c_int, op::$op }
        $hook! { concat!("File_", $name, "_c"), i64, op::$op }
    };
}

macro_rules! explicit {
    ($name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any_open() => |real| (
            fh: Handle, offset: i64, buffer: Handle, count: $count, datatype: Handle, status: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            blocking($op, fh, Position::Offset(offset), elements, status, |status| {
                // SAFETY:
                // - `real` gets the caller's arguments, except for a status of this library where
                //   the caller ignores it.
                unsafe { real(fh, offset, buffer, count, datatype, status) }
            })
        } }
    };
}

macro_rules! at_pointer {
    ($position:expr, $name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any_open() => |real| (
            fh: Handle, buffer: Handle, count: $count, datatype: Handle, status: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            blocking($op, fh, $position, elements, status, |status| {
                // SAFETY:
                // - `real` gets the caller's arguments, except for a status of this library where
                //   the caller ignores it.
                unsafe { real(fh, buffer, count, datatype, status) }
            })
        } }
    };
}

macro_rules! individual {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer! { Position::Individual, $name, $count, $op }
    };
}

macro_rules! shared {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer! { Position::Shared, $name, $count, $op }
    };
}

macro_rules! explicit_nonblocking {
    ($name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any_open() => |real| (
            fh: Handle, offset: i64, buffer: Handle, count: $count, datatype: Handle, request: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            nonblocking($op, fh, Position::Offset(offset), elements, request, || {
                // SAFETY:
                // - `real` gets the caller's arguments.
                unsafe { real(fh, offset, buffer, count, datatype, request) }
            })
        } }
    };
}

macro_rules! at_pointer_nonblocking {
    ($position:expr, $name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any_open() => |real| (
            fh: Handle, buffer: Handle, count: $count, datatype: Handle, request: *mut c_void,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            nonblocking($op, fh, $position, elements, request, || {
                // SAFETY:
                // - `real` gets the caller's arguments.
                unsafe { real(fh, buffer, count, datatype, request) }
            })
        } }
    };
}

macro_rules! individual_nonblocking {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_nonblocking! { Position::Individual, $name, $count, $op }
    };
}

macro_rules! shared_nonblocking {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_nonblocking! { Position::Shared, $name, $count, $op }
    };
}

macro_rules! explicit_begin {
    ($name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any_open() => |real| (
            fh: Handle, offset: i64, buffer: Handle, count: $count, datatype: Handle,
        ) {
            let elements = Elements { count: i64::from(count), datatype };
            split_begin($op, fh, Position::Offset(offset), elements, || {
                // SAFETY:
                // - `real` gets the caller's arguments.
                unsafe { real(fh, offset, buffer, count, datatype) }
            })
        } }
    };
}

macro_rules! at_pointer_begin {
    ($position:expr, $name:expr, $count:ty, $op:expr) => {
        hook! { $name, if files::any_open() => |real| (fh: Handle, buffer: Handle, count: $count, datatype: Handle) {
            let elements = Elements { count: i64::from(count), datatype };
            split_begin($op, fh, $position, elements, || {
                // SAFETY:
                // - `real` gets the caller's arguments.
                unsafe { real(fh, buffer, count, datatype) }
            })
        } }
    };
}

macro_rules! individual_begin {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_begin! { Position::Individual, $name, $count, $op }
    };
}

macro_rules! shared_begin {
    ($name:expr, $count:ty, $op:expr) => {
        at_pointer_begin! { Position::Shared, $name, $count, $op }
    };
}

macro_rules! split_end {
    ($name:literal, $op:ident) => {
        hook! { concat!("File_", $name), if files::any_open() => |real| (fh: Handle, buffer: Handle, status: *mut c_void) {
            // SAFETY:
            // - `real` gets the caller's arguments, except for a status of this library where the
            //   caller ignores it.
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
split_end!("read_at_all_end", READ_AT_ALL_END);
split_end!("write_at_all_end", WRITE_AT_ALL_END);
split_end!("read_all_end", READ_ALL_END);
split_end!("write_all_end", WRITE_ALL_END);
split_end!("read_ordered_end", READ_ORDERED_END);
split_end!("write_ordered_end", WRITE_ORDERED_END);

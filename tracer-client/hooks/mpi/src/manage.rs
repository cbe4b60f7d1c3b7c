//! Hooks of the calls that move no data: open and close, sizes, views, file pointers, queries.

use crate::abi::{Handle, SEEK_SET, SUCCESS};
use crate::files::{self, OpenFile};
use crate::mpi::{Mpi, mpi};
use crate::path::absolute;
use crate::real::hook;
use crate::record::{RequestEvent, begin, end, record_blocking};
use crate::tracer::tracer;
use crate::types::layout;
use miot_proto::event::{Communicator, MAX_PATH, flag};
use miot_proto::op::{Op, mpi_io as op};
use miot_tracer::capi::MIOT_NONE;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;

/// The communicator is unknown while the file is not open.
const NO_COMMUNICATOR: Communicator = Communicator { rank: 0, size: 0 };

hook! { "File_open", if mpi().is_some() => |real| (
    comm: Handle, name: *const c_char, amode: c_int, info: Handle, fh: *mut Handle,
) {
    // SAFETY:
    // - `real` gets the caller's arguments.
    record_open(comm, name, amode, fh, || unsafe { real(comm, name, amode, info, fh) })
} }

fn record_open(
    comm: Handle,
    name: *const c_char,
    amode: c_int,
    fh: *mut Handle,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(mpi) = mpi() else { return call() };
    let mut event = RequestEvent::new(0, NO_COMMUNICATOR).with_length(i64::from(amode));
    // SAFETY:
    // - `name` is null or a C string, which MPI is about to read.
    let path = unsafe { absolute(name) };
    let request = begin(op::OPEN, &event);
    let returned = call();
    let opened = returned == SUCCESS;
    if opened {
        let (rank, size) = mpi.communicator(comm);
        (event.ext.mpi_rank, event.ext.mpi_size) = (rank, size);
    }
    if let Some(request) = request {
        event.ext.path = path.as_ptr();
        event.done.result = mpi.result(returned);
        if opened {
            event.done.handle = (tracer().handle)();
        }
        if !end(&request, &event) {
            event.done.handle = 0;
        }
    }
    if opened {
        let communicator = Communicator { rank: event.ext.mpi_rank, size: event.ext.mpi_size };
        let file = OpenFile { handle: event.done.handle, communicator, amode, split: None };
        // SAFETY:
        // - The call has succeeded and has stored the handle at `fh`.
        files::add(unsafe { *fh }, file, path);
    }
    returned
}

hook! { "File_close", if files::any_open() => |real| (fh: *mut Handle) {
    // SAFETY:
    // - `fh` is not null, so it points to a handle, which MPI reads as well.
    let handle = if fh.is_null() { 0 } else { unsafe { *fh } };
    let mut closed = None;
    let returned = record_blocking(
        op::CLOSE,
        handle,
        |_, _, _| (),
        || {
            // Before the call: after it, another thread may get the same handle.
            closed = files::remove(handle);
            // SAFETY:
            // - `real` gets the caller's arguments.
            unsafe { real(fh) }
        },
        |_, _| (),
    );
    if let (Some((file, path)), true) = (closed, returned != SUCCESS) {
        files::add(handle, file, path);
    }
    returned
} }

hook! { "File_delete", if mpi().is_some() => |real| (name: *const c_char, info: Handle) {
    // SAFETY:
    // - `name` is null or a C string, which MPI is about to read.
    let path = unsafe { absolute(name) };
    let mut event = RequestEvent::new(0, NO_COMMUNICATOR);
    let request = begin(op::DELETE, &event);
    // SAFETY:
    // - `real` gets the caller's arguments.
    let returned = unsafe { real(name, info) };
    if let (Some(request), Some(mpi)) = (request, mpi()) {
        event.ext.path = path.as_ptr();
        event.done.result = mpi.result(returned);
        end(&request, &event);
    }
    returned
} }

/// Records a call with nothing except its result.
fn record_plain(op: Op, fh: Handle, call: impl FnOnce() -> c_int) -> c_int {
    record_blocking(op, fh, |_, _, _| (), call, |_, _| ())
}

/// Records a call with a number as its argument.
fn record_argument(op: Op, fh: Handle, argument: i64, call: impl FnOnce() -> c_int) -> c_int {
    record_blocking(op, fh, |_, _, event| *event = event.with_length(argument), call, |_, _| ())
}

/// Records a call that returns a number, which `answer` reads after the call has succeeded.
fn record_answer(op: Op, fh: Handle, call: impl FnOnce() -> c_int, answer: impl FnOnce() -> i64) -> c_int {
    record_blocking(op, fh, |_, _, _| (), call, |_, event| event.done.result = answer())
}

macro_rules! record_plain {
    ($name:literal, $op:ident ($($arg:ident: $type:ty),*)) => {
        hook! { concat!("File_", $name), if files::any_open() => |real| (fh: Handle, $($arg: $type),*) {
            // SAFETY:
            // - `real` gets the caller's arguments.
            record_plain(op::$op, fh, || unsafe { real(fh, $($arg),*) })
        } }
    };
}

macro_rules! record_argument {
    ($name:literal, $op:ident, $type:ty) => {
        hook! { concat!("File_", $name), if files::any_open() => |real| (fh: Handle, argument: $type) {
            // SAFETY:
            // - `real` gets the caller's arguments.
            record_argument(op::$op, fh, i64::from(argument), || unsafe { real(fh, argument) })
        } }
    };
}

macro_rules! record_answer {
    ($name:literal, $op:ident, $type:ty) => {
        hook! { concat!("File_", $name), if files::any_open() => |real| (fh: Handle, answer: *mut $type) {
            // SAFETY:
            // - `real` gets the caller's arguments.
            // - `answer` is read after the call has succeeded and has set it.
            record_answer(op::$op, fh, || unsafe { real(fh, answer) }, || unsafe { i64::from(*answer) })
        } }
    };
}

record_argument!("set_size", SET_SIZE, i64);
record_argument!("preallocate", PREALLOCATE, i64);
record_argument!("set_atomicity", SET_ATOMICITY, c_int);
record_answer!("get_size", GET_SIZE, i64);
record_answer!("get_amode", GET_AMODE, c_int);
record_answer!("get_position", GET_POSITION, i64);
record_answer!("get_position_shared", GET_POSITION_SHARED, i64);
record_answer!("get_atomicity", GET_ATOMICITY, c_int);
record_plain!("get_group", GET_GROUP (group: Handle));
record_plain!("set_info", SET_INFO (info: Handle));
record_plain!("get_info", GET_INFO (info: Handle));
record_plain!("sync", SYNC());

hook! { "File_get_byte_offset", if files::any_open() => |real| (fh: Handle, offset: i64, bytes: *mut i64) {
    record_blocking(
        op::GET_BYTE_OFFSET,
        fh,
        |_, _, event| event.ext.etypes = offset as u64,
        // SAFETY:
        // - `real` gets the caller's arguments.
        || unsafe { real(fh, offset, bytes) },
        |_, event| {
            // SAFETY:
            // - The call has succeeded and has set `bytes`.
            event.done.result = unsafe { *bytes };
            event.done.offset = event.done.result as u64;
        },
    )
} }

macro_rules! type_extent {
    ($name:literal) => {
        hook! { $name, if files::any_open() => |real| (fh: Handle, datatype: Handle, extent: *mut i64) {
            record_blocking(
                op::GET_TYPE_EXTENT,
                fh,
                |_, _, _| (),
                // SAFETY:
                // - `real` gets the caller's arguments.
                || unsafe { real(fh, datatype, extent) },
                |mpi, event| {
                    // SAFETY:
                    // - The call has succeeded and has set `extent`.
                    event.done.result = unsafe { *extent };
                    event.ext.type_extent = event.done.result as u64;
                    event.ext.type_size = mpi.size(datatype).unwrap_or(MIOT_NONE);
                },
            )
        } }
    };
}

type_extent!("File_get_type_extent");
type_extent!("File_get_type_extent_c");

/// Records `seek` or `seek_shared`. `new_offset` returns the byte offset of the file pointer after
/// the call, if it is known.
fn record_seek(
    op: Op,
    fh: Handle,
    offset: i64,
    whence: c_int,
    call: impl FnOnce() -> c_int,
    new_offset: impl FnOnce(&Mpi, &OpenFile) -> Option<u64>,
) -> c_int {
    record_blocking(
        op,
        fh,
        |_, _, event| {
            event.ext.etypes = offset as u64;
            *event = event.with_length(i64::from(whence - SEEK_SET) / 2);
        },
        call,
        |mpi, event| {
            if let Some(at) = files::find(fh).and_then(|file| new_offset(mpi, &file)) {
                event.done.offset = at;
            }
        },
    )
}

hook! { "File_seek", if files::any_open() => |real| (fh: Handle, offset: i64, whence: c_int) {
    record_seek(
        op::SEEK,
        fh,
        offset,
        whence,
        // SAFETY:
        // - `real` gets the caller's arguments.
        || unsafe { real(fh, offset, whence) },
        |mpi, file| mpi.byte_offset(fh, file.amode, mpi.position(fh, file.amode)?),
    )
} }

hook! { "File_seek_shared", if files::any_open() => |real| (fh: Handle, offset: i64, whence: c_int) {
    // SAFETY:
    // - `real` gets the caller's arguments.
    record_seek(op::SEEK_SHARED, fh, offset, whence, || unsafe { real(fh, offset, whence) }, |_, _| None)
} }

hook! { "File_set_view", if files::any_open() => |real| (
    fh: Handle, displacement: i64, etype: Handle, filetype: Handle, representation: *const c_char, info: Handle,
) {
    let mut text = CString::default();
    record_blocking(
        op::SET_VIEW,
        fh,
        // `MPI_DISPLACEMENT_CURRENT` is less than zero.
        |_, _, event| event.done.offset = u64::try_from(displacement).unwrap_or(MIOT_NONE),
        // SAFETY:
        // - `real` gets the caller's arguments.
        || unsafe { real(fh, displacement, etype, filetype, representation, info) },
        |mpi, event| {
            // SAFETY:
            // - `representation` is a C string, which MPI has just read.
            let name = unsafe { CStr::from_ptr(representation) }.to_string_lossy();
            let (map, is_complete) = format_view(mpi, &name, filetype);
            text = CString::new(map).unwrap_or_default();
            event.ext.second = text.as_ptr();
            event.done.flags |= if is_complete { 0 } else { flag::PATH_CUT };
            set_view_types(mpi, etype, filetype, event);
        },
    )
} }

hook! { "File_get_view", if files::any_open() => |real| (
    fh: Handle, displacement: *mut i64, etype: *mut c_void, filetype: *mut c_void, representation: *mut c_char,
) {
    record_blocking(
        op::GET_VIEW,
        fh,
        |_, _, _| (),
        // SAFETY:
        // - `real` gets the caller's arguments.
        || unsafe { real(fh, displacement, etype, filetype, representation) },
        |mpi, event| {
            // SAFETY:
            // - The call has succeeded and has set `displacement`, `etype` and `filetype`.
            unsafe {
                event.done.offset = u64::try_from(*displacement).unwrap_or(MIOT_NONE);
                let (etype, filetype) = (mpi.abi.read_handle(etype), mpi.abi.read_handle(filetype));
                set_view_types(mpi, etype, filetype, event);
            }
        },
    )
} }

/// Sets sizes and extent of a view's types.
fn set_view_types(mpi: &Mpi, etype: Handle, filetype: Handle, event: &mut RequestEvent) {
    event.done.length = mpi.size(etype).unwrap_or(MIOT_NONE);
    event.ext.type_size = mpi.size(filetype).unwrap_or(MIOT_NONE);
    event.ext.type_extent = mpi.extent(filetype).map_or(MIOT_NONE, |extent| extent as u64);
}

/// Formats a view as `REPRESENTATION OFFSET:BYTES*COUNT+STRIDE…,…`, with at most as many loop nests
/// as fit into a record. Returns the text, and whether it contains all blocks.
fn format_view(mpi: &Mpi, representation: &str, filetype: Handle) -> (String, bool) {
    /// Length of the shortest text of a loop nest, with its comma, in bytes.
    const MIN_BYTES: usize = 4;
    let mut text = format!("{representation} ");
    let nests = layout(mpi, filetype).map(|layout| layout.loop_nests(MAX_PATH / MIN_BYTES));
    let Some((nests, mut is_complete)) = nests else {
        return (text, false);
    };
    for (i, nest) in nests.iter().enumerate() {
        let length_before = text.len();
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}:{}", nest.first.offset, nest.first.bytes);
        for (count, stride) in &nest.loops {
            let _ = write!(text, "*{count}+{stride}");
        }
        if text.len() > MAX_PATH {
            text.truncate(length_before);
            is_complete = false;
            break;
        }
    }
    (text, is_complete)
}

//! Calls that move no data: open and close, sizes, views, pointers, what a file is asked.

use crate::abi::{Handle, SEEK_SET, SUCCESS};
use crate::files::{self, File};
use crate::mpi::{Mpi, mpi};
use crate::path::absolute;
use crate::real::hook;
use crate::record::{Event, begin, end, on_file};
use crate::tracer::tracer;
use crate::types::layout;
use miot_proto::event::{Communicator, MAX_PATH, flag};
use miot_proto::op::{Op, mpi_io as op};
use miot_tracer::capi::MIOT_NONE;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;

/// None, as long as a file is not open.
const NO_COMMUNICATOR: Communicator = Communicator { rank: 0, size: 0 };

hook! { "File_open", if mpi().is_some() => |real| (
    comm: Handle, name: *const c_char, amode: c_int, info: Handle, fh: *mut Handle,
) {
    // SAFETY: the caller's arguments.
    open(comm, name, amode, fh, || unsafe { real(comm, name, amode, info, fh) })
} }

fn open(
    comm: Handle,
    name: *const c_char,
    amode: c_int,
    fh: *mut Handle,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(mpi) = mpi() else { return call() };
    let mut event = Event::of(0, NO_COMMUNICATOR).length(i64::from(amode));
    // SAFETY: what MPI is about to read itself.
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
        let file = File { handle: event.done.handle, communicator, amode, split: None };
        // SAFETY: where the call, which has succeeded, has left the handle.
        files::add(unsafe { *fh }, file, path);
    }
    returned
}

hook! { "File_close", if files::any() => |real| (fh: *mut Handle) {
    // SAFETY: MPI reads it as well.
    let known = if fh.is_null() { 0 } else { unsafe { *fh } };
    let mut closed = None;
    let returned = on_file(
        op::CLOSE,
        known,
        |_, _, _| (),
        || {
            // Before, as another thread may get the same handle at once.
            closed = files::remove(known);
            // SAFETY: the caller's arguments.
            unsafe { real(fh) }
        },
        |_, _| (),
    );
    if let (Some((file, path)), true) = (closed, returned != SUCCESS) {
        files::add(known, file, path);
    }
    returned
} }

hook! { "File_delete", if mpi().is_some() => |real| (name: *const c_char, info: Handle) {
    // SAFETY: what MPI is about to read itself.
    let path = unsafe { absolute(name) };
    let mut event = Event::of(0, NO_COMMUNICATOR);
    let request = begin(op::DELETE, &event);
    // SAFETY: the caller's arguments.
    let returned = unsafe { real(name, info) };
    if let (Some(request), Some(mpi)) = (request, mpi()) {
        event.ext.path = path.as_ptr();
        event.done.result = mpi.result(returned);
        end(&request, &event);
    }
    returned
} }

/// A call of which nothing but its success is to be recorded.
fn plain(op: Op, fh: Handle, call: impl FnOnce() -> c_int) -> c_int {
    on_file(op, fh, |_, _, _| (), call, |_, _| ())
}

/// A call with a number as its argument.
fn with(op: Op, fh: Handle, argument: i64, call: impl FnOnce() -> c_int) -> c_int {
    on_file(op, fh, |_, _, event| *event = event.length(argument), call, |_, _| ())
}

/// A call whose answer is a number, read by `answer` once it is there.
fn asked(op: Op, fh: Handle, call: impl FnOnce() -> c_int, answer: impl FnOnce() -> i64) -> c_int {
    on_file(op, fh, |_, _, _| (), call, |_, event| event.done.result = answer())
}

macro_rules! plain {
    ($name:literal, $op:ident ($($arg:ident: $type:ty),*)) => {
        hook! { concat!("File_", $name), if files::any() => |real| (fh: Handle, $($arg: $type),*) {
            // SAFETY: the caller's arguments.
            plain(op::$op, fh, || unsafe { real(fh, $($arg),*) })
        } }
    };
}

macro_rules! with {
    ($name:literal, $op:ident, $type:ty) => {
        hook! { concat!("File_", $name), if files::any() => |real| (fh: Handle, argument: $type) {
            // SAFETY: the caller's arguments.
            with(op::$op, fh, i64::from(argument), || unsafe { real(fh, argument) })
        } }
    };
}

macro_rules! asked {
    ($name:literal, $op:ident, $type:ty) => {
        hook! { concat!("File_", $name), if files::any() => |real| (fh: Handle, answer: *mut $type) {
            // SAFETY: the caller's arguments; the answer is read once it is there.
            asked(op::$op, fh, || unsafe { real(fh, answer) }, || unsafe { i64::from(*answer) })
        } }
    };
}

with!("set_size", SET_SIZE, i64);
with!("preallocate", PREALLOCATE, i64);
with!("set_atomicity", SET_ATOMICITY, c_int);
asked!("get_size", GET_SIZE, i64);
asked!("get_amode", GET_AMODE, c_int);
asked!("get_position", GET_POSITION, i64);
asked!("get_position_shared", GET_POSITION_SHARED, i64);
asked!("get_atomicity", GET_ATOMICITY, c_int);
plain!("get_group", GET_GROUP (group: Handle));
plain!("set_info", SET_INFO (info: Handle));
plain!("get_info", GET_INFO (info: Handle));
plain!("sync", SYNC());

hook! { "File_get_byte_offset", if files::any() => |real| (fh: Handle, offset: i64, bytes: *mut i64) {
    on_file(
        op::GET_BYTE_OFFSET,
        fh,
        |_, _, event| event.ext.etypes = offset as u64,
        // SAFETY: the caller's arguments.
        || unsafe { real(fh, offset, bytes) },
        |_, event| {
            // SAFETY: the answer is there.
            event.done.result = unsafe { *bytes };
            event.done.offset = event.done.result as u64;
        },
    )
} }

macro_rules! type_extent {
    ($name:literal) => {
        hook! { $name, if files::any() => |real| (fh: Handle, datatype: Handle, extent: *mut i64) {
            on_file(
                op::GET_TYPE_EXTENT,
                fh,
                |_, _, _| (),
                // SAFETY: the caller's arguments.
                || unsafe { real(fh, datatype, extent) },
                |mpi, event| {
                    // SAFETY: the answer is there.
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

/// `seek` and `seek_shared`; `reached` is told where the pointer is now.
fn seek(
    op: Op,
    fh: Handle,
    offset: i64,
    whence: c_int,
    call: impl FnOnce() -> c_int,
    reached: impl FnOnce(&Mpi, &File) -> Option<u64>,
) -> c_int {
    on_file(
        op,
        fh,
        |_, _, event| {
            event.ext.etypes = offset as u64;
            *event = event.length(i64::from(whence - SEEK_SET) / 2);
        },
        call,
        |mpi, event| {
            if let Some(at) = files::find(fh).and_then(|file| reached(mpi, &file)) {
                event.done.offset = at;
            }
        },
    )
}

hook! { "File_seek", if files::any() => |real| (fh: Handle, offset: i64, whence: c_int) {
    seek(
        op::SEEK,
        fh,
        offset,
        whence,
        // SAFETY: the caller's arguments.
        || unsafe { real(fh, offset, whence) },
        |mpi, file| mpi.byte_offset(fh, file.amode, mpi.position(fh, file.amode)?),
    )
} }

hook! { "File_seek_shared", if files::any() => |real| (fh: Handle, offset: i64, whence: c_int) {
    // SAFETY: the caller's arguments.
    seek(op::SEEK_SHARED, fh, offset, whence, || unsafe { real(fh, offset, whence) }, |_, _| None)
} }

hook! { "File_set_view", if files::any() => |real| (
    fh: Handle, displacement: i64, etype: Handle, filetype: Handle, representation: *const c_char, info: Handle,
) {
    let mut text = CString::default();
    on_file(
        op::SET_VIEW,
        fh,
        // `MPI_DISPLACEMENT_CURRENT` is below zero.
        |_, _, event| event.done.offset = u64::try_from(displacement).unwrap_or(MIOT_NONE),
        // SAFETY: the caller's arguments.
        || unsafe { real(fh, displacement, etype, filetype, representation, info) },
        |mpi, event| {
            // SAFETY: a C string, which MPI has just read.
            let name = unsafe { CStr::from_ptr(representation) }.to_string_lossy();
            let (map, whole) = view_text(mpi, &name, filetype);
            text = CString::new(map).unwrap_or_default();
            event.ext.second = text.as_ptr();
            event.done.flags |= if whole { 0 } else { flag::PATH_CUT };
            view(mpi, etype, filetype, event);
        },
    )
} }

hook! { "File_get_view", if files::any() => |real| (
    fh: Handle, displacement: *mut i64, etype: *mut c_void, filetype: *mut c_void, representation: *mut c_char,
) {
    on_file(
        op::GET_VIEW,
        fh,
        |_, _, _| (),
        // SAFETY: the caller's arguments.
        || unsafe { real(fh, displacement, etype, filetype, representation) },
        |mpi, event| {
            // SAFETY: the answers are there.
            unsafe {
                event.done.offset = u64::try_from(*displacement).unwrap_or(MIOT_NONE);
                view(mpi, mpi.abi.read_handle(etype), mpi.abi.read_handle(filetype), event);
            }
        },
    )
} }

fn view(mpi: &Mpi, etype: Handle, filetype: Handle, event: &mut Event) {
    event.done.length = mpi.size(etype).unwrap_or(MIOT_NONE);
    event.ext.type_size = mpi.size(filetype).unwrap_or(MIOT_NONE);
    event.ext.type_extent = mpi.extent(filetype).map_or(MIOT_NONE, |extent| extent as u64);
}

/// `REPRESENTATION OFFSET:BYTES*COUNT+STRIDE…,…` as far as a record has room, and whether these are all blocks.
fn view_text(mpi: &Mpi, representation: &str, filetype: Handle) -> (String, bool) {
    /// Shortest text of a term, with its comma.
    const SHORTEST: usize = 4;
    let mut text = format!("{representation} ");
    let Some((terms, mut whole)) = layout(mpi, filetype).map(|layout| layout.terms(MAX_PATH / SHORTEST))
    else {
        return (text, false);
    };
    for (i, term) in terms.iter().enumerate() {
        let fits = text.len();
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}:{}", term.first.offset, term.first.bytes);
        for (count, stride) in &term.loops {
            let _ = write!(text, "*{count}+{stride}");
        }
        if text.len() > MAX_PATH {
            text.truncate(fits);
            whole = false;
            break;
        }
    }
    (text, whole)
}

//! The C interface, declared in `miot.h` (generated from here by `tests/header.rs`).
//!
//! Every function may be called from any thread, from signal handlers and between `fork` and `exec`. None
//! allocates, blocks (apart from the policy `wait`) or changes `errno`.

use crate::lane::Doing;
use crate::thread::{Begun, Done};
use miot_proto::event::{Ext, NONE};
use miot_proto::op::Op;
use std::ffi::{CStr, c_char, c_int};

/// "None" as offset or length: the request has none.
pub const MIOT_NONE: u64 = 0xffff_ffff_ffff_ffff;
const _: () = assert!(MIOT_NONE == NONE);

/// A request between miot_begin and miot_end. Its fields are MIOT's own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_request {
    /// Begin, raw ticks.
    pub begin: u64,
    /// Number of the request; 0: nothing is recorded.
    pub number: u32,
    /// Number of the enclosing request.
    pub enclosing: u32,
    /// Layer.
    pub layer: u8,
    /// Operation.
    pub op: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

/// How a request ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_done {
    /// Handle of the file (miot_open), 0 if none.
    pub handle: u64,
    /// Byte offset, MIOT_NONE if none.
    pub offset: u64,
    /// Bytes asked for, MIOT_NONE if none.
    pub length: u64,
    /// Bytes moved or another value of success; negative: -errno.
    pub result: i64,
    /// Flags, MIOT_FLAG_*.
    pub flags: u16,
}

impl miot_request {
    const NOTHING: miot_request =
        miot_request { begin: 0, number: 0, enclosing: 0, layer: 0, op: 0, reserved: [0; 6] };

    fn of(begun: Option<Begun>) -> miot_request {
        begun.map_or(miot_request::NOTHING, |begun| {
            let (begin, op, number, enclosing) = begun.into_parts();
            miot_request { begin, number, enclosing, layer: op.layer, op: op.number, reserved: [0; 6] }
        })
    }

    fn begun(&self) -> Option<Begun> {
        let op = Op { layer: self.layer, number: self.op };
        (self.number != 0).then(|| Begun::from_parts(self.begin, op, self.number, self.enclosing))
    }
}

impl miot_done {
    fn done(&self) -> Done {
        Done {
            handle: self.handle,
            offset: self.offset,
            length: self.length,
            result: self.result,
            flags: self.flags,
        }
    }
}

/// # Safety
/// `text` is null or a C string that outlives the result.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: not null, and a C string by the contract of this function.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// Begins a request of layer MIOT_LAYER_* and operation MIOT_CLIENT_* (or another layer's).
/// Pass what it returns to miot_end, also if nothing is recorded.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin(layer: u8, op: u8) -> miot_request {
    miot_request::of(crate::begin(Op { layer, number: op }))
}

/// Begins a request that makes requests of its own: until its end, those of this thread name it as the
/// one that encloses them.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin_enclosing(layer: u8, op: u8) -> miot_request {
    miot_request::of(crate::begin_enclosing(Op { layer, number: op }))
}

/// miot_begin that also says what the request is about to do, so that it can be seen if it hangs: the file
/// (miot_open), the byte offset and the bytes asked for, MIOT_NONE if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin_on(layer: u8, op: u8, handle: u64, offset: u64, length: u64) -> miot_request {
    miot_request::of(crate::begin_on(Op { layer, number: op }, Doing { handle, offset, length }))
}

/// Forgets a request that is not to be recorded after all. Every request of miot_begin needs this or an end.
///
/// # Safety
/// The pointer points to a valid structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_cancel(request: *const miot_request) {
    // SAFETY: by the contract of this function.
    if let Some(begun) = unsafe { &*request }.begun() {
        crate::cancel(begun);
    }
}

/// Ends a request: takes the completion time and commits the event. Returns 1 if it was recorded, 0 if
/// not (nothing records, or it was dropped and counted).
///
/// # Safety
/// Both pointers point to valid structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end(request: *const miot_request, done: *const miot_done) -> c_int {
    // SAFETY: by the contract of this function.
    let (request, done) = unsafe { (&*request, &*done) };
    c_int::from(request.begun().is_some_and(|begun| crate::end(begun, done.done())))
}

/// Ends a request that has one or two paths (the second of a rename, or the name of an attribute), each
/// a C string or NULL. Paths longer than 4096 bytes are cut and flagged.
///
/// # Safety
/// The first two pointers point to valid structures, the others are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end_paths(
    request: *const miot_request,
    done: *const miot_done,
    path: *const c_char,
    second: *const c_char,
) -> c_int {
    // SAFETY: by the contract of this function.
    let (request, done, path1, path2) = unsafe { (&*request, &*done, bytes(path), bytes(second)) };
    let ext = Ext { path1, path2, ..Ext::default() };
    c_int::from(request.begun().is_some_and(|begun| crate::end_with(begun, done.done(), &ext)))
}

/// Records a request whose times are known, in ticks of miot_ticks. Call it soon after the completion.
///
/// # Safety
/// `done` points to a valid structure, `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_record(
    layer: u8,
    op: u8,
    begin_ticks: u64,
    end_ticks: u64,
    done: *const miot_done,
    path: *const c_char,
) -> c_int {
    // SAFETY: by the contract of this function.
    let (done, path1) = unsafe { (&*done, bytes(path)) };
    let ext = Ext { path1, ..Ext::default() };
    c_int::from(crate::record(Op { layer, number: op }, begin_ticks, end_ticks, done.done(), &ext))
}

/// Opens a file: records its path under a new handle and returns the handle, 0 if nothing records now.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_open(path: *const c_char) -> u64 {
    // SAFETY: by the contract of this function.
    crate::open(unsafe { bytes(path) })
}

/// Closes a file of miot_open.
#[unsafe(no_mangle)]
pub extern "C" fn miot_close(handle: u64) -> c_int {
    c_int::from(crate::close(handle))
}

/// Records a remark with the time: any string.
///
/// # Safety
/// `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_note(text: *const c_char) -> c_int {
    // SAFETY: by the contract of this function.
    c_int::from(crate::note(unsafe { bytes(text) }))
}

/// The time in raw ticks.
#[unsafe(no_mangle)]
pub extern "C" fn miot_ticks() -> u64 {
    crate::ticks()
}

/// 1 if a request of this layer would be recorded now, 0 if not; sets nothing up.
#[unsafe(no_mangle)]
pub extern "C" fn miot_active(layer: u8) -> c_int {
    c_int::from(crate::active(Op { layer, number: 1 }))
}

//! The C interface, declared in `miot.h` (generated from here by `tests/header.rs`).
//!
//! Every function may be called from any thread, from signal handlers and between `fork` and `exec`. None
//! allocates, blocks (apart from the policy `wait`) or changes `errno`. Each pointer may be null: a request that is not
//! there is not recorded, a result that is not there is a success without file, offset and length, a text is empty.

use crate::lane::Doing;
use crate::thread::{Begun, Done, Submitted, Within};
use miot_proto::event::{Caller, Communicator, Ext, NONE};
use miot_proto::op::Op;
use std::ffi::{CStr, c_char, c_int, c_void};

/// "None" as offset or length: the request has none.
pub const MIOT_NONE: u64 = 0xffff_ffff_ffff_ffff;
const _: () = assert!(MIOT_NONE == NONE);

/// A request between miot_begin and miot_end, or between miot_submit and miot_complete. Its fields are MIOT's own.
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
    pub reserved: [u8; 2],
    /// Of a request of miot_submit: the thread of the enclosing request, 0 if there is none.
    pub thread: u32,
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

/// What some requests have besides. Start from MIOT_EXT_NONE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_ext {
    /// Path of the request, a C string or NULL. Longer ones than 4096 bytes are cut and flagged.
    pub path: *const c_char,
    /// The second path of a rename, or the name of an attribute: a C string or NULL.
    pub second: *const c_char,
    /// Handle of the other file, the one a copy reads from; 0 if none.
    pub handle2: u64,
    /// Byte offset in the other file, MIOT_NONE if none.
    pub offset2: u64,
    /// Thread that asked the file-system client, 0 if unknown.
    pub caller_tid: u32,
    /// User that asked, MIOT_NOBODY if unknown.
    pub caller_uid: u32,
    /// Rank in the communicator of the file.
    pub mpi_rank: u32,
    /// Size of that communicator, 0 if there is none.
    pub mpi_size: u32,
    /// Offset in elementary types of the view, MIOT_NONE if none.
    pub etypes: u64,
    /// Bytes of an element of the datatype, of the file type where a view is set; MIOT_NONE if none.
    pub type_size: u64,
    /// Extent of that type, bytes; MIOT_NONE if none.
    pub type_extent: u64,
}

/// "Unknown" as caller_uid.
pub const MIOT_NOBODY: u32 = 0xffff_ffff;

impl miot_ext {
    /// # Safety
    /// `at` is null or points to a valid structure that outlives the result, its paths are null or C strings that do.
    unsafe fn ext<'a>(at: *const miot_ext) -> Ext<'a> {
        // SAFETY: by the contract of this function.
        unsafe { at.as_ref() }.map_or_else(Ext::default, |ext| unsafe { ext.some() })
    }

    /// # Safety
    /// Both paths are null or C strings that outlive the result.
    unsafe fn some(&self) -> Ext<'_> {
        let some = |word: u64| Some(word).filter(|word| *word != NONE);
        let caller = Caller { tid: self.caller_tid, uid: self.caller_uid };
        let communicator = Communicator { rank: self.mpi_rank, size: self.mpi_size };
        // SAFETY: by the contract of this function.
        let (path1, path2) = unsafe { (bytes(self.path), bytes(self.second)) };
        Ext {
            handle2: Some(self.handle2).filter(|handle| *handle != 0),
            offset2: some(self.offset2),
            cpu_time: None,
            caller: Some(caller).filter(|caller| caller.uid != MIOT_NOBODY),
            communicator: Some(communicator).filter(|communicator| communicator.size != 0),
            etypes: some(self.etypes),
            type_size: some(self.type_size),
            type_extent: some(self.type_extent),
            path1,
            path2,
        }
    }
}

impl miot_request {
    const NOTHING: miot_request =
        miot_request { begin: 0, number: 0, enclosing: 0, layer: 0, op: 0, reserved: [0; 2], thread: 0 };

    fn of(begun: Option<Begun>) -> miot_request {
        begun.map_or(miot_request::NOTHING, |begun| {
            let (begin, op, number, enclosing) = begun.into_parts();
            miot_request { begin, number, enclosing, layer: op.layer, op: op.number, ..miot_request::NOTHING }
        })
    }

    /// # Safety
    /// `at` is null or points to a valid structure.
    unsafe fn submitted(at: *const miot_request) -> Option<Submitted> {
        // SAFETY: by the contract of this function.
        let request = unsafe { at.as_ref() }.filter(|request| request.number != 0)?;
        let op = Op { layer: request.layer, number: request.op };
        // Of a request of miot_begin the number counts, and the enclosing one is of its thread.
        let enclosing = if request.thread == 0 { 0 } else { request.enclosing };
        Some(Submitted::from_parts(request.begin, op, Within { tid: request.thread, request: enclosing }))
    }

    /// # Safety
    /// `at` is null or points to a valid structure.
    unsafe fn begun(at: *const miot_request) -> Option<Begun> {
        // SAFETY: by the contract of this function.
        let request = unsafe { at.as_ref() }.filter(|request| request.number != 0)?;
        let op = Op { layer: request.layer, number: request.op };
        Some(Begun::from_parts(request.begin, op, request.number, request.enclosing))
    }
}

impl miot_done {
    /// # Safety
    /// `at` is null or points to a valid structure.
    unsafe fn done(at: *const miot_done) -> Done {
        // SAFETY: by the contract of this function.
        unsafe { at.as_ref() }.map_or(Done::of(0), |done| Done {
            handle: done.handle,
            offset: done.offset,
            length: done.length,
            result: done.result,
            flags: done.flags,
        })
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

/// miot_begin_enclosing that also says what the request is about to do, as miot_begin_on does.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin_enclosing_on(
    layer: u8,
    op: u8,
    handle: u64,
    offset: u64,
    length: u64,
) -> miot_request {
    let doing = Doing { handle, offset, length };
    miot_request::of(crate::begin_enclosing_on(Op { layer, number: op }, doing))
}

/// Forgets a request that is not to be recorded after all. Every request of miot_begin needs this or an end.
///
/// # Safety
/// The pointer is null or points to a valid structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_cancel(request: *const miot_request) {
    // SAFETY: by the contract of this function.
    if let Some(begun) = unsafe { miot_request::begun(request) } {
        crate::cancel(begun);
    }
}

/// Ends a request: takes the completion time and commits the event. Returns 1 if it was recorded, 0 if
/// not (nothing records, or it was dropped and counted).
///
/// # Safety
/// Both pointers are null or point to valid structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end(request: *const miot_request, done: *const miot_done) -> c_int {
    // SAFETY: by the contract of this function.
    let (begun, done) = unsafe { (miot_request::begun(request), miot_done::done(done)) };
    c_int::from(begun.is_some_and(|begun| crate::end(begun, done)))
}

/// Ends a request that has one or two paths (the second of a rename, or the name of an attribute), each
/// a C string or NULL. Paths longer than 4096 bytes are cut and flagged.
///
/// # Safety
/// The first two pointers are null or point to valid structures, the others are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end_paths(
    request: *const miot_request,
    done: *const miot_done,
    path: *const c_char,
    second: *const c_char,
) -> c_int {
    // SAFETY: by the contract of this function.
    let (begun, done) = unsafe { (miot_request::begun(request), miot_done::done(done)) };
    // SAFETY: by the contract of this function.
    let (path1, path2) = unsafe { (bytes(path), bytes(second)) };
    let ext = Ext { path1, path2, ..Ext::default() };
    c_int::from(begun.is_some_and(|begun| crate::end_with(begun, done, &ext)))
}

/// Ends a request that has more than paths.
///
/// # Safety
/// All pointers are null or point to valid structures, those in the last to C strings or nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end_ext(
    request: *const miot_request,
    done: *const miot_done,
    ext: *const miot_ext,
) -> c_int {
    // SAFETY: by the contract of this function.
    let (begun, done) = unsafe { (miot_request::begun(request), miot_done::done(done)) };
    // SAFETY: by the contract of this function.
    let ext = unsafe { miot_ext::ext(ext) };
    c_int::from(begun.is_some_and(|begun| crate::end_with(begun, done, &ext)))
}

/// Begins a request that is served elsewhere: any thread may end it with miot_complete, or none. It is not shown
/// as in flight.
#[unsafe(no_mangle)]
pub extern "C" fn miot_submit(layer: u8, op: u8) -> miot_request {
    crate::submit(Op { layer, number: op }).map_or(miot_request::NOTHING, |submitted| {
        let (begin, op, within) = submitted.into_parts();
        let Within { tid: thread, request: enclosing } = within;
        miot_request {
            begin,
            number: 1,
            enclosing,
            layer: op.layer,
            op: op.number,
            thread,
            ..miot_request::NOTHING
        }
    })
}

/// Ends a request of miot_submit, on whichever thread: takes the completion time and commits the event, flagged
/// MIOT_FLAG_ASYNC. Returns as miot_end does.
///
/// # Safety
/// All pointers are null or point to valid structures, those in the last to C strings or nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_complete(
    request: *const miot_request,
    done: *const miot_done,
    ext: *const miot_ext,
) -> c_int {
    // SAFETY: by the contract of this function.
    let (submitted, done) = unsafe { (miot_request::submitted(request), miot_done::done(done)) };
    // SAFETY: by the contract of this function.
    let ext = unsafe { miot_ext::ext(ext) };
    c_int::from(submitted.is_some_and(|submitted| crate::complete(submitted, done, &ext)))
}

/// Records a request whose times are known, in ticks of miot_ticks. Call it soon after the completion.
///
/// # Safety
/// `done` is null or points to a valid structure, `path` is null or a C string.
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
    let (done, path1) = unsafe { (miot_done::done(done), bytes(path)) };
    let ext = Ext { path1, ..Ext::default() };
    c_int::from(crate::record(Op { layer, number: op }, begin_ticks, end_ticks, done, &ext))
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

/// A new handle, for a request that opens a file: it names the handle if it is recorded with this handle, the path and no
/// error. 0 as long as nothing records.
#[unsafe(no_mangle)]
pub extern "C" fn miot_handle() -> u64 {
    crate::new_handle()
}

/// A new handle of a file that was open before anything recorded: names it, without an event. 0 if nothing records now.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_name(path: *const c_char) -> u64 {
    let handle = crate::new_handle();
    // SAFETY: by the contract of this function.
    let path = unsafe { bytes(path) };
    if handle != 0 && crate::file(handle, 0, path) { handle } else { 0 }
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

/// miot_debug with a va_list, and a character that says what kind of message it is ('D', 'E', ...).
///
/// # Safety
/// As of `vprintf`: `format` is a C string, and `list` has what it asks for; or one of them is null, and nothing is recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_vdebug(
    mask: u64,
    prefix: c_char,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { crate::debug::take(mask, prefix, format, list) }
}

/// To be called before the program installs a filter of system calls (seccomp), unless libmiot_posix.so is preloaded, which
/// sees it: sets up what recording needs. From then on MIOT makes no system call of its own in this process.
#[unsafe(no_mangle)]
pub extern "C" fn miot_confine() {
    crate::prepare_for_filter();
    crate::gate::close();
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

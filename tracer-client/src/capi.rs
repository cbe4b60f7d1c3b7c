//! The C interface, declared in `miot.h` (generated from this file by `tests/header.rs`).
//!
//! Every function may be called from any thread, from signal handlers, and between `fork` and
//! `exec`. None allocates, blocks (except under the policy `wait`) or changes `errno`. Each pointer
//! may be null: a null request is not recorded, a null completion is a success without file, offset
//! and length, and a null text is empty.

use crate::lane::RequestArgs;
use crate::pending::{ShownAt, ShownFile};
use crate::thread::{AsyncRequest, Completion, ParentRequest, StartedRequest};
use miot_proto::event::{Caller, Communicator, Ext, NONE};
use miot_proto::op::Op;
use std::ffi::{CStr, c_char, c_int, c_void};

/// "None" as offset or length: the request has none.
pub const MIOT_NONE: u64 = 0xffff_ffff_ffff_ffff;
const _: () = assert!(MIOT_NONE == NONE);

/// A request between miot_begin and miot_end, or between miot_submit and miot_complete. The fields
/// are private to MIOT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_request {
    /// Begin, raw ticks.
    pub begin: u64,
    /// Number of the request; 0: it is not recorded.
    pub number: u32,
    /// Number of the parent request.
    pub enclosing: u32,
    /// Layer.
    pub layer: u8,
    /// Operation.
    pub op: u8,
    /// For a request of miot_show: where it is shown.
    pub shown: u16,
    /// For a request of miot_submit: thread of the parent request, 0 if there is none.
    pub thread: u32,
}

/// Result of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_done {
    /// Handle of the file (miot_open), 0 if none.
    pub handle: u64,
    /// Byte offset, MIOT_NONE if none.
    pub offset: u64,
    /// Bytes requested, MIOT_NONE if none.
    pub length: u64,
    /// Bytes transferred, or another value of success; negative: -errno.
    pub result: i64,
    /// Flags: MIOT_FLAG_*.
    pub flags: u16,
}

/// Further attributes of a request. Initialize with MIOT_EXT_NONE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_ext {
    /// Path of the request, a C string or NULL. A path longer than 4096 bytes is truncated and
    /// flagged.
    pub path: *const c_char,
    /// The second path of a rename, or the name of an attribute: a C string or NULL.
    pub second: *const c_char,
    /// Handle of the second file, from which a copy reads; 0 if none.
    pub handle2: u64,
    /// Byte offset in the second file, MIOT_NONE if none.
    pub offset2: u64,
    /// Thread that called the file-system client, 0 if unknown.
    pub caller_tid: u32,
    /// User that called the file-system client, MIOT_NOBODY if unknown.
    pub caller_uid: u32,
    /// Rank in the communicator of the file.
    pub mpi_rank: u32,
    /// Size of that communicator, 0 if there is none.
    pub mpi_size: u32,
    /// Offset in elementary types of the file view, MIOT_NONE if none.
    pub etypes: u64,
    /// Size of the datatype, or of the file type if a view is set, bytes; MIOT_NONE if none.
    pub type_size: u64,
    /// Extent of that type, bytes; MIOT_NONE if none.
    pub type_extent: u64,
}

/// "Unknown" as caller_uid.
pub const MIOT_NOBODY: u32 = 0xffff_ffff;

impl miot_ext {
    /// Returns the attributes; the default ones if `at` is null.
    ///
    /// # Safety
    /// - `at` is null or points to a valid structure that outlives the result.
    /// - Its paths are null or C strings that outlive the result.
    unsafe fn from_ptr<'a>(at: *const miot_ext) -> Ext<'a> {
        // SAFETY: `as_ref` and `as_ext` require
        // - null or a pointer to a valid structure: required by this function;
        // - paths that are null or C strings: required by this function.
        unsafe { at.as_ref() }.map_or_else(Ext::default, |ext| unsafe { ext.as_ext() })
    }

    /// Converts the attributes.
    ///
    /// # Safety
    /// - Both paths are null or C strings that outlive the result.
    unsafe fn as_ext(&self) -> Ext<'_> {
        let unless_none = |word: u64| Some(word).filter(|word| *word != NONE);
        let caller = Caller { tid: self.caller_tid, uid: self.caller_uid };
        let communicator = Communicator { rank: self.mpi_rank, size: self.mpi_size };
        // SAFETY: `bytes` requires
        // - null or a C string: required by this function.
        let (path1, path2) = unsafe { (bytes(self.path), bytes(self.second)) };
        Ext {
            handle2: Some(self.handle2).filter(|handle| *handle != 0),
            offset2: unless_none(self.offset2),
            cpu_time: None,
            caller: Some(caller).filter(|caller| caller.uid != MIOT_NOBODY),
            communicator: Some(communicator).filter(|communicator| communicator.size != 0),
            etypes: unless_none(self.etypes),
            type_size: unless_none(self.type_size),
            type_extent: unless_none(self.type_extent),
            path1,
            path2,
        }
    }
}

impl miot_request {
    const UNRECORDED: miot_request =
        miot_request { begin: 0, number: 0, enclosing: 0, layer: 0, op: 0, shown: 0, thread: 0 };

    fn of(begun: Option<StartedRequest>) -> miot_request {
        begun.map_or(miot_request::UNRECORDED, |begun| {
            let (begin, op, number, enclosing) = begun.into_parts();
            miot_request {
                begin,
                number,
                enclosing,
                layer: op.layer,
                op: op.number,
                ..miot_request::UNRECORDED
            }
        })
    }

    /// Returns the asynchronous request; `None` if it is not recorded.
    ///
    /// # Safety
    /// - `at` is null or points to a valid structure.
    unsafe fn to_async(at: *const miot_request) -> Option<AsyncRequest> {
        // SAFETY: `as_ref` requires
        // - null or a pointer to a valid structure: required by this function.
        let request = unsafe { at.as_ref() }.filter(|request| request.number != 0)?;
        let op = Op { layer: request.layer, number: request.op };
        // A request of miot_begin has no thread: its parent is in the thread that began it.
        let enclosing = if request.thread == 0 { 0 } else { request.enclosing };
        Some(AsyncRequest::from_parts(
            request.begin,
            op,
            ParentRequest { tid: request.thread, request: enclosing },
            ShownAt { entry: request.shown, number: if request.shown == 0 { 0 } else { request.number } },
        ))
    }

    fn from_async(submitted: AsyncRequest) -> miot_request {
        let (begin, op, parent, shown) = submitted.into_parts();
        miot_request {
            begin,
            number: shown.number.max(1),
            enclosing: parent.request,
            layer: op.layer,
            op: op.number,
            shown: shown.entry,
            thread: parent.tid,
        }
    }

    /// Returns the request; `None` if it is not recorded.
    ///
    /// # Safety
    /// - `at` is null or points to a valid structure.
    unsafe fn to_started(at: *const miot_request) -> Option<StartedRequest> {
        // SAFETY: `as_ref` requires
        // - null or a pointer to a valid structure: required by this function.
        let request = unsafe { at.as_ref() }.filter(|request| request.number != 0)?;
        let op = Op { layer: request.layer, number: request.op };
        Some(StartedRequest::from_parts(request.begin, op, request.number, request.enclosing))
    }
}

impl miot_done {
    /// Returns the completion; a success without file, offset and length if `at` is null.
    ///
    /// # Safety
    /// - `at` is null or points to a valid structure.
    unsafe fn to_completion(at: *const miot_done) -> Completion {
        // SAFETY: `as_ref` requires
        // - null or a pointer to a valid structure: required by this function.
        unsafe { at.as_ref() }.map_or(Completion::of(0), |done| Completion {
            handle: done.handle,
            offset: done.offset,
            length: done.length,
            result: done.result,
            flags: done.flags,
        })
    }
}

/// Returns the bytes of a C string; none if it is null.
///
/// # Safety
/// - `text` is null or a C string that outlives the result.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: `from_ptr` requires
    // - a C string that outlives the result: required by this function, and checked for null.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// Begins a request of layer MIOT_LAYER_* and operation MIOT_CLIENT_* (or that of another layer).
/// Pass the returned structure to miot_end, even if nothing is recorded.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin(layer: u8, op: u8) -> miot_request {
    miot_request::of(crate::begin(Op { layer, number: op }))
}

/// Begins a request that makes requests of its own: until its end it is the parent of the requests
/// of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin_enclosing(layer: u8, op: u8) -> miot_request {
    miot_request::of(crate::begin_enclosing(Op { layer, number: op }))
}

/// miot_begin with the arguments of the request, which are shown if it hangs: the file (miot_open),
/// the byte offset and the bytes requested, MIOT_NONE if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin_on(layer: u8, op: u8, handle: u64, offset: u64, length: u64) -> miot_request {
    miot_request::of(crate::begin_on(Op { layer, number: op }, RequestArgs { handle, offset, length }))
}

/// miot_begin_enclosing with the arguments of the request, as for miot_begin_on.
#[unsafe(no_mangle)]
pub extern "C" fn miot_begin_enclosing_on(
    layer: u8,
    op: u8,
    handle: u64,
    offset: u64,
    length: u64,
) -> miot_request {
    let args = RequestArgs { handle, offset, length };
    miot_request::of(crate::begin_enclosing_on(Op { layer, number: op }, args))
}

/// Cancels a request that is not recorded after all. Every request of miot_begin needs this or an
/// end.
///
/// # Safety
/// - The pointer is null or points to a valid structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_cancel(request: *const miot_request) {
    // SAFETY: the conversion of `request` requires
    // - null or a pointer to a valid request: required by this function.
    if let Some(begun) = unsafe { miot_request::to_started(request) } {
        crate::cancel(begun);
    }
}

/// Ends a request: takes the completion time and commits the event. Returns 1 if it was recorded, 0
/// if not (nothing is recorded now, or the event was dropped and counted).
///
/// # Safety
/// - Both pointers are null or point to valid structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end(request: *const miot_request, done: *const miot_done) -> c_int {
    // SAFETY: the conversion of `request` and the conversion of `done` require
    // - null or a pointer to a valid request: required by this function;
    // - null or a pointer to a valid completion: required by this function.
    let (begun, done) = unsafe { (miot_request::to_started(request), miot_done::to_completion(done)) };
    c_int::from(begun.is_some_and(|begun| crate::end(begun, done)))
}

/// Ends a request that has one or two paths (the second path of a rename, or the name of an
/// attribute), each a C string or NULL. A path longer than 4096 bytes is truncated and flagged.
///
/// # Safety
/// - `request` and `done` are null or point to valid structures.
/// - `path` and `second` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end_paths(
    request: *const miot_request,
    done: *const miot_done,
    path: *const c_char,
    second: *const c_char,
) -> c_int {
    // SAFETY: the conversion of `request` and the conversion of `done` require
    // - null or a pointer to a valid request: required by this function;
    // - null or a pointer to a valid completion: required by this function.
    let (begun, done) = unsafe { (miot_request::to_started(request), miot_done::to_completion(done)) };
    // SAFETY: `bytes` requires
    // - null or a C string: required by this function.
    let (path1, path2) = unsafe { (bytes(path), bytes(second)) };
    let ext = Ext { path1, path2, ..Ext::default() };
    c_int::from(begun.is_some_and(|begun| crate::end_with(begun, done, &ext)))
}

/// Ends a request that has further attributes.
///
/// # Safety
/// - All pointers are null or point to valid structures.
/// - The paths in `ext` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_end_ext(
    request: *const miot_request,
    done: *const miot_done,
    ext: *const miot_ext,
) -> c_int {
    // SAFETY: the conversion of `request` and the conversion of `done` require
    // - null or a pointer to a valid request: required by this function;
    // - null or a pointer to a valid completion: required by this function.
    let (begun, done) = unsafe { (miot_request::to_started(request), miot_done::to_completion(done)) };
    // SAFETY: `from_ptr` requires
    // - null or a pointer to a valid structure, whose paths are null or C strings: required by this
    //   function.
    let ext = unsafe { miot_ext::from_ptr(ext) };
    c_int::from(begun.is_some_and(|begun| crate::end_with(begun, done, &ext)))
}

/// Begins a request that is served elsewhere: any thread may end it with miot_complete, or none. It
/// is not shown as in flight, unless miot_show is called.
#[unsafe(no_mangle)]
pub extern "C" fn miot_submit(layer: u8, op: u8) -> miot_request {
    crate::submit(Op { layer, number: op }).map_or(miot_request::UNRECORDED, miot_request::from_async)
}

/// Shows a request of miot_submit as in flight until miot_complete, which must follow, with the
/// file, the byte offset and the bytes requested of `done`, and the path and caller_tid of `ext`.
/// The path is also that of a file that has a handle. A process can show 512 such requests at the
/// same time; further ones are recorded, but not shown.
///
/// # Safety
/// - All pointers are null or point to valid structures.
/// - The path in `ext` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_show(request: *mut miot_request, done: *const miot_done, ext: *const miot_ext) {
    // SAFETY: the conversions require
    // - null or a pointer to a valid request: required by this function;
    // - null or a pointer to a valid completion: required by this function;
    // - null or a pointer to valid attributes, whose paths are null or C strings: required by this
    //   function.
    let (submitted, done, ext) =
        unsafe { (miot_request::to_async(request), miot_done::to_completion(done), miot_ext::from_ptr(ext)) };
    let Some(mut submitted) = submitted else { return };
    let args = RequestArgs { handle: done.handle, offset: done.offset, length: done.length };
    submitted.show(args, ext.caller.map_or(0, |caller| caller.tid), ShownFile::Path(ext.path1));
    // SAFETY: the write requires
    // - a pointer to a valid request: it is not null, since `to_async` has returned a request.
    unsafe { *request = miot_request::from_async(submitted) };
}

/// Ends a request of miot_submit, on any thread: takes the completion time and commits the event,
/// flagged MIOT_FLAG_ASYNC. Returns the same as miot_end.
///
/// # Safety
/// - All pointers are null or point to valid structures.
/// - The paths in `ext` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_complete(
    request: *const miot_request,
    done: *const miot_done,
    ext: *const miot_ext,
) -> c_int {
    // SAFETY: the conversion of `request` and the conversion of `done` require
    // - null or a pointer to a valid request: required by this function;
    // - null or a pointer to a valid completion: required by this function.
    let (submitted, done) = unsafe { (miot_request::to_async(request), miot_done::to_completion(done)) };
    // SAFETY: `from_ptr` requires
    // - null or a pointer to a valid structure, whose paths are null or C strings: required by this
    //   function.
    let ext = unsafe { miot_ext::from_ptr(ext) };
    c_int::from(submitted.is_some_and(|submitted| crate::complete(submitted, done, &ext)))
}

/// Records a request whose times are known, in ticks of miot_ticks. Call it soon after the
/// completion. Returns the same as miot_end.
///
/// # Safety
/// - `done` is null or points to a valid structure.
/// - `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_record(
    layer: u8,
    op: u8,
    begin_ticks: u64,
    end_ticks: u64,
    done: *const miot_done,
    path: *const c_char,
) -> c_int {
    // SAFETY: the conversion of `done` and `bytes` require
    // - null or a pointer to a valid completion: required by this function;
    // - null or a C string: required by this function.
    let (done, path1) = unsafe { (miot_done::to_completion(done), bytes(path)) };
    let ext = Ext { path1, ..Ext::default() };
    c_int::from(crate::record(Op { layer, number: op }, begin_ticks, end_ticks, done, &ext))
}

/// Opens a file: records its path under a new handle and returns the handle. Returns 0 if nothing
/// is recorded now.
///
/// # Safety
/// - `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_open(path: *const c_char) -> u64 {
    // SAFETY: `bytes` requires
    // - null or a C string: required by this function.
    crate::open(unsafe { bytes(path) })
}

/// Returns a new handle, for a request that opens a file. The handle gets its path from a request
/// recorded with this handle, a path and no error. 0 while nothing is recorded.
#[unsafe(no_mangle)]
pub extern "C" fn miot_handle() -> u64 {
    crate::new_handle()
}

/// Returns a new handle for a file that was open before recording started, and records its path
/// without an event. 0 if nothing is recorded now.
///
/// # Safety
/// - `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_name(path: *const c_char) -> u64 {
    let handle = crate::new_handle();
    // SAFETY: `bytes` requires
    // - null or a C string: required by this function.
    let path = unsafe { bytes(path) };
    if handle != 0 && crate::name_file(handle, 0, path) { handle } else { 0 }
}

/// Closes a file of miot_open. Returns the same as miot_end.
#[unsafe(no_mangle)]
pub extern "C" fn miot_close(handle: u64) -> c_int {
    c_int::from(crate::close(handle))
}

/// Records an application note: any string, with the time. Returns 1 if it was recorded.
///
/// # Safety
/// - `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_note(text: *const c_char) -> c_int {
    // SAFETY: `bytes` requires
    // - null or a C string: required by this function.
    c_int::from(crate::note(unsafe { bytes(text) }))
}

/// miot_debug with a va_list, and a character for the kind of message ('D', 'E', ...).
///
/// # Safety
/// - `format` is null or a C string, and `list` is null or holds the arguments that `vprintf` would
///   read for it. If one of them is null, nothing is recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_vdebug(
    mask: u64,
    prefix: c_char,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: `record_message` requires
    // - a format and matching arguments, or null: required by this function.
    unsafe { crate::debug::record_message(mask, prefix, format, list) }
}

/// A region between miot_region_begin and miot_region_end. The fields are private to MIOT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct miot_region {
    /// The request.
    pub request: miot_request,
    /// Name.
    pub name: *const c_char,
    /// Attributes.
    pub attributes: *const c_char,
    /// Number.
    pub number: u64,
}

/// Begins a region: a named part of the run, such as an epoch or a checkpoint. `attributes` is a
/// text such as "kind=compute", several separated by commas, or NULL. `number` is a number below
/// 2^63 that follows it ("epoch=" and 3, "epoch=3,step=" and 17), or MIOT_NONE. The trace stores
/// each text once, so pass a value that is different each time as the number. Both texts must stay
/// valid until miot_region_end, which must follow. Regions may overlap, and requests within a
/// region do not become its children: analyses link them by thread and time.
///
/// # Safety
/// - `name` and `attributes` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_region_begin(
    name: *const c_char,
    attributes: *const c_char,
    number: u64,
) -> miot_region {
    // SAFETY: `bytes` requires
    // - null or a C string: required by this function.
    let label = unsafe { crate::Label { name: bytes(name), attributes: bytes(attributes), number } };
    let request = crate::Region::begin(label).into_request();
    let request = request.map_or(miot_request::UNRECORDED, miot_request::from_async);
    miot_region { request, name, attributes, number }
}

/// Other languages declare it too (`python/src/region.rs`).
const _: () = assert!(size_of::<miot_request>() == 24 && size_of::<miot_region>() == 48);

impl miot_region {
    /// Returns the region; one that is not recorded if `at` is null.
    ///
    /// # Safety
    /// - `at` is null or points to a structure of miot_region_begin, whose texts are valid for
    ///   `'a`.
    unsafe fn to_region<'a>(at: *const miot_region) -> crate::Region<'a> {
        // SAFETY: `as_ref`, the conversion of the request and `bytes` require
        // - null or a pointer to a valid structure, which contains a valid request: required by
        //   this function;
        // - texts that are null or C strings: required by this function.
        unsafe {
            let Some(region) = at.as_ref() else {
                return crate::Region::from_parts(
                    None,
                    crate::Label { name: &[], attributes: &[], number: NONE },
                );
            };
            let (name, attributes) = (bytes(region.name), bytes(region.attributes));
            let label = crate::Label { name, attributes, number: region.number };
            crate::Region::from_parts(miot_request::to_async(&raw const region.request), label)
        }
    }
}

/// Ends a region, in any thread. `result` is 0, or -errno of an error that ended it. Returns the
/// same as miot_end.
///
/// # Safety
/// - `region` is null or points to a structure of miot_region_begin, whose texts are still valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_region_end(region: *const miot_region, result: i64) -> c_int {
    // SAFETY: `to_region` requires
    // - null or a pointer to a structure with valid texts: required by this function.
    c_int::from(unsafe { miot_region::to_region(region) }.end(result))
}

/// Cancels a region, which is not recorded. Every region needs this or an end.
///
/// # Safety
/// - As for miot_region_end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miot_region_cancel(region: *const miot_region) {
    // SAFETY: `to_region` requires
    // - null or a pointer to a structure with valid texts: required by this function.
    unsafe { miot_region::to_region(region) }.cancel();
}

/// Returns 1 if nothing is recorded now in this process, and nothing was before: then the next
/// request or region need not be begun. Call it once for each of them, because it counts them: now
/// and then a request must look for a log-client. It costs a nanosecond.
#[unsafe(no_mangle)]
pub extern "C" fn miot_dormant() -> c_int {
    c_int::from(crate::dormant())
}

/// Sets up recording before the program installs a filter of system calls (seccomp). Call it then,
/// unless libmiot_posix.so is preloaded, which detects the installation. From then on MIOT makes no
/// system calls of its own in this process.
#[unsafe(no_mangle)]
pub extern "C" fn miot_confine() {
    crate::prepare_for_filter();
    crate::gate::deny_all();
}

/// Returns the time in raw ticks.
#[unsafe(no_mangle)]
pub extern "C" fn miot_ticks() -> u64 {
    crate::ticks()
}

/// Returns 1 if a request of this layer would be recorded now, 0 if not. Sets nothing up.
#[unsafe(no_mangle)]
pub extern "C" fn miot_active(layer: u8) -> c_int {
    c_int::from(crate::active(Op { layer, number: 1 }))
}

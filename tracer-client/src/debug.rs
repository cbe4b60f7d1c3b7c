//! Messages of a printf-style debug call. The arguments are copied unformatted (layout:
//! `miot_proto::debug`) and formatted when the trace is read.
//!
//! `debug.c` reads the arguments of `...`. A table, indexed by the address of the format, holds the
//! parsed format. The format's text is stored and compared too, because an address may later hold
//! another format. An entry of the table is taken once and never freed; nothing here locks or
//! allocates. If the table is full or the format is long, the format is parsed at each call and
//! recorded with the message.

use crate::process;
use crate::thread::{self, Completion, StartedRequest};
use miot_proto::debug::{MAX_ARGUMENTS, argument_kinds};
use miot_proto::event::{Ext, NONE, flag};
use miot_proto::op;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Entries of the table: more formats than a large file-system client has. Only used parts of the
/// table occupy memory.
const FORMATS: usize = 4096;
/// Longest format in the table, bytes: with it an entry has 512 bytes.
const MAX_FORMAT: usize = 383;
/// Entries searched for a format.
const MAX_PROBES: usize = 16;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const READY: u8 = 2;

/// A table entry: a format and the result of parsing it.
#[repr(C, align(512))]
struct Format {
    address: AtomicUsize,
    /// Handle that names the format, in the process image of this epoch.
    handle: AtomicU64,
    epoch: AtomicU64,
    state: AtomicU8,
    parsed: UnsafeCell<ParsedFormat>,
}

#[repr(C)]
struct ParsedFormat {
    count: u32,
    kinds: [u32; MAX_ARGUMENTS],
    /// Text of the format, ended by a zero.
    text: [u8; MAX_FORMAT + 1],
}

// SAFETY: `Sync` requires
// - no data race on `parsed`: it is written only by the thread that has changed the state from free
//   to taken, before it sets it to ready, and read only after that; the other fields are atomics.
unsafe impl Sync for Format {}

const _: () = assert!(size_of::<Format>() == 512);

static TABLE: [Format; FORMATS] = [const {
    Format {
        address: AtomicUsize::new(0),
        handle: AtomicU64::new(0),
        epoch: AtomicU64::new(0),
        state: AtomicU8::new(FREE),
        parsed: UnsafeCell::new(ParsedFormat {
            count: 0,
            kinds: [0; MAX_ARGUMENTS],
            text: [0; MAX_FORMAT + 1],
        }),
    }
}; FORMATS];

/// A message between its start and its end; declared the same way in `debug.c`.
#[repr(C)]
#[derive(Debug)]
struct Message {
    begin: u64,
    number: u32,
    enclosing: u32,
    /// Handle that names the format; 0 if the format is recorded with the message.
    handle: u64,
    format: *const c_char,
    kinds: *const u32,
    count: u32,
    own_kinds: [u32; MAX_ARGUMENTS],
}

impl Format {
    /// Returns the table entry of a format, after adding it if necessary. `None` if there is no
    /// free entry for it or it is too long.
    ///
    /// # Safety
    /// - `format` is a C string.
    unsafe fn find(format: *const c_char) -> Option<&'static Format> {
        let address = format.addr();
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - FORMATS.ilog2());
        for probe in 0..MAX_PROBES {
            let entry = &TABLE[(start + probe) % FORMATS];
            let state = entry.state.load(Acquire);
            if state == READY && entry.address.load(Relaxed) == address {
                // SAFETY: reading `parsed` and `strcmp` require
                // - no concurrent write: the entry is ready;
                // - two C strings: the stored text ends with a zero, and `format` is one by this
                //   function's requirement.
                let same =
                    unsafe { libc::strcmp((&raw const (*entry.parsed.get()).text).cast(), format) } == 0;
                if same {
                    return Some(entry);
                }
            } else if state == FREE {
                // SAFETY: `from_ptr` requires
                // - a C string: required by this function.
                let text = unsafe { CStr::from_ptr(format) }.to_bytes();
                return entry.insert(address, text);
            }
        }
        None
    }

    #[cold]
    fn insert(&'static self, address: usize, text: &[u8]) -> Option<&'static Format> {
        let fits = text.len() <= MAX_FORMAT;
        if !fits || self.state.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_err() {
            return None;
        }
        // SAFETY: the exclusive reference requires
        // - no other access: this thread has taken the entry, and no other code reads it before it
        //   is ready.
        let known = unsafe { &mut *self.parsed.get() };
        known.count = argument_kinds(text, &mut known.kinds).unwrap_or(0) as u32;
        known.text[..text.len()].copy_from_slice(text);
        self.address.store(address, Relaxed);
        self.state.store(READY, Release);
        Some(self)
    }

    /// Returns the handle that names the format, 0 if it cannot be recorded now.
    #[inline]
    fn handle(&self) -> u64 {
        let epoch = process::epoch_word();
        if self.epoch.load(Acquire) == epoch { self.handle.load(Relaxed) } else { self.record_name(epoch) }
    }

    /// Records the text of the format under a new handle. Threads that do this at the same time
    /// record it twice.
    #[cold]
    fn record_name(&self, epoch: u64) -> u64 {
        // SAFETY: the reference requires
        // - no concurrent write: an entry that was found is ready.
        let text = unsafe { &*self.parsed.get() }.text();
        let handle = process::new_handle();
        if handle == 0 || !thread::name_file(handle, 0, text) {
            return 0;
        }
        self.handle.store(handle, Relaxed);
        self.epoch.store(epoch, Release);
        handle
    }
}

impl ParsedFormat {
    fn text(&self) -> &[u8] {
        CStr::from_bytes_until_nul(&self.text).map_or(&[], CStr::to_bytes)
    }
}

/// Begins a message: fills in the kinds of its arguments. Returns 0 if the message is not recorded.
///
/// # Safety
/// - `message` points to memory for a [`Message`], which may be uninitialized. Only the fields that
///   the message needs are written.
/// - `format` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn miot_debug_begin(message: *mut Message, format: *const c_char) -> c_int {
    if format.is_null() {
        return 0;
    }
    let Some(begun) = thread::begin(op::app::DEBUG) else { return 0 };
    // SAFETY: `Format::find` requires
    // - a C string: required by this function, and checked for null.
    let found = unsafe { Format::find(format) };
    let (handle, kinds, count) = if let Some(known) = found {
        let handle = known.handle();
        // SAFETY: the reference requires
        // - no concurrent write: an entry that was found is ready.
        let known = unsafe { &*known.parsed.get() };
        (handle, known.kinds.as_ptr(), known.count)
    } else {
        // SAFETY: `from_ptr` and the exclusive reference require
        // - a C string: required by this function, and checked for null;
        // - initialized memory that no other code uses: zeroed here, and the caller's message is
        //   its own.
        let (text, own_kinds) = unsafe {
            (&raw mut (*message).own_kinds).write([0; MAX_ARGUMENTS]);
            (CStr::from_ptr(format).to_bytes(), &mut (*message).own_kinds)
        };
        let count = argument_kinds(text, own_kinds).unwrap_or(0) as u32;
        (0, own_kinds.as_ptr(), count)
    };
    let (begin, _, number, enclosing) = begun.into_parts();
    // SAFETY: the writes require
    // - a valid pointer to memory for a `Message`: required by this function.
    unsafe {
        (&raw mut (*message).begin).write(begin);
        (&raw mut (*message).number).write(number);
        (&raw mut (*message).enclosing).write(enclosing);
        (&raw mut (*message).handle).write(handle);
        (&raw mut (*message).format).write(format);
        (&raw mut (*message).kinds).write(kinds);
        (&raw mut (*message).count).write(count);
    }
    1
}

/// Ends a message. Returns 0 if it was dropped and counted.
///
/// # Safety
/// - `message` was filled by [`miot_debug_begin`].
/// - `arguments` points to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn miot_debug_end(
    message: *const Message,
    mask: u64,
    prefix: c_char,
    arguments: *const u8,
    length: usize,
    cut: c_int,
) -> c_int {
    // SAFETY: the reads and the slice require
    // - a valid pointer to a `Message` whose fields are initialized: `miot_debug_begin` writes all
    //   but `own_kinds`;
    // - `length` readable bytes at `arguments`: required by this function.
    let (begin, number, enclosing, handle, format, path2) = unsafe {
        let path2 = std::slice::from_raw_parts(arguments, length);
        (
            (*message).begin,
            (*message).number,
            (*message).enclosing,
            (*message).handle,
            (*message).format,
            path2,
        )
    };
    let begun = StartedRequest::from_parts(begin, op::app::DEBUG, number, enclosing);
    let cut = if cut == 0 { 0 } else { flag::PATH_CUT };
    let flags = ((prefix as u16) & 0x7f) << flag::OP_SHIFT | cut;
    let done = Completion { handle, offset: NONE, length: mask, result: 0, flags };
    if handle != 0 {
        return c_int::from(thread::end_with_second_path(begun, done, path2));
    }
    // SAFETY: `from_ptr` requires
    // - a C string: `miot_debug_begin` has stored its own argument here.
    let path1 = unsafe { CStr::from_ptr(format) }.to_bytes();
    c_int::from(thread::end_with(begun, done, &Ext { path1, path2, ..Ext::default() }))
}

unsafe extern "C" {
    /// Records a message with these arguments; in `debug.c`.
    fn miot_debug_take(mask: u64, prefix: c_char, format: *const c_char, list: VaList) -> c_int;
    /// Body of `miot_debug`; in `debug.c`.
    fn miot_debug_variadic();
}

/// A `va_list` as passed on x86-64 and aarch64: a pointer.
pub(crate) type VaList = *mut std::ffi::c_void;

/// Records a message. Returns 0 if it was not recorded.
///
/// # Safety
/// - `format` is null or a C string, and `list` is null or holds the arguments that `vprintf` would
///   read for it. If one of them is null, nothing is recorded.
pub(crate) unsafe fn record_message(mask: u64, prefix: c_char, format: *const c_char, list: VaList) -> c_int {
    if list.is_null() {
        return 0;
    }
    // SAFETY: `miot_debug_take` requires
    // - a format and matching arguments: required by this function, and `list` is not null.
    unsafe { miot_debug_take(mask, prefix, format, list) }
}

/// `miot_debug`, exported. Only symbols defined in Rust are exported, so it jumps to C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn miot_debug() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("jmp {}", sym miot_debug_variadic);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("b {}", sym miot_debug_variadic);
}

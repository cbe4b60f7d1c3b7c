//! Messages of a printf-style debug call: the arguments are copied as they are, `miot_proto::debug` says how, and put into
//! the format when somebody reads them.
//!
//! `debug.c` takes the arguments of `...`. What it needs to know of a format is kept in a table, by its address; the
//! format's text is kept and compared too, because an address may come to mean another one. A format's place in the table is
//! taken once and never given back; nothing here locks or allocates. Where the table is full or the format long, it is
//! taken apart at each call and recorded with the message.

use crate::process;
use crate::thread::{self, Begun, Done};
use miot_proto::debug::{MAX_ARGUMENTS, argument_kinds};
use miot_proto::event::{Ext, NONE, flag};
use miot_proto::op;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// Formats kept: more than a large file-system client has. The table is memory that is touched where it is used.
const FORMATS: usize = 4096;
/// Longest format kept, bytes: with the rest it fills 512.
const MAX_FORMAT: usize = 383;
/// Places looked at for a format.
const LOOKS: usize = 16;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const READY: u8 = 2;

/// A format and what is known of it.
#[repr(C, align(512))]
struct Format {
    address: AtomicUsize,
    /// Handle of its name, in the process image of this epoch.
    handle: AtomicU64,
    epoch: AtomicU64,
    state: AtomicU8,
    known: UnsafeCell<Known>,
}

#[repr(C)]
struct Known {
    count: u32,
    kinds: [u32; MAX_ARGUMENTS],
    /// Ends with a zero.
    text: [u8; MAX_FORMAT + 1],
}

// SAFETY: `known` is written by the one thread that has changed the state from free to taken, before it is ready, and
// read only after.
unsafe impl Sync for Format {}

const _: () = assert!(size_of::<Format>() == 512);

static TABLE: [Format; FORMATS] = [const {
    Format {
        address: AtomicUsize::new(0),
        handle: AtomicU64::new(0),
        epoch: AtomicU64::new(0),
        state: AtomicU8::new(FREE),
        known: UnsafeCell::new(Known { count: 0, kinds: [0; MAX_ARGUMENTS], text: [0; MAX_FORMAT + 1] }),
    }
}; FORMATS];

/// A message between its begin and its end, as `debug.c` declares it.
#[repr(C)]
#[derive(Debug)]
struct Message {
    begin: u64,
    number: u32,
    enclosing: u32,
    /// Handle of the format's name; 0: it is recorded with the message.
    handle: u64,
    format: *const c_char,
    kinds: *const u32,
    count: u32,
    own: [u32; MAX_ARGUMENTS],
}

impl Format {
    /// # Safety
    /// `format` is a C string.
    unsafe fn find(format: *const c_char) -> Option<&'static Format> {
        let address = format.addr();
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - FORMATS.ilog2());
        for look in 0..LOOKS {
            let place = &TABLE[(start + look) % FORMATS];
            let state = place.state.load(Acquire);
            if state == READY && place.address.load(Relaxed) == address {
                // SAFETY: it is ready. Both are C strings.
                let same =
                    unsafe { libc::strcmp((&raw const (*place.known.get()).text).cast(), format) } == 0;
                if same {
                    return Some(place);
                }
            } else if state == FREE {
                // SAFETY: a C string.
                let text = unsafe { CStr::from_ptr(format) }.to_bytes();
                return place.learn(address, text);
            }
        }
        None
    }

    #[cold]
    fn learn(&'static self, address: usize, text: &[u8]) -> Option<&'static Format> {
        let fits = text.len() <= MAX_FORMAT;
        if !fits || self.state.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_err() {
            return None;
        }
        // SAFETY: this thread has taken the place.
        let known = unsafe { &mut *self.known.get() };
        known.count = argument_kinds(text, &mut known.kinds).unwrap_or(0) as u32;
        known.text[..text.len()].copy_from_slice(text);
        self.address.store(address, Relaxed);
        self.state.store(READY, Release);
        Some(self)
    }

    /// The handle of its name, 0 if it cannot be recorded now.
    #[inline]
    fn handle(&self) -> u64 {
        let epoch = process::epoch_word();
        if self.epoch.load(Acquire) == epoch { self.handle.load(Relaxed) } else { self.name(epoch) }
    }

    /// Threads that get here at once name it twice.
    #[cold]
    fn name(&self, epoch: u64) -> u64 {
        // SAFETY: a format that was found is ready.
        let text = unsafe { &*self.known.get() }.text();
        let handle = process::new_handle();
        if handle == 0 || !thread::file(handle, 0, text) {
            return 0;
        }
        self.handle.store(handle, Relaxed);
        self.epoch.store(epoch, Release);
        handle
    }
}

impl Known {
    fn text(&self) -> &[u8] {
        CStr::from_bytes_until_nul(&self.text).map_or(&[], CStr::to_bytes)
    }
}

/// Begins a message: says what its arguments are. 0: it is not to be recorded.
///
/// # Safety
/// `message` points to a [`Message`] of zeros, `format` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn miot_debug_begin(message: *mut Message, format: *const c_char) -> c_int {
    if format.is_null() {
        return 0;
    }
    let Some(begun) = thread::begin(op::app::DEBUG) else { return 0 };
    // SAFETY: by the contract of this function.
    let (message, found) = unsafe { (&mut *message, Format::find(format)) };
    message.format = format;
    if let Some(known) = found {
        message.handle = known.handle();
        // SAFETY: it is ready.
        let known = unsafe { &*known.known.get() };
        (message.kinds, message.count) = (known.kinds.as_ptr(), known.count);
    } else {
        // SAFETY: a C string.
        let text = unsafe { CStr::from_ptr(format) }.to_bytes();
        message.count = argument_kinds(text, &mut message.own).unwrap_or(0) as u32;
        message.kinds = message.own.as_ptr();
    }
    let (begin, _, number, enclosing) = begun.into_parts();
    (message.begin, message.number, message.enclosing) = (begin, number, enclosing);
    1
}

/// Ends it. 0: dropped, and counted.
///
/// # Safety
/// `message` comes from [`miot_debug_begin`], `arguments` points to so many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn miot_debug_end(
    message: *const Message,
    mask: u64,
    prefix: c_char,
    arguments: *const u8,
    length: usize,
    cut: c_int,
) -> c_int {
    // SAFETY: by the contract of this function.
    let (message, path2) = unsafe { (&*message, std::slice::from_raw_parts(arguments, length)) };
    let begun = Begun::from_parts(message.begin, op::app::DEBUG, message.number, message.enclosing);
    let path1 = if message.handle == 0 {
        // SAFETY: the format that the message was begun with.
        unsafe { CStr::from_ptr(message.format) }.to_bytes()
    } else {
        &[]
    };
    let cut = if cut == 0 { 0 } else { flag::PATH_CUT };
    let flags = ((prefix as u16) & 0x7f) << flag::OP_SHIFT | cut;
    let done = Done { handle: message.handle, offset: NONE, length: mask, result: 0, flags };
    c_int::from(thread::end_with(begun, done, &Ext { path1, path2, ..Ext::default() }))
}

unsafe extern "C" {
    /// `debug.c`: records a message with these arguments.
    fn miot_debug_take(mask: u64, prefix: c_char, format: *const c_char, list: VaList) -> c_int;
    /// `debug.c`: `miot_debug`.
    fn miot_debug_variadic();
}

/// A `va_list` as it is passed on x86-64 and aarch64: a pointer.
pub(crate) type VaList = *mut std::ffi::c_void;

/// Records a message.
///
/// # Safety
/// As of `vprintf`: `format` is a C string, and `list` has what it asks for; or one of them is null, and nothing is recorded.
pub(crate) unsafe fn take(mask: u64, prefix: c_char, format: *const c_char, list: VaList) -> c_int {
    if list.is_null() {
        return 0;
    }
    // SAFETY: by the contract of this function.
    unsafe { miot_debug_take(mask, prefix, format, list) }
}

/// `miot_debug`, exported: only Rust's own symbols are, so it jumps to C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn miot_debug() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("jmp {}", sym miot_debug_variadic);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("b {}", sym miot_debug_variadic);
}

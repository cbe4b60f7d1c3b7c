//! Whose tracer records.
//!
//! Each library that has the tracer inside has threads' states and a segment of its own, and requests of two such copies
//! cannot enclose one another. So the copy is used whose C interface the program has in its scope, which is that of
//! `libmiot_posix.so` where it is preloaded, or of `libmiot.so`; only where there is none the one in this library, which
//! shows its interface to nobody.

use miot_tracer::capi::{
    miot_begin_enclosing_on, miot_cancel, miot_complete, miot_done, miot_end_ext, miot_ext, miot_handle,
    miot_name, miot_request,
};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// The functions of the tracer in use, see `miot.h`.
pub(crate) struct Tracer {
    pub(crate) begin: extern "C" fn(u8, u8, u64, u64, u64) -> miot_request,
    pub(crate) cancel: unsafe extern "C" fn(*const miot_request),
    pub(crate) end: unsafe extern "C" fn(*const miot_request, *const miot_done, *const miot_ext) -> c_int,
    pub(crate) complete:
        unsafe extern "C" fn(*const miot_request, *const miot_done, *const miot_ext) -> c_int,
    pub(crate) handle: extern "C" fn() -> u64,
    pub(crate) name: unsafe extern "C" fn(*const c_char) -> u64,
}

/// Of this library.
const OWN: Tracer = Tracer {
    begin: miot_begin_enclosing_on,
    cancel: miot_cancel,
    end: miot_end_ext,
    complete: miot_complete,
    handle: miot_handle,
    name: miot_name,
};

/// The tracer in use: chosen once.
pub(crate) fn tracer() -> &'static Tracer {
    static TRACER: OnceLock<Tracer> = OnceLock::new();
    TRACER.get_or_init(|| shared().unwrap_or(OWN))
}

/// That of another library; `None` also if it is older than what is needed.
fn shared() -> Option<Tracer> {
    let find = |name: &CStr| {
        // SAFETY: a C string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    };
    // SAFETY: functions of these names have these prototypes in every version of the C interface that has them.
    unsafe {
        Some(Tracer {
            begin: function(find(c"miot_begin_enclosing_on")?),
            cancel: function(find(c"miot_cancel")?),
            end: function(find(c"miot_end_ext")?),
            complete: function(find(c"miot_complete")?),
            handle: function(find(c"miot_handle")?),
            name: function(find(c"miot_name")?),
        })
    }
}

/// # Safety
/// `at` is a function of the type `F`, which is that of a function pointer.
unsafe fn function<F: Copy>(at: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: by the contract of this function; of the same size.
    unsafe { std::mem::transmute_copy(&at) }
}

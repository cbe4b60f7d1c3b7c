//! Selection of the tracer that records.
//!
//! Each library that contains the tracer has its own thread states and its own segment, and
//! requests of two copies cannot be linked as parent and child. Therefore this library uses the
//! copy whose C interface is in the program's scope: that of `libmiot_posix.so` if it is preloaded,
//! or of `libmiot.so`. If there is none, it uses its own copy, whose interface it does not export.

use miot_tracer::capi::{
    miot_begin_enclosing_on, miot_cancel, miot_complete, miot_done, miot_end_ext, miot_ext, miot_handle,
    miot_name, miot_request,
};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Functions of the tracer in use, see `miot.h`.
pub(crate) struct Tracer {
    pub(crate) begin: extern "C" fn(u8, u8, u64, u64, u64) -> miot_request,
    pub(crate) cancel: unsafe extern "C" fn(*const miot_request),
    pub(crate) end: unsafe extern "C" fn(*const miot_request, *const miot_done, *const miot_ext) -> c_int,
    pub(crate) complete:
        unsafe extern "C" fn(*const miot_request, *const miot_done, *const miot_ext) -> c_int,
    pub(crate) handle: extern "C" fn() -> u64,
    pub(crate) name: unsafe extern "C" fn(*const c_char) -> u64,
}

/// The tracer of this library.
const OWN: Tracer = Tracer {
    begin: miot_begin_enclosing_on,
    cancel: miot_cancel,
    end: miot_end_ext,
    complete: miot_complete,
    handle: miot_handle,
    name: miot_name,
};

/// Returns the tracer in use. The first call selects it.
pub(crate) fn tracer() -> &'static Tracer {
    static TRACER: OnceLock<Tracer> = OnceLock::new();
    TRACER.get_or_init(|| from_program_scope().unwrap_or(OWN))
}

/// Returns the tracer of another library; `None` if there is none, or if it is too old to have all
/// functions.
fn from_program_scope() -> Option<Tracer> {
    let find = |name: &CStr| {
        // SAFETY:
        // - `name` is a NUL-terminated string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    };
    // SAFETY:
    // - A function of one of these names has this prototype in every version of the C interface
    //   that contains it.
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

/// Converts a symbol address to a function pointer.
///
/// # Safety
/// - `F` is a function pointer type.
/// - `at` is the address of a function of that type.
unsafe fn function<F: Copy>(at: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY:
    // - Both types have the same size, as asserted above.
    // - `at` is a valid value of `F`, by the contract of this function.
    unsafe { std::mem::transmute_copy(&at) }
}

//! Functions behind the hooks, and the macro that declares a hook.

#![expect(clippy::disallowed_types, reason = "address of the real function, resolved once")]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Return value of a hook whose real function does not exist: an error in every MPI.
const MISSING: c_int = 16;

extern "C-unwind" fn missing() -> c_int {
    MISSING
}

/// Cached address of the function behind a hook; null until the first call.
pub(crate) struct Real(AtomicPtr<c_void>);

impl Real {
    pub(crate) const fn new() -> Real {
        Real(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the function of this name. `name` ends in NUL.
    #[inline(always)]
    pub(crate) fn get(&self, name: &'static str) -> *mut c_void {
        let at = self.0.load(Relaxed);
        if at.is_null() { self.resolve(name) } else { at }
    }

    #[cold]
    fn resolve(&self, name: &'static str) -> *mut c_void {
        let found = CStr::from_bytes_with_nul(name.as_bytes()).map_or(std::ptr::null_mut(), next_symbol);
        let at = if found.is_null() { missing as *const () as *mut c_void } else { found };
        self.0.store(at, Relaxed);
        at
    }
}

/// A function that looks up a symbol behind the library which contains the function.
type Next = unsafe extern "C" fn(*const c_char) -> *mut c_void;

/// The [`Next`] of the library that has loaded this one; null if the program has.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Called by the posix hook when it has loaded this library: the functions behind the hooks are
/// those behind the posix hook, which exports all hooks of this library too.
///
/// # Safety
/// - `next` accepts any C string and returns the address of a function of this name, or null.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn miot_mpi_use(next: Next) {
    NEXT.store(next as *mut c_void, Relaxed);
}

/// Returns the next symbol of this name after the one of this library; null if there is none.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    let next = NEXT.load(Relaxed);
    let at = if next.is_null() {
        // SAFETY:
        // - `name` is a NUL-terminated string.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
    } else {
        // SAFETY:
        // - The only other value is a function of this type, see `miot_mpi_use`.
        // - `name` is a NUL-terminated string.
        unsafe { std::mem::transmute::<*mut c_void, Next>(next)(name.as_ptr()) }
    };
    if at.is_null() { find_in_loaded_objects(name) } else { at }
}

/// Returns the address of a global variable as the whole process uses it: the program may contain a
/// copy of the variable, which then replaces that of its library. Null if there is none.
pub(crate) fn global_variable(name: &CStr) -> *mut c_void {
    // SAFETY:
    // - `name` is a NUL-terminated string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if at.is_null() { find_in_loaded_objects(name) } else { at }
}

/// Returns the symbol in a loaded object outside the program's scope: MPI may be loaded by a module
/// (Python's mpi4py). Null if there is none.
#[cold]
fn find_in_loaded_objects(name: &CStr) -> *mut c_void {
    unsafe extern "C" fn add_path(info: *mut libc::dl_phdr_info, _: usize, paths: *mut c_void) -> c_int {
        // SAFETY:
        // - `info` points to the loader's structure, whose `dlpi_name` is null or a C string.
        // - `paths` is the vector that the call of `dl_iterate_phdr` below passes.
        unsafe {
            let path: *const c_char = (*info).dlpi_name;
            if !path.is_null() && *path != 0 {
                (*paths.cast::<Vec<CString>>()).push(CStr::from_ptr(path).to_owned());
            }
        }
        0
    }
    // This library, and the posix hook, whose functions lead here.
    let hooks = [find_in_loaded_objects as *const () as *const c_void, posix_hook()].map(object_base);
    let mut paths: Vec<CString> = Vec::new();
    // The paths are collected first, because the loader is locked during the iteration.
    // SAFETY:
    // - `add_path` gets a pointer to a vector of paths, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add_path), (&raw mut paths).cast()) };
    for path in paths {
        // SAFETY:
        // - `path` and `name` are NUL-terminated strings.
        // - `RTLD_NOLOAD` loads nothing, so no initializers run.
        // - `handle` is open until `dlclose`.
        // - `dlclose` does not unload the object, because its owner holds it open.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                continue;
            }
            let at = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
            if !at.is_null() && !hooks.contains(&object_base(at)) {
                return at;
            }
        }
    }
    // Clears the error, so that the application does not get it.
    // SAFETY:
    // - `dlerror` has no requirements.
    unsafe { libc::dlerror() };
    std::ptr::null_mut()
}

/// Returns an address in the posix hook, if it is in the program's scope: its C interface.
fn posix_hook() -> *const c_void {
    let next = NEXT.load(Relaxed);
    if !next.is_null() {
        return next;
    }
    // SAFETY:
    // - The name is a NUL-terminated string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"miot_posix_mpi".as_ptr()) }
}

/// Returns the load address of the object that contains an address; null if there is none.
fn object_base(address: *const c_void) -> *mut c_void {
    // SAFETY:
    // - All-zero bytes are a valid `Dl_info`: its fields are pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY:
    // - `dladdr` accepts any address.
    // - `info` is writable.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 { std::ptr::null_mut() } else { info.dli_fbase }
}

thread_local! {
    /// True while this thread is in a recorded call. Calls of hooked functions are then MPI's own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in a hook already. False also if its thread-local storage has
/// been destroyed.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Runs the body of a hook, with the thread marked as being in one.
#[inline]
pub(crate) fn run_inside(run: impl FnOnce() -> c_int) -> c_int {
    let _ = INSIDE.try_with(|inside| inside.set(true));
    let returned = run();
    let _ = INSIDE.try_with(|inside| inside.set(false));
    returned
}

/// Declares a hook under the name of a function and under its profiling name: `hook! { "File_sync",
/// if files::any_open() => |sync| (fh: Handle) body }`. In `body` the parameters have their names,
/// and `sync` is the function behind the hook, which must be called exactly once. If the condition
/// is false, and for calls that MPI makes within a recorded call, the body is skipped.
///
/// The profiling name is hooked as well because all three of MPI's Fortran bindings call it.
macro_rules! hook {
    ($name:expr, if $wanted:expr => |$real:ident| ($($arg:ident: $type:ty),* $(,)?) $body:expr) => {
        const _: () = {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> std::ffi::c_int;
            #[inline(never)]
            unsafe fn recorded($real: Function, $($arg: $type),*) -> std::ffi::c_int {
                $crate::real::run_inside(|| $body)
            }
            $crate::real::hook_name! { concat!("MPI_", $name), if $wanted => ($($arg: $type),*) }
            $crate::real::hook_name! { concat!("PMPI_", $name), if $wanted => ($($arg: $type),*) }
        };
    };
}

macro_rules! hook_name {
    ($name:expr, if $wanted:expr => ($($arg:ident: $type:ty),*)) => {
        const _: () = {
            #[cfg_attr(not(test), unsafe(export_name = $name))]
            unsafe extern "C-unwind" fn entry($($arg: $type),*) -> std::ffi::c_int {
                static REAL: $crate::real::Real = $crate::real::Real::new();
                let real = REAL.get(concat!($name, "\0"));
                // SAFETY:
                // - A function of this name has this prototype, or it is `missing`, which reads
                //   no arguments and returns the same type.
                let real: Function = unsafe { std::mem::transmute(real) };
                if $crate::real::is_inside() || !$wanted {
                    // SAFETY:
                    // - The arguments are the caller's.
                    return unsafe { real($($arg),*) };
                }
                // SAFETY:
                // - The arguments are the caller's.
                unsafe { recorded(real, $($arg),*) }
            }
        };
    };
}

pub(crate) use {hook, hook_name};

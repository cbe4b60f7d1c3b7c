//! The functions behind the hooks, and the macro that declares a hook.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// What a hook returns where the function behind it is nowhere: an error of every MPI.
const MISSING: c_int = 16;

extern "C-unwind" fn missing() -> c_int {
    MISSING
}

/// The function behind a hook, null until it is first called.
pub(crate) struct Real(AtomicPtr<c_void>);

impl Real {
    pub(crate) const fn new() -> Real {
        Real(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The function of this name, which ends in NUL.
    #[inline(always)]
    pub(crate) fn get(&self, name: &'static str) -> *mut c_void {
        let at = self.0.load(Relaxed);
        if at.is_null() { self.resolve(name) } else { at }
    }

    #[cold]
    fn resolve(&self, name: &'static str) -> *mut c_void {
        let found = CStr::from_bytes_with_nul(name.as_bytes()).map_or(std::ptr::null_mut(), next);
        let at = if found.is_null() { missing as *const () as *mut c_void } else { found };
        self.0.store(at, Relaxed);
        at
    }
}

/// The next symbol of this name after this library's own; null if there is none.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if at.is_null() { elsewhere(name) } else { at }
}

/// A variable of this name as everybody in the process sees it: a program that uses it may have its own copy, which
/// its library uses as well. Null if there is none.
pub(crate) fn variable(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if at.is_null() { elsewhere(name) } else { at }
}

/// The symbol in an object that is not in the scope of the program: MPI may come with a module (Python's mpi4py).
#[cold]
fn elsewhere(name: &CStr) -> *mut c_void {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader's structure, and the list that `elsewhere` passes.
        unsafe {
            let path: *const c_char = (*info).dlpi_name;
            if !path.is_null() && *path != 0 {
                (*names.cast::<Vec<CString>>()).push(CStr::from_ptr(path).to_owned());
            }
        }
        0
    }
    let own = object(elsewhere as *const () as *const c_void);
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `note` gets what it expects. Names are gathered first, as the loader is locked meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut paths).cast()) };
    for path in paths {
        // SAFETY: C strings; nothing is loaded, and what has been looked into stays as others hold it.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                continue;
            }
            let at = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
            if !at.is_null() && object(at) != own {
                return at;
            }
        }
    }
    // SAFETY: forgets the error, which the application must not find.
    unsafe { libc::dlerror() };
    std::ptr::null_mut()
}

/// Where the object lies that this address belongs to.
fn object(address: *const c_void) -> *mut c_void {
    // SAFETY: all zero is a value of this structure, which `dladdr` fills.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 { std::ptr::null_mut() } else { info.dli_fbase }
}

thread_local! {
    /// True while this thread is in a call that is being recorded: what MPI calls by our names is its own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread is in a hook already. False too where thread-local storage is gone.
#[inline]
pub(crate) fn inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Runs the body of a hook.
#[inline]
pub(crate) fn entered(run: impl FnOnce() -> c_int) -> c_int {
    let _ = INSIDE.try_with(|inside| inside.set(true));
    let returned = run();
    let _ = INSIDE.try_with(|inside| inside.set(false));
    returned
}

/// Declares a hook under the name of a function and under its profiling name:
/// `hook!("File_sync" if files::any() => |sync| (fh: Handle) body)`. In `body` the parameters have their names, and `sync`
/// is the function behind the hook, which must be called exactly once. Where the condition does not hold, and for calls
/// that MPI makes inside a recorded one, the body is passed by.
///
/// The profiling name is hooked as well because MPI's Fortran bindings call it, all three of them.
macro_rules! hook {
    ($name:expr, if $wanted:expr => |$real:ident| ($($arg:ident: $type:ty),* $(,)?) $body:expr) => {
        const _: () = {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> std::ffi::c_int;
            #[inline(never)]
            unsafe fn recorded($real: Function, $($arg: $type),*) -> std::ffi::c_int {
                $crate::real::entered(|| $body)
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
                // SAFETY: a function of this name has this prototype, or it is `missing`, which takes anything.
                let real: Function = unsafe { std::mem::transmute(real) };
                if $crate::real::inside() || !$wanted {
                    // SAFETY: the arguments are the caller's, passed on as they came.
                    return unsafe { real($($arg),*) };
                }
                // SAFETY: as above.
                unsafe { recorded(real, $($arg),*) }
            }
        };
    };
}

pub(crate) use {hook, hook_name};

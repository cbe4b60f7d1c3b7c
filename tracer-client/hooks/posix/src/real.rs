//! Functions behind the hooks, and the macro that declares a hook.
//!
//! A hook is exported under the name of a C function and looks up the next function of that name
//! with `dlsym(RTLD_NEXT)`. All functions are `extern "C-unwind"`: the forced unwinding of
//! `pthread_cancel` and C++ exceptions thrown by callbacks pass through a hook's frame, which
//! therefore owns nothing that has a destructor.

#![expect(clippy::disallowed_types, reason = "address of the real function, resolved once")]

use crate::lookup;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Return type of a hooked function: its value after a failure, and the recorded result.
pub(crate) trait ReturnValue: Copy {
    /// Return value of a function that this libc does not have, with `errno` = `ENOSYS`.
    const FAILED: Self;
    /// Converts the value to a result: zero or more after a success, −errno after a failure. Must
    /// be called before `errno` can change.
    fn result(self) -> i64;
}

macro_rules! signed {
    ($($type:ty)*) => {$(
        impl ReturnValue for $type {
            const FAILED: Self = -1;
            #[inline(always)]
            fn result(self) -> i64 {
                if self == -1 { failure() } else { i64::from(self as i64) }
            }
        }
    )*};
}
signed!(c_int i64 isize);

impl ReturnValue for () {
    const FAILED: Self = ();
    #[inline(always)]
    fn result(self) -> i64 {
        0
    }
}

impl<T> ReturnValue for *mut T {
    const FAILED: Self = std::ptr::null_mut();
    #[inline(always)]
    fn result(self) -> i64 {
        if self.is_null() { failure() } else { 0 }
    }
}

/// Return value of `fread` and `fwrite`: zero alone is not a failure.
impl ReturnValue for usize {
    const FAILED: Self = 0;
    #[inline(always)]
    fn result(self) -> i64 {
        self as i64
    }
}

/// Return value of functions that return an errno and do not set `errno`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ErrorNumber(pub(crate) c_int);

impl ReturnValue for ErrorNumber {
    const FAILED: Self = ErrorNumber(libc::ENOSYS);
    #[inline(always)]
    fn result(self) -> i64 {
        -i64::from(self.0)
    }
}

/// Return value of functions that return a value or −errno and do not set `errno`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct NegatedErrno(pub(crate) c_int);

impl ReturnValue for NegatedErrno {
    const FAILED: Self = NegatedErrno(-libc::ENOSYS);
    #[inline(always)]
    fn result(self) -> i64 {
        i64::from(self.0)
    }
}

/// Return value of `mmap`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) usize);

impl ReturnValue for Address {
    const FAILED: Self = Address(usize::MAX);
    #[inline(always)]
    fn result(self) -> i64 {
        if self == Self::FAILED { failure() } else { self.0 as i64 }
    }
}

/// Returns −errno of the call that has just failed; `EIO` if it has not set `errno`.
#[cold]
fn failure() -> i64 {
    match errno() {
        0 => -i64::from(libc::EIO),
        number => -i64::from(number),
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY:
    // - The function returns the address of the calling thread's `errno`.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY:
    // - The function returns the address of the calling thread's `errno`.
    unsafe { *libc::__errno_location() = number };
}

/// Calls `run`, which may change `errno`, and restores `errno`.
pub(crate) fn keeping_errno<R>(run: impl FnOnce() -> R) -> R {
    let number = errno();
    let result = run();
    set_errno(number);
    result
}

extern "C-unwind" fn missing<R: ReturnValue>() -> R {
    set_errno(libc::ENOSYS);
    R::FAILED
}

/// Cached address of the function behind a hook; null until the first call. Name and fallback are
/// in the code, so that the loader has nothing to relocate. All instances are in one section, so
/// that a starting program touches few pages.
#[repr(transparent)]
pub(crate) struct RealFunction(AtomicPtr<c_void>);

impl RealFunction {
    pub(crate) const fn new() -> RealFunction {
        RealFunction(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the address; null before the first call.
    #[inline(always)]
    pub(crate) fn cached(&self) -> *mut c_void {
        self.0.load(Relaxed)
    }

    /// Returns the function of this name. `name` ends in NUL; the function returns `R`.
    #[inline(always)]
    pub(crate) fn get<R: ReturnValue>(&self, name: &'static str) -> *mut c_void {
        let at = self.cached();
        if at.is_null() {
            self.resolve(name.as_ptr().cast(), missing::<R> as extern "C-unwind" fn() -> R as *const ())
        } else {
            at
        }
    }

    /// Looks up the function. If this libc does not have it, `missing` is used instead.
    #[inline(never)]
    #[unsafe(link_section = ".text.startup")]
    fn resolve(&self, name: *const c_char, missing: *const ()) -> *mut c_void {
        let mut at = self.look_up(name);
        if at.is_null() {
            at = missing.cast_mut().cast();
            self.0.store(at, Relaxed);
        }
        at
    }

    /// Looks up the function. Returns null if this libc does not have it.
    #[inline(never)]
    #[unsafe(link_section = ".text.startup")]
    fn look_up(&self, name: *const c_char) -> *mut c_void {
        keeping_errno(|| {
            // SAFETY:
            // - `name` is a NUL-terminated string.
            let mut at = unsafe { loader_dlsym()(libc::RTLD_NEXT, name) };
            if at.is_null() {
                at = find_in_loaded_libraries(name);
            }
            if at.is_null() {
                // Clears the error, so that the application does not get it.
                // SAFETY:
                // - `dlerror` has no requirements.
                unsafe { libc::dlerror() };
            }
            self.0.store(at, Relaxed);
            at
        })
    }
}

pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the loader's `dlsym`. Tools that rewrite the call tables of libraries (GOTCHA, on which
/// DFTracer and Caliper are built) replace `dlsym` by a function of theirs, which takes its own
/// place for that of the caller: it would find this library's hook as the next function. The result
/// is kept, because a starting program looks up several functions.
#[inline(never)]
#[unsafe(link_section = ".text.startup")]
pub(crate) fn loader_dlsym() -> Dlsym {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut at = FOUND.load(Relaxed);
    #[cfg(target_env = "gnu")]
    for version in [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"] {
        if at.is_null() {
            // SAFETY:
            // - Both names are NUL-terminated strings.
            at = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr(), version.as_ptr()) };
            FOUND.store(at, Relaxed);
        }
    }
    if at.is_null() {
        return libc::dlsym;
    }
    // SAFETY: the conversion requires
    // - a function of this type: the C library's `dlsym`.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(at) }
}

/// Returns the function in a library that was loaded with `dlopen` or as a dependency of such a
/// library; null if there is none. `RTLD_NEXT` does not search these libraries, but their calls
/// reach the hooks.
#[cold]
fn find_in_loaded_libraries(name: *const c_char) -> *mut c_void {
    const LIBRARIES: [&CStr; 2] = [c"libaio.so.1", c"liburing.so.2"];
    for library in LIBRARIES {
        // SAFETY:
        // - The name is a NUL-terminated string.
        // - `RTLD_NOLOAD` loads nothing, so no initializers run.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !handle.is_null() {
            // The library stays open, because its function is used from now on.
            // SAFETY:
            // - `handle` is an open library.
            // - `name` is a NUL-terminated string.
            let at = unsafe { libc::dlsym(handle, name) };
            if !at.is_null() {
                return at;
            }
        }
    }
    std::ptr::null_mut()
}

/// Longest name of a hook that is declared `early`, bytes, including its NUL.
const MAX_EARLY_NAME: usize = 12;

/// Entry of the list of hooks that are declared `early`. The name is in the entry, because the
/// loader relocates each pointer in each starting program.
#[repr(C)]
pub(crate) struct EarlyHook {
    real: &'static RealFunction,
    /// See [`lookup::hash`].
    hash: u32,
    /// NUL-terminated.
    name: [u8; MAX_EARLY_NAME],
}

impl EarlyHook {
    /// `name` ends in NUL.
    pub(crate) const fn new(real: &'static RealFunction, name: &'static str) -> EarlyHook {
        let mut bytes = [0; MAX_EARLY_NAME];
        let (head, _) = bytes.split_at_mut(name.len());
        head.copy_from_slice(name.as_bytes());
        EarlyHook { real, hash: lookup::hash(&bytes), name: bytes }
    }
}

unsafe extern "C" {
    static __start_miot_early: EarlyHook;
    static __stop_miot_early: EarlyHook;
}

/// Looks up the functions of the hooks that are declared `early`: those that programs call in
/// signal handlers and in children of a threaded process, where `dlsym` is not safe. Each lookup
/// costs every starting program half a microsecond, so that only the names to which programs are
/// compiled are declared `early`.
pub(crate) fn resolve_early() {
    let (mut at, stop) = (&raw const __start_miot_early, &raw const __stop_miot_early);
    // SAFETY:
    // - No other thread runs during constructors.
    let objects = unsafe { lookup::Objects::behind() };
    while at < stop {
        // SAFETY:
        // - The linker places only `EarlyHook` values between the two symbols, and `at` is one of
        //   them.
        // - The name of an entry is NUL-terminated.
        unsafe {
            let name = (*at).name.as_ptr().cast();
            let found =
                objects.as_ref().map_or(std::ptr::null_mut(), |objects| objects.find(name, (*at).hash));
            if found.is_null() {
                (*at).real.look_up(name);
            } else {
                (*at).real.0.store(found, Relaxed);
            }
            at = at.add(1);
        }
    }
}

/// Declares hooks: one body for functions that differ only in their names.
///
/// `hook!(pread | pread64 early (fd: c_int, …) -> isize, |real| body)`: in `body` the parameters
/// have their names, and `real` is a closure that calls the function behind the hook with the same
/// arguments. It must be called exactly once on every path, unless the request is made in another
/// way. If nothing is or was recorded, the body is skipped.
///
/// `|real| body, else other`: `body` is an `Option`. If it is `None`, which must be before the
/// call, `other` is used instead, in a function of its own. So the usual case stays short.
macro_rules! hook {
    ($($name:ident $($early:ident)?)|+ ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, |$real:ident| $body:expr, else $other:expr) => {
        const _: () = {
            type Prototype = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            #[inline(never)]
            unsafe extern "C-unwind" fn recorded($($arg: $type,)* function: Prototype) -> $ret {
                // SAFETY:
                // - The arguments are those of the hook's caller.
                let $real = move || unsafe { function($($arg),*) };
                if let Some(returned) = $body {
                    return returned;
                }
                // SAFETY:
                // - The arguments are those of this function.
                unsafe { recorded_otherwise($($arg,)* function) }
            }
            #[inline(never)]
            unsafe extern "C-unwind" fn recorded_otherwise($($arg: $type,)* function: Prototype) -> $ret {
                // SAFETY:
                // - The arguments are those of the hook's caller.
                let $real = || unsafe { function($($arg),*) };
                $other
            }
            $crate::real::hook_each! { [$($name [$($early)?])+] ($($arg: $type),*) -> $ret }
        };
    };
    ($($name:ident $($early:ident)?)|+ ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, |$real:ident| $body:expr) => {
        const _: () = {
            type Prototype = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            // A separate function, so that a call that is not recorded saves no registers. All
            // names share it.
            #[inline(never)]
            unsafe extern "C-unwind" fn recorded($($arg: $type,)* function: Prototype) -> $ret {
                // SAFETY:
                // - The arguments are those of the hook's caller.
                let $real = move || unsafe { function($($arg),*) };
                $body
            }
            $crate::real::hook_each! { [$($name [$($early)?])+] ($($arg: $type),*) -> $ret }
        };
    };
}

macro_rules! hook_each {
    ([$($name:ident $early:tt)+] $params:tt -> $ret:ty) => {
        $($crate::real::hook_one! { $early $name $params -> $ret })+
    };
}

macro_rules! hook_one {
    ($early:tt $name:ident ($($arg:ident: $type:ty),*) -> $ret:ty) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        // All hooks together, so that a starting program touches few pages.
        #[unsafe(link_section = ".text.startup")]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            const NAME: &str = concat!(stringify!($name), "\0");
            #[unsafe(link_section = "miot_real")]
            static REAL: $crate::real::RealFunction = $crate::real::RealFunction::new();
            $crate::real::hook_early! { $early REAL NAME }
            // A separate function, because a call that returns here would make each call of the
            // hook save registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn first_call($($arg: $type),*) -> $ret {
                // SAFETY:
                // - `dlsym` finds the C function of this name, which has the prototype `Prototype`.
                // - The arguments are the caller's.
                unsafe {
                    let function = std::mem::transmute::<*mut std::ffi::c_void, Prototype>(REAL.get::<$ret>(NAME));
                    if $crate::vfork::lacks_thread_block() { function($($arg),*) } else { recorded($($arg,)* function) }
                }
            }
            // SAFETY:
            // - The address is null, or that of the C function of this name, which has the
            //   prototype `Prototype`.
            let cached = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<Prototype>>(REAL.cached()) };
            // SAFETY:
            // - The arguments are the caller's.
            unsafe {
                match cached {
                    None => first_call($($arg),*),
                    Some(function) if $crate::vfork::lacks_thread_block() || miot_tracer::dormant() => function($($arg),*),
                    Some(function) => recorded($($arg,)* function),
                }
            }
        }
    };
}

macro_rules! hook_early {
    ([] $($hook:tt)*) => {};
    ([early] $real:ident $name:ident) => {
        #[used]
        #[unsafe(link_section = "miot_early")]
        static EARLY: $crate::real::EarlyHook = $crate::real::EarlyHook::new(&$real, $name);
    };
}

pub(crate) use {hook, hook_each, hook_early, hook_one};

/// `off_t` and `off64_t`, which are equal on every 64-bit system.
pub(crate) type Offset = i64;
/// `long`.
pub(crate) type Long = c_long;

#[cfg(test)]
mod tests {
    use super::*;

    /// In a test program the hooks are not exported, so that the loader finds libc's functions.
    #[test]
    fn early_functions_are_those_that_the_loader_finds() {
        // SAFETY:
        // - Nothing in this test program loads libraries.
        let objects = unsafe { lookup::Objects::behind() }.unwrap();
        let (mut at, stop) = (&raw const __start_miot_early, &raw const __stop_miot_early);
        let (mut entries, mut found) = (0, 0);
        while at < stop {
            // SAFETY:
            // - The linker places only `EarlyHook` values between the two symbols.
            // - The name of an entry is NUL-terminated.
            // - All objects stay loaded.
            unsafe {
                let name = (*at).name.as_ptr().cast::<c_char>();
                let own = objects.find(name, (*at).hash);
                if !own.is_null() {
                    assert_eq!(own, libc::dlsym(libc::RTLD_DEFAULT, name), "{:?}", CStr::from_ptr(name));
                    found += 1;
                }
                at = at.add(1);
            }
            entries += 1;
        }
        assert!(entries > 30 && found > entries * 9 / 10, "{found} of {entries}");
    }
}

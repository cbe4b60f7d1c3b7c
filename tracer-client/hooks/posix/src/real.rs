//! The functions behind the hooks, and the macro that declares a hook.
//!
//! A hook is exported under the name of a C function and finds the next function of that name with
//! `dlsym(RTLD_NEXT)`. Everything here is `extern "C-unwind"`: the forced unwinding of `pthread_cancel`
//! and C++ exceptions thrown by callbacks pass through a hook's frame, which therefore keeps nothing that
//! has a destructor.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// What a hooked function returns: how it says that it failed, and the result that is recorded.
pub(crate) trait Returned: Copy {
    /// What a function that this libc does not have returns, with `errno` = `ENOSYS`.
    const FAILED: Self;
    /// Zero or more: success; negative: −errno. To be asked before anything else can change `errno`.
    fn result(self) -> i64;
}

macro_rules! signed {
    ($($type:ty)*) => {$(
        impl Returned for $type {
            const FAILED: Self = -1;
            #[inline(always)]
            fn result(self) -> i64 {
                if self == -1 { failure() } else { i64::from(self as i64) }
            }
        }
    )*};
}
signed!(c_int i64 isize);

impl Returned for () {
    const FAILED: Self = ();
    #[inline(always)]
    fn result(self) -> i64 {
        0
    }
}

impl<T> Returned for *mut T {
    const FAILED: Self = std::ptr::null_mut();
    #[inline(always)]
    fn result(self) -> i64 {
        if self.is_null() { failure() } else { 0 }
    }
}

/// What `fread` and `fwrite` return: zero is no failure by itself.
impl Returned for usize {
    const FAILED: Self = 0;
    #[inline(always)]
    fn result(self) -> i64 {
        self as i64
    }
}

/// The return value of functions that return an error number and leave `errno` alone.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ErrorNumber(pub(crate) c_int);

impl Returned for ErrorNumber {
    const FAILED: Self = ErrorNumber(libc::ENOSYS);
    #[inline(always)]
    fn result(self) -> i64 {
        -i64::from(self.0)
    }
}

/// The return value of functions that return a value, or −errno and leave `errno` alone.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Negative(pub(crate) c_int);

impl Returned for Negative {
    const FAILED: Self = Negative(-libc::ENOSYS);
    #[inline(always)]
    fn result(self) -> i64 {
        i64::from(self.0)
    }
}

/// The return value of `mmap`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) usize);

impl Returned for Address {
    const FAILED: Self = Address(usize::MAX);
    #[inline(always)]
    fn result(self) -> i64 {
        if self == Self::FAILED { failure() } else { self.0 as i64 }
    }
}

/// −errno of the call that has just failed.
#[cold]
fn failure() -> i64 {
    match errno() {
        0 => -i64::from(libc::EIO),
        number => -i64::from(number),
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// Runs something that may change `errno` and puts it back.
pub(crate) fn keeping_errno<R>(run: impl FnOnce() -> R) -> R {
    let number = errno();
    let result = run();
    set_errno(number);
    result
}

extern "C-unwind" fn missing<R: Returned>() -> R {
    set_errno(libc::ENOSYS);
    R::FAILED
}

/// The function behind a hook, null until it is first called. What finds it is in the code, so that the loader has
/// nothing to relocate here; and all of them lie together, so that a program that starts touches few pages.
#[repr(transparent)]
pub(crate) struct Real(AtomicPtr<c_void>);

impl Real {
    pub(crate) const fn new() -> Real {
        Real(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The function, null if it was not called yet.
    #[inline(always)]
    pub(crate) fn known(&self) -> *mut c_void {
        self.0.load(Relaxed)
    }

    /// The function of this name, which ends in NUL and returns `R`.
    #[inline(always)]
    pub(crate) fn get<R: Returned>(&self, name: &'static str) -> *mut c_void {
        let at = self.known();
        if at.is_null() {
            self.resolve(name.as_ptr().cast(), missing::<R> as extern "C-unwind" fn() -> R as *const ())
        } else {
            at
        }
    }

    /// `missing` takes the function's place if this libc does not have it.
    #[inline(never)]
    #[unsafe(link_section = ".text.startup")]
    fn resolve(&self, name: *const c_char, missing: *const ()) -> *mut c_void {
        keeping_errno(|| {
            // SAFETY: a NUL-terminated name.
            let mut at = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
            if at.is_null() {
                at = loaded_apart(name);
            }
            if at.is_null() {
                // SAFETY: forgets the error, which the application must not find.
                unsafe { libc::dlerror() };
                at = missing.cast_mut().cast();
            }
            self.0.store(at, Relaxed);
            at
        })
    }
}

/// The function of a library that was loaded with `dlopen`, and what it needs along with it: `RTLD_NEXT` does not
/// look there, while calls from there come here.
#[cold]
fn loaded_apart(name: *const c_char) -> *mut c_void {
    const LIBRARIES: [&CStr; 2] = [c"libaio.so.1", c"liburing.so.2"];
    for library in LIBRARIES {
        // SAFETY: a name; nothing is loaded that is not there.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !handle.is_null() {
            // Stays open: its function is used from now on. SAFETY: an open library and a NUL-terminated name.
            let at = unsafe { libc::dlsym(handle, name) };
            if !at.is_null() {
                return at;
            }
        }
    }
    std::ptr::null_mut()
}

/// A hook that is declared `early`.
#[repr(C)]
pub(crate) struct Early {
    real: &'static Real,
    /// NUL-terminated.
    name: *const c_char,
    missing: *const (),
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for Early {}

impl Early {
    pub(crate) const fn new<R: Returned>(real: &'static Real, name: &'static str) -> Early {
        let missing = missing::<R> as extern "C-unwind" fn() -> R as *const ();
        Early { real, name: name.as_ptr().cast(), missing }
    }
}

unsafe extern "C" {
    static __start_miot_early: Early;
    static __stop_miot_early: Early;
}

/// Finds the functions of the hooks that are declared `early`: those that run in signal handlers and in
/// children of a threaded process, where `dlsym` is not safe. Each costs every program that starts half a
/// microsecond, so they are by the names that programs are compiled to.
pub(crate) fn resolve_early() {
    let (mut at, stop) = (&raw const __start_miot_early, &raw const __stop_miot_early);
    while at < stop {
        // SAFETY: the linker puts nothing but `Early` values between the two symbols.
        unsafe {
            (*at).real.resolve((*at).name, (*at).missing);
            at = at.add(1);
        }
    }
}

/// Declares hooks: one body for functions that differ in nothing but their name.
///
/// `hook!(pread | pread64 early (fd: c_int, …) -> isize, |real| body)`: in `body` the parameters have their
/// names, and `real` is a closure that calls the function behind the hook with the very same arguments. It
/// must be called exactly once on every path, unless the request is made in another way. Where nothing is or
/// was recorded, the body is passed by.
macro_rules! hook {
    ($($name:ident $($early:ident)?)|+ ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, |$real:ident| $body:expr) => {
        const _: () = {
            type Prototype = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            // Apart, so that a call that is not recorded saves no registers, and once for all names.
            #[inline(never)]
            unsafe extern "C-unwind" fn recorded($($arg: $type,)* function: Prototype) -> $ret {
                // SAFETY: the arguments are those of the caller of the function's hook, passed on as they came.
                let $real = || unsafe { function($($arg),*) };
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
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            const NAME: &str = concat!(stringify!($name), "\0");
            #[unsafe(link_section = "miot_real")]
            static REAL: $crate::real::Real = $crate::real::Real::new();
            $crate::real::hook_early! { $early REAL NAME $ret }
            // Apart, as anything that returns here would make each call save registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn first_call($($arg: $type),*) -> $ret {
                // SAFETY:
                // - `dlsym` finds the C function of this name, whose C prototype `Prototype` is;
                // - the arguments are the caller's own, passed on as they came.
                unsafe {
                    let function = std::mem::transmute::<*mut std::ffi::c_void, Prototype>(REAL.get::<$ret>(NAME));
                    if $crate::vfork::is_no_thread() { function($($arg),*) } else { recorded($($arg,)* function) }
                }
            }
            // SAFETY: null, or as above.
            let known = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<Prototype>>(REAL.known()) };
            // SAFETY: as above.
            unsafe {
                match known {
                    None => first_call($($arg),*),
                    Some(function) if $crate::vfork::is_no_thread() || miot_tracer::dormant() => function($($arg),*),
                    Some(function) => recorded($($arg,)* function),
                }
            }
        }
    };
}

macro_rules! hook_early {
    ([] $($hook:tt)*) => {};
    ([early] $real:ident $name:ident $ret:ty) => {
        #[used]
        #[unsafe(link_section = "miot_early")]
        static EARLY: $crate::real::Early = $crate::real::Early::new::<$ret>(&$real, $name);
    };
}

pub(crate) use {hook, hook_each, hook_early, hook_one};

/// `off_t` and `off64_t`: the same on every 64-bit system.
pub(crate) type Offset = i64;
/// `long`.
pub(crate) type Long = c_long;

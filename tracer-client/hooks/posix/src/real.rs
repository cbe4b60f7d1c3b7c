//! The functions behind the hooks, and the macro that declares a hook.
//!
//! A hook is exported under the name of a C function and finds the next function of that name with
//! `dlsym(RTLD_NEXT)`. Everything here is `extern "C-unwind"`: the forced unwinding of `pthread_cancel`
//! and C++ exceptions thrown by callbacks pass through a hook's frame, which therefore keeps nothing that
//! has a destructor.

use std::ffi::{c_char, c_int, c_long, c_void};
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

/// One function behind a hook.
#[repr(C)]
pub(crate) struct Real {
    at: AtomicPtr<c_void>,
    /// NUL-terminated.
    name: *const c_char,
    /// Takes the function's place if this libc does not have it.
    missing: *const (),
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for Real {}

impl Real {
    pub(crate) const fn new<R: Returned>(name: &'static str) -> Real {
        Real {
            at: AtomicPtr::new(std::ptr::null_mut()),
            name: name.as_ptr().cast(),
            missing: missing::<R> as extern "C-unwind" fn() -> R as *const (),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> *mut c_void {
        let at = self.at.load(Relaxed);
        if at.is_null() { self.resolve() } else { at }
    }

    #[cold]
    #[inline(never)]
    fn resolve(&self) -> *mut c_void {
        keeping_errno(|| {
            // SAFETY: a NUL-terminated name.
            let mut at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name) };
            if at.is_null() {
                // SAFETY: forgets the error, which the application must not find.
                unsafe { libc::dlerror() };
                at = self.missing.cast_mut().cast();
            }
            self.at.store(at, Relaxed);
            at
        })
    }
}

unsafe extern "C" {
    static __start_miot_real: Real;
    static __stop_miot_real: Real;
}

/// Finds the functions of the hooks that are declared `early`: those that run in signal handlers and in
/// children of a threaded process, where `dlsym` is not safe, and the most frequent ones.
pub(crate) fn resolve_early() {
    let (mut at, stop) = (&raw const __start_miot_real, &raw const __stop_miot_real);
    while at < stop {
        // SAFETY: the linker puts nothing but `Real` values between the two symbols.
        unsafe {
            (*at).get();
            at = at.add(1);
        }
    }
}

/// Declares hooks: one body for functions that differ in nothing but their name.
///
/// `hook!(early pread | pread64 (fd: c_int, …) -> isize, |real| body)`: in `body` the parameters have their
/// names, and `real` is a closure that calls the function behind the hook with the very same arguments. It
/// must be called exactly once on every path, unless the request is made in another way.
macro_rules! hook {
    (early $($name:ident)|+ ($($params:tt)*) -> $ret:ty, |$real:ident| $body:expr) => {
        $crate::real::hook_each! { [unsafe(link_section = "miot_real")] [$($name)+] ($($params)*) -> $ret, |$real| $body }
    };
    ($($name:ident)|+ ($($params:tt)*) -> $ret:ty, |$real:ident| $body:expr) => {
        $crate::real::hook_each! { [allow(unused)] [$($name)+] ($($params)*) -> $ret, |$real| $body }
    };
}

macro_rules! hook_each {
    ($attribute:tt [$($name:ident)+] $params:tt -> $ret:ty, |$real:ident| $body:expr) => {
        $($crate::real::hook_one! { $attribute $name $params -> $ret, |$real| $body })+
    };
}

macro_rules! hook_one {
    ([$attribute:meta] $name:ident ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, |$real:ident| $body:expr) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            type Prototype = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            #[$attribute]
            static REAL: $crate::real::Real = $crate::real::Real::new::<$ret>(concat!(stringify!($name), "\0"));
            // SAFETY:
            // - `dlsym` found the C function of this name, whose C prototype `Prototype` is;
            // - the arguments are the caller's own, passed on as they came.
            let $real = || unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, Prototype>(REAL.get())($($arg),*)
            };
            $body
        }
    };
}

pub(crate) use {hook, hook_each, hook_one};

/// `off_t` and `off64_t`: the same on every 64-bit system.
pub(crate) type Offset = i64;
/// `long`.
pub(crate) type Long = c_long;

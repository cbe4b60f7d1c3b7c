//! `syscall(2)` with the numbers of asynchronous I/O: programs that go without libaio and liburing (libuv, nginx, Rust's
//! `io-uring`) call the kernel so.
//!
//! So are those that install filters of system calls (`confine`). Every other number is passed on by a jump, after thirteen
//! instructions: nothing is on the stack that was not there, so that calls
//! which return twice, or on another stack, return to the program.

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::real::{Early, Long, Real, Returned};
    use crate::{confine, libaio, uring};
    use std::cell::Cell;
    use std::ffi::{c_int, c_uint};

    #[unsafe(link_section = "miot_real")]
    static REAL: Real = Real::new();
    const NAME: &str = "syscall\0";
    #[used]
    #[unsafe(link_section = "miot_early")]
    static EARLY: Early = Early::new::<Long>(&REAL, NAME);

    /// `SYS_io_pgetevents`.
    const PGETEVENTS: Long = 333;

    const fn count(first: Long, last: Long) -> Long {
        last - first
    }

    // Initial-exec thread-local storage: see `tls.rs` of the tracer for the why.
    std::arch::global_asm!(
        ".pushsection .tbss.miot_posix_within,\"awT\",@nobits",
        ".p2align 2",
        ".globl miot_posix_within",
        ".hidden miot_posix_within",
        ".type miot_posix_within,@object",
        ".size miot_posix_within,4",
        "miot_posix_within:",
        ".zero 4",
        ".popsection",
    );

    /// The thread is in a hook of a library that may make its system calls by `syscall`.
    fn is_within() -> &'static Cell<u32> {
        let at: *const Cell<u32>;
        // SAFETY: the address of a thread-local word defined above, in the initial-exec way of the ELF TLS ABI, where the
        // word at fs:0 is its own address.
        unsafe {
            std::arch::asm!(
                "mov {at}, qword ptr [rip + miot_posix_within@gottpoff]",
                "add {at}, qword ptr fs:[0]",
                at = out(reg) at,
                options(pure, readonly, nostack)
            );
            &*at
        }
    }

    /// Calls the function of a library that is hooked itself.
    pub(crate) fn within<R>(real: impl FnOnce() -> R) -> R {
        is_within().set(1);
        let returned = real();
        is_within().set(0);
        returned
    }

    #[unsafe(naked)]
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C-unwind" fn syscall() -> Long {
        std::arch::naked_asm!(
            "lea rax, [rdi - {aio}]",
            "cmp rax, {aios}",
            "jbe {seen}",
            "lea rax, [rdi - {uring}]",
            "cmp rax, {urings}",
            "jbe {seen}",
            "cmp rdi, {pgetevents}",
            "je {seen}",
            "cmp rdi, {prctl}",
            "je {seen}",
            "cmp rdi, {seccomp}",
            "je {seen}",
            "mov rax, qword ptr [rip + {real}]",
            "test rax, rax",
            "jz {seen}",
            "jmp rax",
            aio = const libc::SYS_io_destroy,
            aios = const count(libc::SYS_io_destroy, libc::SYS_io_cancel),
            uring = const libc::SYS_io_uring_setup,
            urings = const count(libc::SYS_io_uring_setup, libc::SYS_io_uring_register),
            pgetevents = const PGETEVENTS,
            prctl = const libc::SYS_prctl,
            seccomp = const libc::SYS_seccomp,
            real = sym REAL,
            seen = sym seen,
        )
    }

    /// The numbers that are looked at, and any until the function behind the hook is known.
    #[inline(never)]
    unsafe extern "C-unwind" fn seen(
        number: Long,
        a: usize,
        b: Long,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> Long {
        type Prototype = unsafe extern "C-unwind" fn(Long, usize, Long, usize, usize, usize, usize) -> Long;
        // SAFETY:
        // - `dlsym` finds the C function of this name; it takes six words in registers and nothing else;
        // - the arguments are the caller's own, passed on as they came.
        let real = || unsafe {
            let function = std::mem::transmute::<*mut std::ffi::c_void, Prototype>(REAL.get::<Long>(NAME));
            function(number, a, b, c, d, e, f)
        };
        match number {
            libc::SYS_prctl => return confine::by_prctl(a as c_int, b as usize, c, real),
            libc::SYS_seccomp => return confine::by_seccomp(a, b as usize, c, real),
            _ => {}
        }
        if is_within().get() != 0 || miot_tracer::dormant() {
            return real();
        }
        match number {
            libc::SYS_io_submit => libaio::submitting(a, b, c as *const _, real),
            libc::SYS_io_getevents | PGETEVENTS => libaio::collecting(a, d as *const _, real),
            libc::SYS_io_cancel => libaio::cancelling(a, c as *const _, real),
            libc::SYS_io_destroy => libaio::destroying(a, real),
            libc::SYS_io_uring_setup => uring::setting_up(b as *const _, real),
            libc::SYS_io_uring_enter => uring::entering(a as c_int, d as c_uint, real),
            _ => real(),
        }
    }

    const _: () = assert!(<Long as Returned>::FAILED == -1);
}

#[cfg(target_arch = "x86_64")]
pub(crate) use arch::within;

/// Elsewhere `syscall` is libc's own.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn within<R>(real: impl FnOnce() -> R) -> R {
    real()
}

//! Hook of `syscall(2)` for the numbers of asynchronous I/O: programs without libaio and liburing
//! (libuv, nginx, Rust's `io-uring`) make their system calls through it.
//!
//! The hook also handles the numbers that install filters of system calls (`confine`). Every other
//! number is passed on by a jump after 15 instructions. The stack is not changed, so that calls
//! which return twice, or on another stack, return to the program.

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::real::{EarlyHook, Long, RealFunction, ReturnValue};
    use crate::{confine, libaio, uring};
    use std::cell::Cell;
    use std::ffi::{c_int, c_uint};

    #[unsafe(link_section = "miot_real")]
    static REAL: RealFunction = RealFunction::new();
    const NAME: &str = "syscall\0";
    #[used]
    #[unsafe(link_section = "miot_early")]
    static EARLY: EarlyHook = EarlyHook::new(&REAL, NAME);

    /// `SYS_io_pgetevents`.
    const PGETEVENTS: Long = 333;

    const fn count(first: Long, last: Long) -> Long {
        last - first
    }

    // Initial-exec thread-local storage; `tls.rs` of the tracer explains why.
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

    /// Returns this thread's mark, which is 1 while the thread is in a hooked function of a library
    /// that may make its system calls by `syscall`.
    fn in_library() -> &'static Cell<u32> {
        let at: *const Cell<u32>;
        // SAFETY:
        // - The code computes the address of the thread-local word defined above, by the
        //   initial-exec model of the ELF TLS ABI: the word at fs:0 contains its own address.
        // - The word is aligned, is initialized with zero and lives as long as the thread.
        // - The reference is not passed to other threads: `Cell` is not `Sync`.
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

    /// Calls a hooked function of a library. System calls that it makes by `syscall` are then
    /// passed on, because the library's hook records them.
    pub(crate) fn call_library<R>(real: impl FnOnce() -> R) -> R {
        in_library().set(1);
        let returned = real();
        in_library().set(0);
        returned
    }

    #[unsafe(naked)]
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C-unwind" fn syscall() -> Long {
        std::arch::naked_asm!(
            "lea rax, [rdi - {aio}]",
            "cmp rax, {aios}",
            "jbe {handle}",
            "lea rax, [rdi - {uring}]",
            "cmp rax, {urings}",
            "jbe {handle}",
            "cmp rdi, {pgetevents}",
            "je {handle}",
            "cmp rdi, {prctl}",
            "je {handle}",
            "cmp rdi, {seccomp}",
            "je {handle}",
            "mov rax, qword ptr [rip + {real}]",
            "test rax, rax",
            "jz {handle}",
            "jmp rax",
            aio = const libc::SYS_io_destroy,
            aios = const count(libc::SYS_io_destroy, libc::SYS_io_cancel),
            uring = const libc::SYS_io_uring_setup,
            urings = const count(libc::SYS_io_uring_setup, libc::SYS_io_uring_register),
            pgetevents = const PGETEVENTS,
            prctl = const libc::SYS_prctl,
            seccomp = const libc::SYS_seccomp,
            real = sym REAL,
            handle = sym handle,
        )
    }

    /// Handles the numbers that are recorded, and every number until the real function is resolved.
    #[inline(never)]
    unsafe extern "C-unwind" fn handle(
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
        // - `dlsym` finds the C function of this name, which takes a number and six words.
        // - The arguments are the caller's.
        let real = || unsafe {
            let function = std::mem::transmute::<*mut std::ffi::c_void, Prototype>(REAL.get::<Long>(NAME));
            function(number, a, b, c, d, e, f)
        };
        match number {
            libc::SYS_prctl => return confine::on_prctl(a as c_int, b as usize, c, real),
            libc::SYS_seccomp => return confine::on_seccomp(a, b as usize, c, real),
            _ => {}
        }
        if in_library().get() != 0 || miot_tracer::dormant() {
            return real();
        }
        match number {
            libc::SYS_io_submit => libaio::on_submit(a, b, c as *const _, real),
            libc::SYS_io_getevents | PGETEVENTS => libaio::on_getevents(a, d as *const _, real),
            libc::SYS_io_cancel => libaio::on_cancel(a, c as *const _, real),
            libc::SYS_io_destroy => libaio::on_destroy(a, real),
            libc::SYS_io_uring_setup => uring::on_setup(b as *const _, real),
            libc::SYS_io_uring_enter => uring::on_enter(a as c_int, d as c_uint, real),
            _ => real(),
        }
    }

    const _: () = assert!(<Long as ReturnValue>::FAILED == -1);
}

#[cfg(target_arch = "x86_64")]
pub(crate) use arch::call_library;

/// On other architectures `syscall` is not hooked.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn call_library<R>(real: impl FnOnce() -> R) -> R {
    real()
}

//! The address of the calling thread's [`Thread`](crate::thread::Thread).
//!
//! Initial-exec thread-local storage, by hand: two instructions, no call, no allocation on a thread's
//! first access (which could be inside a signal handler or inside `malloc`). Rust's `thread_local!` in a
//! shared library goes through `__tls_get_addr`; the attribute that would change that is not stable. The
//! block fits the surplus that glibc keeps for libraries opened late, which it gives to none that wants more than the 64 bytes of
//! alignment of its own thread block.

use crate::thread::Thread;

/// Size of the block below.
pub(crate) const BYTES: usize = 128;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.miot_tracer_thread,\"awT\",@nobits",
    ".p2align 6",
    ".globl miot_tracer_thread",
    ".hidden miot_tracer_thread",
    ".type miot_tracer_thread,@object",
    ".size miot_tracer_thread,128",
    "miot_tracer_thread:",
    ".zero 128",
    ".popsection",
);

/// Points to this thread's block: zero until first written, valid as long as the thread lives.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn thread() -> *mut Thread {
    let address: *mut Thread;
    // SAFETY: computes the address of a thread-local symbol defined above, in the way the ELF TLS ABI
    // prescribes for the initial-exec model; reads only the GOT and the thread control block.
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + miot_tracer_thread@gottpoff]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(pure, readonly, nostack)
        );
    }
    address
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn thread() -> *mut Thread {
    #[repr(align(64))]
    struct Block(std::cell::UnsafeCell<[u8; BYTES]>);
    std::thread_local! {
        static BLOCK: Block = const { Block(std::cell::UnsafeCell::new([0; BYTES])) };
    }
    BLOCK.with(|block| block.0.get()).cast()
}

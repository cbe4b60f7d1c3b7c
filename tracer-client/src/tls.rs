//! Address of the calling thread's [`Thread`].
//!
//! Hand-written initial-exec thread-local storage: two instructions, no call, no allocation at a
//! thread's first access, which could happen inside a signal handler or inside `malloc`. Rust's
//! `thread_local!` in a shared library calls `__tls_get_addr`, and the attribute that would change
//! this is not stable. The block fits into the surplus that glibc keeps for libraries opened late.
//! Its alignment is 64 bytes, that of glibc's own thread block, because glibc gives none of the
//! surplus to a block with a larger one.

use crate::thread::Thread;

/// Size of the block below, bytes.
pub(crate) const BYTES: usize = 192;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.miot_tracer_thread,\"awT\",@nobits",
    ".p2align 6",
    ".globl miot_tracer_thread",
    ".hidden miot_tracer_thread",
    ".type miot_tracer_thread,@object",
    ".size miot_tracer_thread,192",
    "miot_tracer_thread:",
    ".zero 192",
    ".popsection",
);

/// Returns a pointer to this thread's block, which is zero until first written and valid as long as
/// the thread lives.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn thread() -> *mut Thread {
    let address: *mut Thread;
    // SAFETY: the assembly requires
    // - a thread-local symbol of the initial-exec model: defined above, and its address is computed
    //   as the ELF TLS ABI prescribes;
    // - declared effects: it writes one register, and reads only the GOT and the thread control
    //   block.
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

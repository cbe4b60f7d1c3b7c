//! `vfork`, and the mark of a child that runs in its parent's memory.
//!
//! Such a child has descriptors of its own but shares our tables and the parent thread's lane. What it does
//! before `exec` or `_exit` is therefore neither recorded nor noted in the tables. The mark is a thread-local
//! counter that the hook of `vfork` sets: the child runs on the stack, and with the thread-local storage, of
//! the thread that called `vfork`, which stands still meanwhile.
//!
//! No function that returns may wrap `vfork`: the child would overwrite the frame the parent returns to. So
//! this one makes the system call itself and keeps its return address in a register, as libc does.

use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::description::GENERATION;

    // Initial-exec thread-local storage: see `tls.rs` of the tracer for the why.
    std::arch::global_asm!(
        ".pushsection .tbss.miot_posix_borrowed,\"awT\",@nobits",
        ".p2align 2",
        ".globl miot_posix_borrowed",
        ".hidden miot_posix_borrowed",
        ".type miot_posix_borrowed,@object",
        ".size miot_posix_borrowed,4",
        "miot_posix_borrowed:",
        ".zero 4",
        ".popsection",
    );

    #[inline(always)]
    pub(super) fn borrowed() -> u32 {
        let count: u32;
        // SAFETY: reads a thread-local word defined above, in the initial-exec way of the ELF TLS ABI.
        unsafe {
            std::arch::asm!(
                "mov {at}, qword ptr [rip + miot_posix_borrowed@gottpoff]",
                "mov {count:e}, dword ptr fs:[{at}]",
                at = out(reg) _,
                count = out(reg) count,
                options(readonly, nostack, preserves_flags)
            );
        }
        count
    }

    #[inline(always)]
    pub(super) fn thread_block() -> usize {
        let at: usize;
        // SAFETY: reads the first word of what the thread's register points to.
        unsafe {
            std::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) at, options(readonly, nostack, preserves_flags));
        }
        at
    }

    /// # Safety
    /// As `vfork` itself.
    #[unsafe(naked)]
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C" fn vfork() -> super::c_int {
        std::arch::naked_asm!(
            "pop rdi", // the kernel keeps rdi and rsi, and does not touch the stack
            "lock inc dword ptr [rip + {generation}]",
            "mov rsi, qword ptr [rip + miot_posix_borrowed@gottpoff]",
            "inc dword ptr fs:[rsi]",
            "mov eax, {number}",
            "syscall",
            "push rdi",
            "test rax, rax",
            "jz 2f", // the child
            "dec dword ptr fs:[rsi]",
            "cmp rax, -4095",
            "jae 3f",
            "2:",
            "ret",
            "3:",
            "neg eax",
            "push rax",
            "call {errno}",
            "pop rcx",
            "mov dword ptr [rax], ecx",
            "mov eax, -1",
            "ret",
            generation = sym GENERATION,
            number = const libc::SYS_vfork,
            errno = sym libc::__errno_location,
        )
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    // `vfork` is libc's own: its children are taken for their parents.
    pub(super) fn borrowed() -> u32 {
        0
    }

    pub(super) fn thread_block() -> usize {
        1
    }
}

/// True in a child that was made with `clone` and memory full of zeros in the place of libc's thread block, as Chromium does
/// for a child that only changes its root: it has no thread-local storage, and nothing of ours may be looked at.
#[inline(always)]
pub(crate) fn is_no_thread() -> bool {
    arch::thread_block() == 0
}

/// True in a child that borrows its parent's memory.
#[inline(always)]
pub(crate) fn in_child() -> bool {
    arch::borrowed() != 0
}

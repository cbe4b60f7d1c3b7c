//! Hook of `vfork`, and detection of a child that runs in its parent's memory.
//!
//! Such a child has descriptors of its own but shares the tables of this library and the lane of
//! the parent's thread. Its calls before `exec` or `_exit` are therefore neither recorded nor
//! entered into the tables. The hook of `vfork` increments a thread-local counter: the child runs
//! on the stack and with the thread-local storage of the thread that called `vfork`, which is
//! suspended meanwhile.
//!
//! No function that returns may wrap `vfork`: the child would overwrite the frame to which the
//! parent returns. Therefore the hook makes the system call itself and keeps its return address in
//! a register, as libc does.

use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::description::GENERATION;

    // Initial-exec thread-local storage; `tls.rs` of the tracer explains why.
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
        // SAFETY:
        // - The code reads the thread-local word defined above, by the initial-exec model of the
        //   ELF TLS ABI.
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
        // SAFETY:
        // - The thread's register points to readable memory: libc's thread block, or the zeros that
        //   a child of `clone` got instead.
        unsafe {
            std::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) at, options(readonly, nostack, preserves_flags));
        }
        at
    }

    /// # Safety
    /// - The requirements of `vfork(2)` for the child.
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
    // `vfork` is not hooked: its children are mistaken for their parents.
    pub(super) fn borrowed() -> u32 {
        0
    }

    pub(super) fn thread_block() -> usize {
        1
    }
}

/// Returns whether this is a child of `clone` with zeros instead of libc's thread block, as
/// Chromium creates one only to change its root directory. It has no thread-local storage, so that
/// no state of this library may be used.
#[inline(always)]
pub(crate) fn lacks_thread_block() -> bool {
    arch::thread_block() == 0
}

/// Returns whether this is a child that runs in its parent's memory.
#[inline(always)]
pub(crate) fn in_child() -> bool {
    arch::borrowed() != 0
}

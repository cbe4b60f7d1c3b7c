//! Hook of `vfork`, and detection of a child that runs in its parent's memory.
//!
//! Such a child has descriptors of its own but shares the tables of this library and the lane of
//! the parent's thread. Its calls before `exec` or `_exit` are therefore neither recorded nor
//! entered into the tables. The hook of `vfork` counts the child in the tracer's state of the
//! thread, which then records nothing ([`miot_tracer::borrowed`]): the child runs on the stack and
//! with the thread-local storage of the thread that called `vfork`, which is suspended meanwhile.
//!
//! No function that returns may wrap `vfork`: the child would overwrite the frame to which the
//! parent returns. Therefore the hook makes the system call itself and keeps its return address in
//! a register, as libc does.

use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::description::GENERATION;
    use miot_tracer::borrowed::{COUNT_AT, GATE_AT};

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
            "mov rsi, qword ptr [rip + miot_tracer_thread@gottpoff]",
            "mov rdx, qword ptr fs:[rsi + {gate}]", // kept by the kernel, too
            "inc dword ptr fs:[rsi + {count}]",
            "mov qword ptr fs:[rsi + {gate}], 0",
            "mov eax, {number}",
            "syscall",
            "push rdi",
            "test rax, rax",
            "jz 2f", // the child
            "mov qword ptr fs:[rsi + {gate}], rdx",
            "dec dword ptr fs:[rsi + {count}]",
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
            count = const COUNT_AT,
            gate = const GATE_AT,
            number = const libc::SYS_vfork,
            errno = sym libc::__errno_location,
        )
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    // `vfork` is not hooked: its children are mistaken for their parents.
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
    miot_tracer::borrowed::is_child()
}

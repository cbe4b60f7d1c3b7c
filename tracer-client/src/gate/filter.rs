//! What a filter says to a system call: classic BPF, run as the kernel runs it (`kernel/seccomp.c`), with the arguments that
//! are not known left unknown.

use super::Call;
use std::ffi::c_void;
use std::mem::offset_of;

/// Of `seccomp_data`: the number of the call, the architecture, the instruction, six arguments of 64 bits.
const DATA_BYTES: u32 = 64;
const FIRST_ARGUMENT: u32 = 16;
/// The kernel takes no longer programs.
const MAX_LENGTH: usize = 4096;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: u32 = 0;

/// `SECCOMP_RET_ALLOW`, and what masks the action of a result.
const ALLOW: u32 = 0x7fff_0000;
const ACTION: u32 = 0xffff_0000;

/// The calls that a filter does not allow, a bit for each in their order.
///
/// # Safety
/// `program` points to a `struct sock_fprog` whose instructions can be read.
pub(super) unsafe fn denies(program: *const c_void, calls: &[Call]) -> u64 {
    // SAFETY: by the contract of this function.
    let program = unsafe {
        let program = program.cast::<libc::sock_fprog>().read_unaligned();
        debug_assert_eq!(offset_of!(libc::sock_fprog, len), 0);
        std::slice::from_raw_parts(program.filter, usize::from(program.len).min(MAX_LENGTH))
    };
    let denied = calls.iter().enumerate().filter(|(_, call)| !allows(program, call));
    denied.fold(0, |denied, (bit, _)| denied | 1 << bit)
}

/// True if the filter allows the call whatever its unknown arguments are, or does not look at them.
fn allows(program: &[libc::sock_filter], call: &Call) -> bool {
    run(program, call).is_some_and(|result| result & ACTION == ALLOW)
}

/// A word of `seccomp_data`.
fn data(call: &Call, at: u32) -> Option<u32> {
    match at {
        0 => Some(call.number as u32),
        4 => Some(ARCH),
        FIRST_ARGUMENT..DATA_BYTES => {
            let (argument, high) = ((at - FIRST_ARGUMENT) / 8, at % 8 >= 4);
            let known = call.known.iter().find(|(index, _)| *index == argument as usize);
            known.map(|(_, value)| if high { 0 } else { *value })
        }
        _ => None,
    }
}

/// The result of the program; `None`: it depends on what is not known, or the program is none.
fn run(program: &[libc::sock_filter], call: &Call) -> Option<u32> {
    let (mut a, mut x) = (Some(0), Some(0));
    let mut memory = [Some(0); 16];
    let mut at = 0usize;
    // Jumps go forward only, so each instruction runs at most once.
    loop {
        let instruction = program.get(at)?;
        let (class, k) = (instruction.code & 7, instruction.k);
        at += 1;
        match class {
            // Loads: from the data, a constant, the scratch memory, the length of the data.
            0 | 1 => {
                let value = match instruction.code & 0xe0 {
                    0x20 => data(call, k),
                    0x00 => Some(k),
                    0x60 => *memory.get(k as usize)?,
                    0x80 => Some(DATA_BYTES),
                    _ => return None,
                };
                *(if class == 0 { &mut a } else { &mut x }) = value;
            }
            2 => *memory.get_mut(k as usize)? = a,
            3 => *memory.get_mut(k as usize)? = x,
            4 => {
                let operand = if instruction.code & 8 != 0 { x } else { Some(k) };
                a = a.zip(operand).and_then(|(a, operand)| compute(instruction.code, a, operand));
            }
            5 if instruction.code & 0xf0 == 0 => at += k as usize,
            5 => {
                let (a, operand) = (a?, if instruction.code & 8 != 0 { x? } else { k });
                let holds = match instruction.code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { instruction.jt } else { instruction.jf });
            }
            6 => return if instruction.code & 0x18 == 0x10 { a } else { Some(k) },
            _ if instruction.code & 0xf8 == 0 => x = a,
            _ => a = x,
        }
    }
}

fn compute(code: u16, a: u32, operand: u32) -> Option<u32> {
    match code & 0xf0 {
        0x00 => Some(a.wrapping_add(operand)),
        0x10 => Some(a.wrapping_sub(operand)),
        0x20 => Some(a.wrapping_mul(operand)),
        0x30 => a.checked_div(operand),
        0x40 => Some(a | operand),
        0x50 => Some(a & operand),
        0x60 => a.checked_shl(operand),
        0x70 => a.checked_shr(operand),
        0x80 => Some(a.wrapping_neg()),
        0x90 => a.checked_rem(operand),
        0xa0 => Some(a ^ operand),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0001;

    fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    fn load(at: u32) -> libc::sock_filter {
        step(0x20, 0, 0, at)
    }

    fn give(result: u32) -> libc::sock_filter {
        step(0x06, 0, 0, result)
    }

    /// Another architecture, and calls not in the list, are killed.
    fn allow_list(numbers: &[u32], otherwise: u32) -> Vec<libc::sock_filter> {
        let mut program = vec![load(4), step(0x15, 1, 0, ARCH), give(KILL), load(0)];
        for number in numbers {
            program.extend([step(0x15, 0, 1, *number), give(ALLOW)]);
        }
        program.push(give(otherwise));
        program
    }

    fn call(number: u32) -> Call {
        Call { number: number.into(), known: &[(1, 7)] }
    }

    #[test]
    fn lists_allow_what_is_in_them() {
        for otherwise in [KILL, ERRNO, 0x0003_0000, 0x7fc0_0000, 0x7ffc_0000] {
            let program = allow_list(&[3, 5], otherwise);
            let allowed: Vec<u32> = (0..8).filter(|number| allows(&program, &call(*number))).collect();
            assert_eq!(allowed, [3, 5], "{otherwise:x}");
        }
        assert!(allows(&[give(ALLOW | 9)], &call(1)));
        assert!(!allows(&[], &call(1)) && !allows(&[load(0)], &call(1)), "runs past its end");
    }

    #[test]
    fn what_depends_on_an_unknown_argument_is_denied() {
        // Argument 0 is not known, argument 1 is 7.
        let looks_at = |offset, value| [load(offset), step(0x15, 1, 0, value), give(KILL), give(ALLOW)];
        assert!(allows(&looks_at(24, 7), &call(1)) && !allows(&looks_at(24, 8), &call(1)));
        assert!(allows(&looks_at(28, 0), &call(1)), "its upper half is zero");
        assert!(!allows(&looks_at(16, 7), &call(1)) && !allows(&looks_at(8, 0), &call(1)));
        // Loaded, and then not looked at.
        assert!(allows(&[load(16), load(0), step(0x35, 0, 1, 1), give(ALLOW), give(KILL)], &call(1)));
    }

    #[test]
    fn arithmetic_and_memory_are_those_of_the_kernel() {
        let computes = |steps: &[libc::sock_filter]| {
            let program: Vec<_> = steps.iter().copied().chain([step(0x16, 0, 0, 0)]).collect();
            run(&program, &call(40))
        };
        // a = number; x = 2; then the operation with x.
        let with_x = |code: u16| computes(&[load(0), step(0x01, 0, 0, 2), step(0x0c | code, 0, 0, 0)]);
        let results = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0].map(with_x);
        assert_eq!(results.map(Option::unwrap), [42, 38, 80, 20, 42, 0, 160, 10, 0, 42]);
        assert_eq!(computes(&[load(0), step(0x34, 0, 0, 0)]), None, "division by zero");
        // Through memory, register and length; a jump over what would spoil it.
        let by_memory = [
            load(0),
            step(0x02, 0, 0, 3),
            step(0x00, 0, 0, 9),
            step(0x61, 0, 0, 3),
            step(0x05, 0, 0, 1),
            give(KILL),
            step(0x87, 0, 0, 0),
            step(0x84, 0, 0, 0),
            step(0x07, 0, 0, 0),
            step(0x80, 0, 0, 0),
            step(0x0c, 0, 0, 0),
        ];
        assert_eq!(computes(&by_memory), Some(64 - 40));
        assert_eq!(computes(&[step(0x60, 0, 0, 16)]), None, "no such memory");
    }
}

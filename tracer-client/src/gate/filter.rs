//! Evaluates a seccomp filter for a system call: classic BPF with the semantics of the kernel
//! (`kernel/seccomp.c`). Arguments whose values are unknown stay unknown.

use super::Call;
use std::ffi::c_void;
use std::mem::offset_of;

/// Layout of `seccomp_data`: number of the call, architecture, instruction pointer, six arguments
/// of 64 bits.
const DATA_BYTES: u32 = 64;
const FIRST_ARGUMENT: u32 = 16;
/// Maximum length of a program that the kernel accepts, instructions (`BPF_MAXINSNS`).
const MAX_LENGTH: usize = 4096;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: u32 = 0;

/// `SECCOMP_RET_ALLOW`, and the mask of the action in a result.
const ALLOW: u32 = 0x7fff_0000;
const ACTION: u32 = 0xffff_0000;

/// Returns the calls that a filter does not allow, as a bit set by index in `calls`.
///
/// # Safety
/// - `program` points to a `struct sock_fprog` whose instructions can be read.
pub(super) unsafe fn denied_calls(program: *const c_void, calls: &[Call]) -> u64 {
    // SAFETY: the read and the slice require
    // - a readable `struct sock_fprog`: required by this function;
    // - `len` readable instructions at `filter`: required by this function, and `len` is only
    //   reduced.
    let program = unsafe {
        let program = program.cast::<libc::sock_fprog>().read_unaligned();
        debug_assert_eq!(offset_of!(libc::sock_fprog, len), 0);
        std::slice::from_raw_parts(program.filter, usize::from(program.len).min(MAX_LENGTH))
    };
    let denied = calls.iter().enumerate().filter(|(_, call)| !allows(program, call));
    denied.fold(0, |denied, (bit, _)| denied | 1 << bit)
}

/// True if the filter allows the call for all values of its unknown arguments, or does not test
/// them.
fn allows(program: &[libc::sock_filter], call: &Call) -> bool {
    evaluate(program, call).is_some_and(|result| result & ACTION == ALLOW)
}

/// Returns a 32-bit word of `seccomp_data`; `None` if its value is unknown or the offset is
/// invalid.
fn seccomp_data(call: &Call, at: u32) -> Option<u32> {
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

/// Returns the result of the program. `None`: it depends on an unknown value, or the program is
/// invalid.
fn evaluate(program: &[libc::sock_filter], call: &Call) -> Option<u32> {
    let (mut a, mut x) = (Some(0), Some(0));
    let mut memory = [Some(0); 16];
    let mut at = 0usize;
    // Jumps only go forward, so each instruction runs at most once.
    loop {
        let instruction = program.get(at)?;
        let (class, k) = (instruction.code & 7, instruction.k);
        at += 1;
        match class {
            // Loads: from the data, a constant, the scratch memory, the length of the data.
            0 | 1 => {
                let value = match instruction.code & 0xe0 {
                    0x20 => seccomp_data(call, k),
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

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    fn load(at: u32) -> libc::sock_filter {
        instruction(0x20, 0, 0, at)
    }

    fn ret(result: u32) -> libc::sock_filter {
        instruction(0x06, 0, 0, result)
    }

    /// A filter that kills calls of another architecture, allows `numbers`, and returns `otherwise`
    /// for all other calls.
    fn allow_list(numbers: &[u32], otherwise: u32) -> Vec<libc::sock_filter> {
        let mut program = vec![load(4), instruction(0x15, 1, 0, ARCH), ret(KILL), load(0)];
        for number in numbers {
            program.extend([instruction(0x15, 0, 1, *number), ret(ALLOW)]);
        }
        program.push(ret(otherwise));
        program
    }

    fn call(number: u32) -> Call {
        Call { number: number.into(), known: &[(1, 7)] }
    }

    #[test]
    fn allow_list_allows_exactly_its_calls() {
        for otherwise in [KILL, ERRNO, 0x0003_0000, 0x7fc0_0000, 0x7ffc_0000] {
            let program = allow_list(&[3, 5], otherwise);
            let allowed: Vec<u32> = (0..8).filter(|number| allows(&program, &call(*number))).collect();
            assert_eq!(allowed, [3, 5], "{otherwise:x}");
        }
        assert!(allows(&[ret(ALLOW | 9)], &call(1)));
        assert!(
            !allows(&[], &call(1)) && !allows(&[load(0)], &call(1)),
            "an empty program, or one without a return, is invalid"
        );
    }

    #[test]
    fn result_that_depends_on_an_unknown_argument_is_denied() {
        // Argument 0 is unknown, argument 1 is 7.
        let requires = |offset, value| [load(offset), instruction(0x15, 1, 0, value), ret(KILL), ret(ALLOW)];
        assert!(allows(&requires(24, 7), &call(1)) && !allows(&requires(24, 8), &call(1)));
        assert!(allows(&requires(28, 0), &call(1)), "the upper half of a known argument is zero");
        assert!(!allows(&requires(16, 7), &call(1)) && !allows(&requires(8, 0), &call(1)));
        // An unknown argument that is loaded and then not tested.
        assert!(allows(&[load(16), load(0), instruction(0x35, 0, 1, 1), ret(ALLOW), ret(KILL)], &call(1)));
    }

    #[test]
    fn arithmetic_and_memory_match_the_kernel() {
        let computes = |steps: &[libc::sock_filter]| {
            let program: Vec<_> = steps.iter().copied().chain([instruction(0x16, 0, 0, 0)]).collect();
            evaluate(&program, &call(40))
        };
        // a = number; x = 2; then the operation with x.
        let with_x =
            |code: u16| computes(&[load(0), instruction(0x01, 0, 0, 2), instruction(0x0c | code, 0, 0, 0)]);
        let results = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0].map(with_x);
        assert_eq!(results.map(Option::unwrap), [42, 38, 80, 20, 42, 0, 160, 10, 0, 42]);
        assert_eq!(computes(&[load(0), instruction(0x34, 0, 0, 0)]), None, "division by zero");
        // Through memory, register and length; with a jump over an instruction that would change
        // the result.
        let by_memory = [
            load(0),
            instruction(0x02, 0, 0, 3),
            instruction(0x00, 0, 0, 9),
            instruction(0x61, 0, 0, 3),
            instruction(0x05, 0, 0, 1),
            ret(KILL),
            instruction(0x87, 0, 0, 0),
            instruction(0x84, 0, 0, 0),
            instruction(0x07, 0, 0, 0),
            instruction(0x80, 0, 0, 0),
            instruction(0x0c, 0, 0, 0),
        ];
        assert_eq!(computes(&by_memory), Some(64 - 40));
        assert_eq!(computes(&[instruction(0x60, 0, 0, 16)]), None, "invalid index of scratch memory");
    }
}

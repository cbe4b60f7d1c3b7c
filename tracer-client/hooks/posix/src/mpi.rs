//! MPI calls, without MPI: each function that `libmiot_mpi.so` hooks is exported by this library
//! too. Its first call loads `libmiot_mpi.so` from the folder of this library, and all calls go
//! there from then on. So a program without MPI loads and relocates nothing for that hook.
//!
//! If `libmiot_mpi.so` is missing, or with `MIOT_MPI=off`, the calls are passed on to the next
//! function of the same name. If it is preloaded by itself, they are passed on to it.

#![cfg(target_arch = "x86_64")]
#![allow(non_upper_case_globals, reason = "name of a C symbol")]
#![expect(clippy::disallowed_types, reason = "address of the function behind a stub")]

use crate::filter;
use crate::real::keeping_errno;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Marks this library for `libmiot_mpi.so`: its functions are not those of MPI.
#[cfg_attr(not(test), unsafe(no_mangle))]
static miot_posix_mpi: u8 = 0;

/// Return value of a function that no library has: an error in every MPI.
const MISSING: c_int = 16;

extern "C" fn missing() -> c_int {
    MISSING
}

/// Exports a function under this name and under its profiling name. It is a jump through its slot,
/// null before the first call.
///
/// All arguments of MPI are words: the first six in registers, the others on the stack, which stays
/// as it is.
///
/// A name with brackets has a large-count form too (`MPI_Send_c`). The brackets list the registers
/// with its counts, and `stack` for the seventh argument. Not every MPI has these forms. Programs
/// that refer to them weakly (the wheel of mpi4py) see that they exist here, and call them: without
/// such a function in MPI, the call goes to the other form, if the counts are not too large for it.
macro_rules! stubs {
    ($($name:literal $([$($count:ident)*])?)*) => {
        $(stubs! { one "MPI_" $name $([$($count)*])? }
        stubs! { one "PMPI_" $name $([$($count)*])? })*
    };
    (one $prefix:literal $name:literal) => {
        const _: () = { stubs! { stub concat!($prefix, $name), missing } };
    };
    (one $prefix:literal $name:literal [$($count:ident)*]) => {
        const _: () = {
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn narrow() {
                std::arch::naked_asm!(
                    $(stubs! { check $count },)*
                    "jmp {plain}",
                    "2:",
                    "jmp {missing}",
                    plain = sym plain::stub,
                    missing = sym missing,
                )
            }
            mod plain {
                use super::*;
                stubs! { stub concat!($prefix, $name), missing }
            }
            stubs! { stub concat!($prefix, $name, "_c"), narrow }
        };
    };
    (stub $name:expr, $otherwise:ident) => {
        #[cfg_attr(not(test), unsafe(export_name = $name))]
        #[unsafe(link_section = ".text.miot_mpi")]
        #[unsafe(naked)]
        pub(super) unsafe extern "C-unwind" fn stub() {
            static SLOT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            static NAME: [u8; concat!($name, "\0").len()] = bytes(concat!($name, "\0"));
            std::arch::naked_asm!(
                "mov rax, qword ptr [rip + {slot}]",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2:",
                "lea rax, [rip + {slot}]",
                "lea r11, [rip + {name}]",
                "lea r10, [rip + {otherwise}]",
                "jmp {first}",
                slot = sym SLOT,
                name = sym NAME,
                otherwise = sym $otherwise,
                first = sym first_call,
            )
        }
    };
    // Jumps if a count is not a number of 31 bits.
    (check stack) => { "mov r10, qword ptr [rsp + 8]; shr r10, 31; jnz 2f" };
    (check $count:ident) => { concat!("mov r10, ", stringify!($count), "; shr r10, 31; jnz 2f") };
}

/// Bytes of a name: an array, because the loader would have to relocate a pointer.
const fn bytes<const N: usize>(name: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(name.as_bytes());
    bytes
}

/// Finds the function of a stub and jumps there with the arguments of the call. Slot in `rax`, name
/// in `r11`, function to use without one in `r10`.
#[unsafe(naked)]
unsafe extern "C-unwind" fn first_call() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rax",
        "mov rsi, r11",
        "mov rdx, r10",
        "call {find}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        find = sym find,
    )
}

/// Looks up the function of a slot. Two threads may do so at the same time: both find the same.
/// `otherwise` is used if no MPI has a function of this name.
///
/// # Safety
/// - `name` is a C string.
unsafe extern "C" fn find(
    slot: &AtomicPtr<c_void>,
    name: *const c_char,
    otherwise: *mut c_void,
) -> *mut c_void {
    keeping_errno(|| {
        // SAFETY:
        // - Both names are C strings.
        // - `library` is an open library.
        // - `dlerror` has no requirements; it clears an error, so that the program does not get it.
        let mut at = unsafe {
            let preloaded = libc::dlsym(libc::RTLD_DEFAULT, USE.as_ptr());
            let library = if preloaded.is_null() { load() } else { std::ptr::null_mut() };
            let hook = if library.is_null() { preloaded } else { libc::dlsym(library, USE.as_ptr()) };
            let mut at = next(name);
            if at.is_null() {
                at = find_in_loaded_objects(name, hook);
            }
            if !at.is_null() && !library.is_null() {
                let recorded = libc::dlsym(library, name);
                at = if recorded.is_null() { at } else { recorded };
            }
            libc::dlerror();
            at
        };
        if at.is_null() {
            at = otherwise;
        }
        slot.store(at, Relaxed);
        at
    })
}

/// Function of `libmiot_mpi.so` that gets [`next`].
const USE: &CStr = c"miot_mpi_use";
type Use = unsafe extern "C" fn(unsafe extern "C" fn(*const c_char) -> *mut c_void);

/// Returns the function of this name behind this library, or null. `libmiot_mpi.so` cannot look it
/// up by itself, because it is not among the libraries of the program's start.
///
/// # Safety
/// - `name` is a C string.
unsafe extern "C" fn next(name: *const c_char) -> *mut c_void {
    // SAFETY:
    // - `name` is a C string, by the contract of this function.
    unsafe { crate::real::loader_dlsym()(libc::RTLD_NEXT, name) }
}

/// Returns the function in a loaded object outside the program's scope: MPI may be loaded by a
/// module (Python's mpi4py). Null if there is none. `mpi_hook` is an address in `libmiot_mpi.so`,
/// or null.
///
/// # Safety
/// - `name` is a C string.
#[cold]
#[inline(never)]
unsafe fn find_in_loaded_objects(name: *const c_char, mpi_hook: *mut c_void) -> *mut c_void {
    // This library, and `libmiot_mpi.so`, whose functions lead here.
    let hooks = [(&raw const miot_posix_mpi).cast(), mpi_hook.cast_const()].map(object_base);
    for left in 0.. {
        let mut object = LoadedObject { left, path: [0; libc::PATH_MAX as usize] };
        // One path at a time, because the loader is locked during the iteration.
        // SAFETY:
        // - `copy_path` gets a pointer to a value that outlives the call.
        if unsafe { libc::dl_iterate_phdr(Some(copy_path), (&raw mut object).cast()) } == 0 {
            break;
        }
        // SAFETY:
        // - The path ends in NUL, and `name` is a C string.
        // - `RTLD_NOLOAD` loads nothing, so no initializers run.
        // - `dlclose` does not unload the object, because its owner holds it open.
        unsafe {
            let handle = libc::dlopen(object.path.as_ptr().cast(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                continue;
            }
            let at = libc::dlsym(handle, name);
            libc::dlclose(handle);
            if !at.is_null() && !hooks.contains(&object_base(at)) {
                return at;
            }
        }
    }
    std::ptr::null_mut()
}

/// Path of a loaded object; empty for the program itself.
struct LoadedObject {
    /// Number of objects before it in the loader's list.
    left: usize,
    path: [u8; libc::PATH_MAX as usize],
}

/// Copies the path of an object to a [`LoadedObject`]. Returns 1 when this is done.
unsafe extern "C" fn copy_path(info: *mut libc::dl_phdr_info, _: usize, object: *mut c_void) -> c_int {
    // SAFETY:
    // - `info` points to the loader's structure, whose `dlpi_name` is null or a C string.
    // - `object` is the value that `find_in_loaded_objects` passes.
    let (object, path) = unsafe {
        let path: *const c_char = (*info).dlpi_name;
        let path = if path.is_null() { &[][..] } else { CStr::from_ptr(path).to_bytes() };
        (&mut *object.cast::<LoadedObject>(), path)
    };
    if object.left > 0 {
        object.left -= 1;
        return 0;
    }
    if path.len() < object.path.len() {
        object.path[..path.len()].copy_from_slice(path);
    }
    1
}

/// Returns the load address of the object that contains an address; null if there is none.
fn object_base(address: *const c_void) -> *mut c_void {
    // SAFETY:
    // - All-zero bytes are a valid `Dl_info`: its fields are pointers.
    // - `dladdr` accepts any address.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut info) == 0 { std::ptr::null_mut() } else { info.dli_fbase }
    }
}

/// Loads `libmiot_mpi.so` from the folder of this library. Returns null if it is missing.
///
/// # Safety
/// - The caller may load libraries: it is in a call of MPI.
unsafe fn load() -> *mut c_void {
    const FILE: &CStr = c"libmiot_mpi.so";
    if !filter::allows_mpi() {
        return std::ptr::null_mut();
    }
    let mut path = [0u8; libc::PATH_MAX as usize];
    // SAFETY:
    // - All-zero bytes are a valid `Dl_info`: its fields are pointers.
    // - `dladdr` accepts any address. After a success the file name is a C string.
    let own = unsafe {
        let mut own: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((&raw const miot_posix_mpi).cast(), &raw mut own) == 0 || own.dli_fname.is_null() {
            return std::ptr::null_mut();
        }
        CStr::from_ptr(own.dli_fname).to_bytes()
    };
    let folder = own.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (from, to) = (own.get(..folder), folder + FILE.count_bytes());
    let (Some(from), Some(_)) = (from, path.get(..=to)) else { return std::ptr::null_mut() };
    for (to, byte) in path.iter_mut().zip(from.iter().chain(FILE.to_bytes())) {
        *to = *byte;
    }
    // SAFETY:
    // - The path ends in NUL: it is shorter than the buffer, which was zero.
    // - `USE` is a C string. The function of this name has the type `Use`.
    // - `next` fulfills the requirements of that function.
    unsafe {
        let library = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            return library;
        }
        let tell = libc::dlsym(library, USE.as_ptr());
        if tell.is_null() {
            return tell;
        }
        std::mem::transmute::<*mut c_void, Use>(tell)(next);
        library
    }
}

// The hooks of `libmiot_mpi.so`; a test compares the lists. In brackets: where the counts of the
// large-count form are. Large-count forms with arrays of counts are not exported.
stubs! {
    "Allgather" [rsi r8] "Allgatherv" "Allreduce" [rdx] "Alltoall" [rsi r8] "Alltoallv" "Alltoallw"
    "Barrier" "Barrier_c" "Bcast" [rsi] "Bsend" [rsi] "Exscan" [rdx] "File_close" "File_delete"
    "File_get_amode" "File_get_atomicity" "File_get_byte_offset" "File_get_group" "File_get_info"
    "File_get_position" "File_get_position_shared" "File_get_size" "File_get_type_extent" []
    "File_get_view" "File_iread" [rdx] "File_iread_all" [rdx] "File_iread_at" [rcx]
    "File_iread_at_all" [rcx] "File_iread_shared" [rdx] "File_iwrite" [rdx] "File_iwrite_all" [rdx]
    "File_iwrite_at" [rcx] "File_iwrite_at_all" [rcx] "File_iwrite_shared" [rdx] "File_open"
    "File_preallocate" "File_read" [rdx] "File_read_all" [rdx] "File_read_all_begin" [rdx]
    "File_read_all_end" "File_read_at" [rcx] "File_read_at_all" [rcx] "File_read_at_all_begin" [rcx]
    "File_read_at_all_end" "File_read_ordered" [rdx] "File_read_ordered_begin" [rdx]
    "File_read_ordered_end" "File_read_shared" [rdx] "File_seek" "File_seek_shared"
    "File_set_atomicity" "File_set_info" "File_set_size" "File_set_view" "File_sync"
    "File_write" [rdx] "File_write_all" [rdx] "File_write_all_begin" [rdx] "File_write_all_end"
    "File_write_at" [rcx] "File_write_at_all" [rcx] "File_write_at_all_begin" [rcx]
    "File_write_at_all_end" "File_write_ordered" [rdx] "File_write_ordered_begin" [rdx]
    "File_write_ordered_end" "File_write_shared" [rdx] "Gather" [rsi r8] "Gatherv"
    "Iallgather" [rsi r8] "Iallgatherv" "Iallreduce" [rdx] "Ialltoall" [rsi r8] "Ialltoallv"
    "Ialltoallw" "Ibarrier" "Ibarrier_c" "Ibcast" [rsi] "Ibsend" [rsi] "Iexscan" [rdx]
    "Igather" [rsi r8] "Igatherv" "Irecv" [rsi] "Ireduce" [rdx] "Ireduce_scatter"
    "Ireduce_scatter_block" [rdx] "Irsend" [rsi] "Iscan" [rdx] "Iscatter" [rsi r8] "Iscatterv"
    "Isend" [rsi] "Issend" [rsi] "Recv" [rsi] "Reduce" [rdx] "Reduce_scatter"
    "Reduce_scatter_block" [rdx] "Request_free" "Request_get_status" "Rsend" [rsi] "Scan" [rdx]
    "Scatter" [rsi r8] "Scatterv" "Send" [rsi] "Sendrecv" [rsi stack] "Sendrecv_replace" [rsi]
    "Ssend" [rsi] "Start" "Start_c" "Startall" "Startall_c" "Test" "Testall" "Testany" "Testsome"
    "Wait" "Waitall" "Waitany" "Waitsome"
}

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
macro_rules! stubs {
    ($($name:literal)*) => {
        $(stubs! { concat "MPI_" $name }
        stubs! { concat "PMPI_" $name })*
    };
    (concat $prefix:literal $name:literal) => {
        const _: () = {
            #[cfg_attr(not(test), unsafe(export_name = concat!($prefix, $name)))]
            #[unsafe(link_section = ".text.miot_mpi")]
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn stub() {
                static SLOT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                static NAME: [u8; concat!($prefix, $name, "\0").len()] = bytes(concat!($prefix, $name, "\0"));
                std::arch::naked_asm!(
                    "mov rax, qword ptr [rip + {slot}]",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    "2:",
                    "lea rax, [rip + {slot}]",
                    "lea r11, [rip + {name}]",
                    "jmp {first}",
                    slot = sym SLOT,
                    name = sym NAME,
                    first = sym first_call,
                )
            }
        };
    };
}

/// Bytes of a name: an array, because the loader would have to relocate a pointer.
const fn bytes<const N: usize>(name: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(name.as_bytes());
    bytes
}

/// Finds the function of a stub and jumps there with the arguments of the call. Slot in `rax`, name
/// in `r11`.
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
///
/// # Safety
/// - `name` is a C string.
unsafe extern "C" fn find(slot: &AtomicPtr<c_void>, name: *const c_char) -> *mut c_void {
    keeping_errno(|| {
        // SAFETY:
        // - Both names are C strings.
        // - `library` is an open library.
        // - `dlerror` has no requirements; it clears an error, so that the program does not get it.
        let mut at = unsafe {
            let is_preloaded = !libc::dlsym(libc::RTLD_DEFAULT, USE.as_ptr()).is_null();
            let library = if is_preloaded { std::ptr::null_mut() } else { load() };
            let mut at = if library.is_null() { library } else { libc::dlsym(library, name) };
            if at.is_null() {
                at = next(name);
            }
            if at.is_null() {
                at = find_in_loaded_objects(name);
            }
            libc::dlerror();
            at
        };
        if at.is_null() {
            at = (missing as extern "C" fn() -> c_int as *mut c_void).cast();
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
    unsafe { libc::dlsym(libc::RTLD_NEXT, name) }
}

/// Returns the function in a loaded object outside the program's scope: MPI may be loaded by a
/// module (Python's mpi4py). Null if there is none.
///
/// # Safety
/// - `name` is a C string.
#[cold]
#[inline(never)]
unsafe fn find_in_loaded_objects(name: *const c_char) -> *mut c_void {
    // SAFETY:
    // - `USE` is a C string.
    let mpi_hook = unsafe { libc::dlsym(libc::RTLD_DEFAULT, USE.as_ptr()) };
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

// The hooks of `libmiot_mpi.so`; a test compares the lists.
stubs! {
    "Allgather" "Allgather_c" "Allgatherv" "Allgatherv_c" "Allreduce" "Allreduce_c" "Alltoall"
    "Alltoall_c" "Alltoallv" "Alltoallv_c" "Alltoallw" "Alltoallw_c" "Barrier" "Barrier_c"
    "Bcast" "Bcast_c" "Bsend" "Bsend_c" "Exscan" "Exscan_c" "File_close" "File_delete"
    "File_get_amode" "File_get_atomicity" "File_get_byte_offset" "File_get_group"
    "File_get_info" "File_get_position" "File_get_position_shared" "File_get_size"
    "File_get_type_extent" "File_get_type_extent_c" "File_get_view" "File_iread"
    "File_iread_all" "File_iread_all_c" "File_iread_at" "File_iread_at_all"
    "File_iread_at_all_c" "File_iread_at_c" "File_iread_c" "File_iread_shared"
    "File_iread_shared_c" "File_iwrite" "File_iwrite_all" "File_iwrite_all_c" "File_iwrite_at"
    "File_iwrite_at_all" "File_iwrite_at_all_c" "File_iwrite_at_c" "File_iwrite_c"
    "File_iwrite_shared" "File_iwrite_shared_c" "File_open" "File_preallocate" "File_read"
    "File_read_all" "File_read_all_begin" "File_read_all_begin_c" "File_read_all_c"
    "File_read_all_end" "File_read_at" "File_read_at_all" "File_read_at_all_begin"
    "File_read_at_all_begin_c" "File_read_at_all_c" "File_read_at_all_end" "File_read_at_c"
    "File_read_c" "File_read_ordered" "File_read_ordered_begin" "File_read_ordered_begin_c"
    "File_read_ordered_c" "File_read_ordered_end" "File_read_shared" "File_read_shared_c"
    "File_seek" "File_seek_shared" "File_set_atomicity" "File_set_info" "File_set_size"
    "File_set_view" "File_sync" "File_write" "File_write_all" "File_write_all_begin"
    "File_write_all_begin_c" "File_write_all_c" "File_write_all_end" "File_write_at"
    "File_write_at_all" "File_write_at_all_begin" "File_write_at_all_begin_c"
    "File_write_at_all_c" "File_write_at_all_end" "File_write_at_c" "File_write_c"
    "File_write_ordered" "File_write_ordered_begin" "File_write_ordered_begin_c"
    "File_write_ordered_c" "File_write_ordered_end" "File_write_shared" "File_write_shared_c"
    "Gather" "Gather_c" "Gatherv" "Gatherv_c" "Iallgather" "Iallgather_c" "Iallgatherv"
    "Iallgatherv_c" "Iallreduce" "Iallreduce_c" "Ialltoall" "Ialltoall_c" "Ialltoallv"
    "Ialltoallv_c" "Ialltoallw" "Ialltoallw_c" "Ibarrier" "Ibarrier_c" "Ibcast" "Ibcast_c"
    "Ibsend" "Ibsend_c" "Iexscan" "Iexscan_c" "Igather" "Igather_c" "Igatherv" "Igatherv_c"
    "Irecv" "Irecv_c" "Ireduce" "Ireduce_c" "Ireduce_scatter" "Ireduce_scatter_block"
    "Ireduce_scatter_block_c" "Ireduce_scatter_c" "Irsend" "Irsend_c" "Iscan" "Iscan_c"
    "Iscatter" "Iscatter_c" "Iscatterv" "Iscatterv_c" "Isend" "Isend_c" "Issend" "Issend_c"
    "Recv" "Recv_c" "Reduce" "Reduce_c" "Reduce_scatter" "Reduce_scatter_block"
    "Reduce_scatter_block_c" "Reduce_scatter_c" "Request_free" "Request_get_status" "Rsend"
    "Rsend_c" "Scan" "Scan_c" "Scatter" "Scatter_c" "Scatterv" "Scatterv_c" "Send" "Send_c"
    "Sendrecv" "Sendrecv_c" "Sendrecv_replace" "Sendrecv_replace_c" "Ssend" "Ssend_c" "Start"
    "Start_c" "Startall" "Startall_c" "Test" "Testall" "Testany" "Testsome" "Wait" "Waitall"
    "Waitany" "Waitsome"
}

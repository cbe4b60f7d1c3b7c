//! Binary interfaces of MPI implementations: constants, sizes of handles, layout of a status.
//!
//! One library supports all of them, so that it includes no `mpi.h`. Two binary interfaces are
//! known: that of MPICH, which Intel MPI, MVAPICH and Cray MPICH share since 2014, and that of Open
//! MPI. The test below compares the tables with the headers. With any other MPI nothing is
//! recorded.

use crate::real::{global_variable, next_symbol};
use std::ffi::{CStr, c_char, c_int, c_void};

/// An MPI handle as it is passed: an integer in the low half, or a pointer. The hooks pass it on
/// unchanged.
pub(crate) type Handle = usize;

/// `MPI_MODE_SEQUENTIAL` in both interfaces.
pub(crate) const MODE_SEQUENTIAL: c_int = 256;
/// `MPI_SEEK_SET` in both interfaces; `MPI_SEEK_CUR` and `MPI_SEEK_END` follow in steps of two.
pub(crate) const SEEK_SET: c_int = 600;
/// `MPI_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0;

/// Storage for an `MPI_Status` of either interface.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Status(pub(crate) [u8; 24]);

/// Constructor of a datatype, see [`crate::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combiner {
    Named,
    Dup,
    Contiguous,
    Vector,
    HvectorInteger,
    Hvector,
    Indexed,
    HindexedInteger,
    Hindexed,
    IndexedBlock,
    StructInteger,
    Struct,
    Subarray,
    Darray,
    F90Real,
    F90Complex,
    F90Integer,
    Resized,
    HindexedBlock,
}

use Combiner::{
    Contiguous, Darray, Dup, F90Complex, F90Integer, F90Real, Hindexed, HindexedBlock, HindexedInteger,
    Hvector, HvectorInteger, Indexed, IndexedBlock, Named, Resized, Struct, StructInteger, Subarray, Vector,
};

/// Combiners in the order of their numbers, which is the same in both interfaces. The first number
/// is [`Abi::first_combiner`].
const COMBINERS: [Combiner; 19] = [
    Named,
    Dup,
    Contiguous,
    Vector,
    HvectorInteger,
    Hvector,
    Indexed,
    HindexedInteger,
    Hindexed,
    IndexedBlock,
    StructInteger,
    Struct,
    Subarray,
    Darray,
    F90Real,
    F90Complex,
    F90Integer,
    Resized,
    HindexedBlock,
];

/// Basic C datatypes of Open MPI: symbol, and size in bytes.
const BASIC: [(&CStr, u64); 22] = [
    (c"ompi_mpi_byte", 1),
    (c"ompi_mpi_char", 1),
    (c"ompi_mpi_signed_char", 1),
    (c"ompi_mpi_unsigned_char", 1),
    (c"ompi_mpi_short", 2),
    (c"ompi_mpi_unsigned_short", 2),
    (c"ompi_mpi_int", 4),
    (c"ompi_mpi_unsigned", 4),
    (c"ompi_mpi_long", 8),
    (c"ompi_mpi_unsigned_long", 8),
    (c"ompi_mpi_long_long_int", 8),
    (c"ompi_mpi_unsigned_long_long", 8),
    (c"ompi_mpi_float", 4),
    (c"ompi_mpi_double", 8),
    (c"ompi_mpi_int8_t", 1),
    (c"ompi_mpi_int16_t", 2),
    (c"ompi_mpi_int32_t", 4),
    (c"ompi_mpi_int64_t", 8),
    (c"ompi_mpi_uint8_t", 1),
    (c"ompi_mpi_uint16_t", 2),
    (c"ompi_mpi_uint32_t", 4),
    (c"ompi_mpi_uint64_t", 8),
];

/// Upper byte of the handle of a basic datatype of MPICH. The second byte of such a handle, bits 8
/// to 15, is the size of the datatype in bytes.
const MPICH_BASIC: u32 = 0x4c00_0000;

/// One binary interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abi {
    /// Handles of [`BASIC`]; null in MPICH, where the handle contains the size.
    basic: [Handle; BASIC.len()],
    /// Size of a handle in memory, in bytes.
    pub(crate) handle: usize,
    /// Size of an `MPI_Status`, and offset of `MPI_ERROR` in it, in bytes.
    pub(crate) status: usize,
    pub(crate) status_error: usize,
    /// `MPI_STATUS_IGNORE` and `MPI_STATUSES_IGNORE`.
    pub(crate) status_ignore: usize,
    /// `MPI_BYTE`.
    pub(crate) byte: Handle,
    pub(crate) order_fortran: c_int,
    pub(crate) distribute_none: c_int,
    pub(crate) distribute_block: c_int,
    pub(crate) default_argument: c_int,
    first_combiner: c_int,
    /// Error classes: name, number, and the errno that represents it.
    pub(crate) errors: &'static [(&'static str, c_int, c_int)],
    /// `MPI_ERR_IN_STATUS` and `MPI_ERR_PENDING`.
    pub(crate) in_status: c_int,
    pub(crate) pending: c_int,
}

impl Abi {
    const MPICH: Abi = Abi {
        basic: [0; BASIC.len()],
        handle: 4,
        status: 20,
        status_error: 16,
        status_ignore: 1,
        byte: 0x4c00_010d,
        order_fortran: 57,
        distribute_none: 123,
        distribute_block: 121,
        default_argument: -49767,
        first_combiner: 1,
        errors: &[
            ("ACCESS", 20, libc::EACCES),
            ("AMODE", 21, libc::EINVAL),
            ("BAD_FILE", 22, libc::ENOTDIR),
            ("CONVERSION", 23, libc::EILSEQ),
            ("DUP_DATAREP", 24, libc::EEXIST),
            ("FILE_EXISTS", 25, libc::EEXIST),
            ("FILE_IN_USE", 26, libc::EBUSY),
            ("FILE", 27, libc::EBADF),
            ("NO_MEM", 34, libc::ENOMEM),
            ("NO_SPACE", 36, libc::ENOSPC),
            ("NO_SUCH_FILE", 37, libc::ENOENT),
            ("QUOTA", 39, libc::EDQUOT),
            ("READ_ONLY", 40, libc::EROFS),
            ("UNSUPPORTED_DATAREP", 43, libc::EOPNOTSUPP),
            ("UNSUPPORTED_OPERATION", 44, libc::EOPNOTSUPP),
            ("BUFFER", 1, libc::EFAULT),
            ("COUNT", 2, libc::EINVAL),
            ("TYPE", 3, libc::EINVAL),
            ("COMM", 5, libc::EINVAL),
            ("ARG", 12, libc::EINVAL),
            ("NOT_SAME", 35, libc::EINVAL),
        ],
        in_status: 17,
        pending: 18,
    };

    fn open_mpi(byte: *mut c_void) -> Abi {
        Abi {
            basic: BASIC.map(|(name, _)| global_variable(name) as usize),
            handle: 8,
            status: 24,
            status_error: 8,
            status_ignore: 0,
            byte: byte as usize,
            order_fortran: 1,
            distribute_none: 2,
            distribute_block: 0,
            default_argument: -1,
            first_combiner: 0,
            errors: &[
                ("ACCESS", 20, libc::EACCES),
                ("AMODE", 21, libc::EINVAL),
                ("BAD_FILE", 23, libc::ENOTDIR),
                ("CONVERSION", 25, libc::EILSEQ),
                ("DUP_DATAREP", 27, libc::EEXIST),
                ("FILE_EXISTS", 28, libc::EEXIST),
                ("FILE_IN_USE", 29, libc::EBUSY),
                ("FILE", 30, libc::EBADF),
                ("NO_MEM", 39, libc::ENOMEM),
                ("NO_SPACE", 41, libc::ENOSPC),
                ("NO_SUCH_FILE", 42, libc::ENOENT),
                ("QUOTA", 44, libc::EDQUOT),
                ("READ_ONLY", 45, libc::EROFS),
                ("UNSUPPORTED_DATAREP", 51, libc::EOPNOTSUPP),
                ("UNSUPPORTED_OPERATION", 52, libc::EOPNOTSUPP),
                ("BUFFER", 1, libc::EFAULT),
                ("COUNT", 2, libc::EINVAL),
                ("TYPE", 3, libc::EINVAL),
                ("COMM", 5, libc::EINVAL),
                ("ARG", 13, libc::EINVAL),
                ("NOT_SAME", 40, libc::EINVAL),
            ],
            in_status: 18,
            pending: 19,
        }
    }

    /// Returns the size in bytes of a basic datatype; `None` for any other. MPI is not called,
    /// because it has not accepted the handle yet.
    pub(crate) fn basic_size(&self, datatype: Handle) -> Option<u64> {
        if self.handle == 4 {
            let handle = datatype as u32;
            return (handle & 0xff00_0000 == MPICH_BASIC).then_some(u64::from(handle >> 8 & 0xff));
        }
        self.basic.iter().position(|basic| *basic == datatype && datatype != 0).map(|at| BASIC[at].1)
    }

    /// Returns the binary interface of the loaded MPI; `None` if it is unknown.
    pub(crate) fn loaded() -> Option<Abi> {
        let byte = global_variable(c"ompi_mpi_byte");
        if !byte.is_null() {
            return Some(Abi::open_mpi(byte));
        }
        let function = next_symbol(c"PMPI_Get_library_version");
        if function.is_null() {
            return None;
        }
        // SAFETY:
        // - The function of this name has this prototype.
        let version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int =
            unsafe { std::mem::transmute(function) };
        // Larger than MPI_MAX_LIBRARY_VERSION_STRING of any MPI.
        let mut text = vec![0u8; 1 << 16];
        let mut length = 0;
        // SAFETY:
        // - The call is allowed at any time, also before `MPI_Init`.
        // - The buffer is large enough for the version of any MPI.
        // - `length` is writable.
        if unsafe { version(text.as_mut_ptr().cast(), &raw mut length) } != SUCCESS {
            return None;
        }
        let family = ["MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH"];
        family.iter().any(|name| text.windows(name.len()).any(|w| w == name.as_bytes())).then_some(Abi::MPICH)
    }

    /// Returns the combiner with this number.
    pub(crate) fn combiner(&self, number: c_int) -> Option<Combiner> {
        COMBINERS.get(usize::try_from(number.checked_sub(self.first_combiner)?).ok()?).copied()
    }

    /// Returns the errno for an error class; `EIO` for one that has none.
    pub(crate) fn errno(&self, class: c_int) -> c_int {
        self.errors.iter().find(|(_, listed, _)| *listed == class).map_or(libc::EIO, |(.., errno)| *errno)
    }

    /// Reads a handle from memory.
    ///
    /// # Safety
    /// - `at` points to a handle of this MPI.
    pub(crate) unsafe fn read_handle(&self, at: *const c_void) -> Handle {
        // SAFETY:
        // - `at` points to a handle of this size, by the contract of this function.
        unsafe {
            match self.handle {
                4 => *at.cast::<u32>() as usize,
                _ => *at.cast::<usize>(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Abi, COMBINERS, MODE_SEQUENTIAL, MPICH_BASIC, SEEK_SET};
    use std::fmt::Write as _;
    use std::process::Command;

    /// Names of the standard in the order of [`COMBINERS`]; empty for combiners that MPI 3 removed.
    const NAMES: [&str; 19] = [
        "NAMED",
        "DUP",
        "CONTIGUOUS",
        "VECTOR",
        "",
        "HVECTOR",
        "INDEXED",
        "",
        "HINDEXED",
        "INDEXED_BLOCK",
        "",
        "STRUCT",
        "SUBARRAY",
        "DARRAY",
        "F90_REAL",
        "F90_COMPLEX",
        "F90_INTEGER",
        "RESIZED",
        "HINDEXED_BLOCK",
    ];

    /// Returns a C program that compiles and succeeds if the table agrees with `mpi.h`.
    fn assertions(abi: &Abi) -> String {
        let mut text = String::from("#include <mpi.h>\n#include <stddef.h>\n");
        let mut equal = |left: &str, right: i64| {
            writeln!(text, "_Static_assert({left} == {right}, \"{left}\");").unwrap();
        };
        equal("sizeof(MPI_Request)", abi.handle as i64);
        equal("sizeof(MPI_Datatype)", abi.handle as i64);
        equal("sizeof(MPI_File)", 8);
        equal("sizeof(MPI_Status)", abi.status as i64);
        equal("offsetof(MPI_Status, MPI_ERROR)", abi.status_error as i64);
        for (name, class, _) in abi.errors {
            equal(&format!("MPI_ERR_{name}"), i64::from(*class));
        }
        equal("MPI_ERR_IN_STATUS", abi.in_status.into());
        equal("MPI_ERR_PENDING", abi.pending.into());
        equal("MPI_ORDER_FORTRAN", abi.order_fortran.into());
        equal("MPI_DISTRIBUTE_NONE", abi.distribute_none.into());
        equal("MPI_DISTRIBUTE_BLOCK", abi.distribute_block.into());
        equal("MPI_DISTRIBUTE_DFLT_DARG", abi.default_argument.into());
        equal("MPI_MODE_SEQUENTIAL", MODE_SEQUENTIAL.into());
        for (i, name) in ["SET", "CUR", "END"].into_iter().enumerate() {
            equal(&format!("MPI_SEEK_{name}"), i64::from(SEEK_SET) + 2 * i as i64);
        }
        for (i, name) in NAMES.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            equal(&format!("MPI_COMBINER_{name}"), i64::from(abi.first_combiner) + i as i64);
        }
        if abi.handle == 4 {
            for (name, c_type) in
                [("BYTE", "char"), ("INT", "int"), ("DOUBLE", "double"), ("INT64_T", "long")]
            {
                equal(&format!("((unsigned)MPI_{name} & 0xff000000)"), MPICH_BASIC.into());
                equal(&format!("((unsigned)MPI_{name} >> 8 & 0xff) - (long)sizeof({c_type})"), 0);
            }
        }
        assert_eq!(NAMES.len(), COMBINERS.len());
        writeln!(text, "void *ignored = (void *[]){{MPI_STATUS_IGNORE, MPI_STATUSES_IGNORE}}[0];").unwrap();
        text.replace("void *ignored", "int main(void) { void *ignored")
            + "return ignored != (void *)"
            + &format!("{}UL; }}\n", abi.status_ignore)
    }

    fn check_against_headers(compiler: &str, abi: &Abi) {
        if Command::new(compiler).arg("-show").output().is_err() {
            eprintln!("{compiler} IS SKIPPED: not installed");
            return;
        }
        let stem = std::env::temp_dir().join(format!("miot-abi-{}-{compiler}", std::process::id()));
        let source = stem.with_extension("c");
        std::fs::write(&source, assertions(abi)).unwrap();
        let compiled = Command::new(compiler).arg("-w").arg("-o").arg(&stem).arg(&source).output().unwrap();
        assert!(compiled.status.success(), "{compiler}: {}", String::from_utf8_lossy(&compiled.stderr));
        assert!(Command::new(&stem).status().unwrap().success(), "{compiler}: MPI_STATUS_IGNORE differs");
        std::fs::remove_file(source).unwrap();
        std::fs::remove_file(stem).unwrap();
    }

    #[test]
    fn tables_agree_with_the_headers() {
        check_against_headers("mpicc.mpich", &Abi::MPICH);
        check_against_headers("mpicc.openmpi", &Abi::open_mpi(std::ptr::null_mut()));
    }
}

//! MPI, loaded at run time: the library of the launcher. The build of MIOT needs no MPI headers.
//!
//! The crate `mpi` has no functions for files; a build with it needs libclang, and the program
//! works with one MPI only. This module supports the same two binary interfaces as the MPI hook:
//! that of MPICH (also Intel MPI, MVAPICH, Cray MPICH) and that of Open MPI. Handles are passed
//! unchanged, in whole registers.
//!
//! One thread makes all calls.

mod file;
mod member;

pub(crate) use file::SharedFile;
pub(crate) use member::{CoordinatorSide, MpiMember};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// A handle: an integer in the lower half (MPICH), or a pointer (Open MPI).
type Handle = usize;

/// Environment variable with the name of the library, for other launchers.
const LIBRARY_VARIABLE: &str = "MIOT_MPI_LIBRARY";

/// Why MPI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// No library can be loaded.
    #[error("cannot load MPI ({tried}): {why}; set {LIBRARY_VARIABLE} to the library of your mpiexec")]
    NotFound {
        /// Names that were tried.
        tried: String,
        /// Error of the loader for the last one.
        why: String,
    },
    /// The library has neither of the two interfaces.
    #[error("this MPI is neither MPICH nor Open MPI, nor compatible with one of them ({0})")]
    Unknown(String),
    /// A function failed.
    #[error("{function}: {why}")]
    Call {
        /// Name of the function.
        function: &'static str,
        /// Error text of MPI.
        why: String,
    },
    /// More bytes than a count of MPI can hold.
    #[error("{0} bytes in one call: MPI counts up to 2147483647; use smaller blocks")]
    TooLong(usize),
}

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions that MIOT calls, with handles as whole registers.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, MpiError> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the type is the prototype of this function in MPI 3.1.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        *found.map_err(|_| MpiError::Unknown(format!("it has no {}", $symbol)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    init: "MPI_Init" (*mut c_int, *mut c_void);
    finalize: "MPI_Finalize" ();
    comm_rank: "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size: "MPI_Comm_size" (Handle, *mut c_int);
    barrier: "MPI_Barrier" (Handle);
    bcast: "MPI_Bcast" (*mut c_void, c_int, Handle, c_int, Handle);
    gather: "MPI_Gather" (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle);
    gatherv: "MPI_Gatherv" (*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, c_int, Handle);
    error_string: "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    get_count: "MPI_Get_count" (*const Status, Handle, *mut c_int);
    type_create_hindexed: "MPI_Type_create_hindexed" (c_int, *const c_int, *const i64, Handle, *mut Handle);
    type_create_resized: "MPI_Type_create_resized" (Handle, i64, i64, *mut Handle);
    type_commit: "MPI_Type_commit" (*mut Handle);
    type_free: "MPI_Type_free" (*mut Handle);
    file_open: "MPI_File_open" (Handle, *const c_char, c_int, Handle, *mut Handle);
    file_close: "MPI_File_close" (*mut Handle);
    file_set_view: "MPI_File_set_view" (Handle, i64, Handle, Handle, *const c_char, Handle);
    file_sync: "MPI_File_sync" (Handle);
    read_at: "MPI_File_read_at" (Handle, i64, *mut c_void, c_int, Handle, *mut Status);
    read_at_all: "MPI_File_read_at_all" (Handle, i64, *mut c_void, c_int, Handle, *mut Status);
    write_at: "MPI_File_write_at" (Handle, i64, *const c_void, c_int, Handle, *mut Status);
    write_at_all: "MPI_File_write_at_all" (Handle, i64, *const c_void, c_int, Handle, *mut Status);
}

/// Memory for a status of either MPI.
#[repr(C, align(8))]
struct Status([u8; 24]);

/// Handles of predefined objects.
struct Constants {
    /// `MPI_COMM_WORLD`.
    world: Handle,
    /// `MPI_COMM_SELF`.
    own: Handle,
    byte: Handle,
    no_info: Handle,
}

impl Constants {
    const MPICH: Constants =
        Constants { world: 0x4400_0000, own: 0x4400_0001, byte: 0x4c00_010d, no_info: 0x1c00_0000 };

    fn of(library: &Library) -> Constants {
        let object = |name: &str| -> Option<Handle> {
            // SAFETY: only the address of the object is used.
            let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
            found.ok().map(|object| object.into_raw() as Handle)
        };
        let names = ["ompi_mpi_comm_world", "ompi_mpi_comm_self", "ompi_mpi_byte", "ompi_mpi_info_null"];
        match names.map(object) {
            [Some(world), Some(own), Some(byte), Some(no_info)] => Constants { world, own, byte, no_info },
            _ => Constants::MPICH,
        }
    }
}

/// The initialized MPI library.
pub struct Mpi {
    functions: Functions,
    constants: Constants,
    /// Keeps the functions loaded.
    _library: [Library; 2],
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Mpi").finish_non_exhaustive()
    }
}

/// Returns the names of the library in the order in which they are tried, by the environment that
/// the launcher has set.
fn library_names() -> Vec<String> {
    if let Ok(chosen) = std::env::var(LIBRARY_VARIABLE) {
        return vec![chosen];
    }
    let mpich = ["libmpich.so.12", "libmpi.so.12"];
    let open_mpi = ["libmpi.so.40"];
    let names = if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        [&open_mpi[..], &mpich].concat()
    } else {
        [&mpich[..], &open_mpi].concat()
    };
    names.into_iter().map(str::to_owned).collect()
}

impl Mpi {
    /// Loads the library of the launcher and initializes it. [`finalize`](Mpi::finalize) must be
    /// called at the end.
    ///
    /// # Errors
    /// [`MpiError`].
    pub fn init() -> Result<Mpi, MpiError> {
        let names = library_names();
        let mut why = String::new();
        let load = |name: &String| {
            // SAFETY: an MPI library, whose initializers may run. Its symbols are global because
            // its plug-ins look them up in the program.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }
                .map_err(|error| why = error.to_string())
                .ok()
        };
        let Some(library) = names.iter().find_map(load) else {
            return Err(MpiError::NotFound { tried: names.join(", "), why });
        };
        // Symbols are found as calls of the program find them: those of a preloaded hook come
        // first.
        let program = Library::this();
        let mpi = Mpi {
            functions: Functions::of(&program)?,
            constants: Constants::of(&program),
            _library: [library, program],
        };
        // SAFETY:
        // - null pointers: there are no arguments to parse;
        // - this is the first call of MPI, and no other thread makes one.
        mpi.check("MPI_Init", unsafe { (mpi.functions.init)(null_mut(), null_mut()) })?;
        Ok(mpi)
    }

    /// Finalizes MPI.
    ///
    /// # Errors
    /// [`MpiError::Call`].
    pub fn finalize(&self) -> Result<(), MpiError> {
        // SAFETY: MPI is initialized, see `init`.
        self.check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    /// Returns an error if the return code of a function is not `MPI_SUCCESS`.
    fn check(&self, function: &'static str, code: c_int) -> Result<(), MpiError> {
        /// Bytes; larger than `MPI_MAX_ERROR_STRING` of either MPI.
        const MAX_ERROR_TEXT: usize = 8192;
        if code == 0 {
            return Ok(());
        }
        let mut text = vec![0u8; MAX_ERROR_TEXT];
        let mut length = 0;
        // SAFETY: the buffer holds any error text.
        let returned =
            unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &raw mut length) };
        text.truncate(if returned == 0 { usize::try_from(length).unwrap_or(0) } else { 0 });
        Err(MpiError::Call { function, why: String::from_utf8_lossy(&text).trim().to_owned() })
    }

    fn rank(&self) -> Result<usize, MpiError> {
        let mut rank = 0;
        // SAFETY:
        // - MPI is initialized, see `init`;
        // - the communicator is one of this MPI;
        // - `rank` is valid for writes.
        self.check("MPI_Comm_rank", unsafe {
            (self.functions.comm_rank)(self.constants.world, &raw mut rank)
        })?;
        Ok(rank as usize)
    }

    /// Number of launched processes.
    ///
    /// # Errors
    /// [`MpiError::Call`].
    pub fn size(&self) -> Result<usize, MpiError> {
        let mut size = 0;
        // SAFETY: as in `rank`.
        self.check("MPI_Comm_size", unsafe {
            (self.functions.comm_size)(self.constants.world, &raw mut size)
        })?;
        Ok(size as usize)
    }

    fn barrier(&self) -> Result<(), MpiError> {
        // SAFETY: as in `rank`.
        self.check("MPI_Barrier", unsafe { (self.functions.barrier)(self.constants.world) })
    }

    /// Copies the bytes of rank 0 to all ranks.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), MpiError> {
        let (count, world) = (count(bytes.len())?, self.constants.world);
        // SAFETY: as in `rank`; `bytes` is valid for reads and writes of `count` bytes.
        self.check("MPI_Bcast", unsafe {
            (self.functions.bcast)(address_mut(bytes), count, self.constants.byte, 0, world)
        })
    }

    /// Returns the bytes of each rank, in order, at rank 0 (`is_root`); elsewhere nothing.
    fn gather(&self, bytes: &[u8], is_root: bool) -> Result<Vec<Vec<u8>>, MpiError> {
        let (byte, world) = (self.constants.byte, self.constants.world);
        let own = count(bytes.len())?;
        let mut lengths: Vec<c_int> = vec![0; if is_root { self.size()? } else { 0 }];
        // SAFETY: as in `rank`; each rank sends four bytes, and `lengths` at rank 0 holds those of
        // all ranks.
        self.check("MPI_Gather", unsafe {
            (self.functions.gather)(
                (&raw const own).cast(),
                4,
                byte,
                address_mut(&mut lengths),
                4,
                byte,
                0,
                world,
            )
        })?;
        let mut end = 0;
        let mut begin = |length: &c_int| {
            end += length;
            end - length
        };
        let begins: Vec<c_int> = lengths.iter().map(&mut begin).collect();
        let mut all = vec![0u8; end as usize];
        // SAFETY: as above; each rank sends the length that it has announced, and `all` holds the
        // sum.
        self.check("MPI_Gatherv", unsafe {
            (self.functions.gatherv)(
                if bytes.is_empty() { null() } else { bytes.as_ptr().cast() },
                own,
                byte,
                address_mut(&mut all),
                lengths.as_ptr(),
                begins.as_ptr(),
                byte,
                0,
                world,
            )
        })?;
        let of = |(begin, length): (&c_int, &c_int)| all[*begin as usize..(begin + length) as usize].to_vec();
        Ok(begins.iter().zip(&lengths).map(of).collect())
    }
}

/// Address of a slice; null for an empty one, whose dangling address could equal `MPI_IN_PLACE` of
/// Open MPI.
fn address_mut<T>(all: &mut [T]) -> *mut c_void {
    if all.is_empty() { null_mut() } else { all.as_mut_ptr().cast() }
}

/// Converts a length to a count of MPI.
fn count(bytes: usize) -> Result<c_int, MpiError> {
    c_int::try_from(bytes).map_err(|_| MpiError::TooLong(bytes))
}

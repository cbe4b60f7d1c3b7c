//! MPI, found when the program runs: the library that the launcher uses, without its headers when MIOT is built.
//!
//! The crate `mpi` has nothing for files, and a program that is built with it needs libclang and works with one MPI only. Here the two binary
//! interfaces are known that the MPI hook knows too: MPICH's (also of Intel MPI, MVAPICH, Cray MPICH) and Open MPI's. Handles are
//! passed as they come, in whole registers.
//!
//! All calls are made by one thread.

mod file;
mod member;

pub(crate) use file::SharedFile;
pub(crate) use member::{Everyone, Member};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// A handle: an integer in the low half, or a pointer.
type Handle = usize;

/// Environment variable that names the library, for launchers that are not known.
const CHOSEN: &str = "MIOT_MPI_LIBRARY";

/// Why MPI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// No library.
    #[error("cannot load MPI ({tried}): {why}; set {CHOSEN} to the library of your mpiexec")]
    NotFound {
        /// Which names.
        tried: String,
        /// What the loader says of the last one.
        why: String,
    },
    /// It is none of the two that are known.
    #[error("this MPI is neither MPICH nor Open MPI, nor compatible with one of them ({0})")]
    Unknown(String),
    /// A function has failed.
    #[error("{function}: {why}")]
    Call {
        /// Which.
        function: &'static str,
        /// What MPI says.
        why: String,
    },
    /// More than MPI can count.
    #[error("{0} bytes in one call: MPI counts to 2147483647; make blocks smaller")]
    TooLong(usize),
}

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions that are needed, with handles as whole registers.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, Failed> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the prototype of this function in MPI 3.1.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        *found.map_err(|_| Failed::Unknown(format!("it has no {}", $symbol)))?
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

/// Room for a status of either MPI.
#[repr(C, align(8))]
struct Status([u8; 24]);

/// What names stand for.
struct Constants {
    world: Handle,
    own: Handle,
    byte: Handle,
    no_info: Handle,
}

impl Constants {
    const MPICH: Constants =
        Constants { world: 0x4400_0000, own: 0x4400_0001, byte: 0x4c00_010d, no_info: 0x1c00_0000 };

    fn of(library: &Library) -> Constants {
        let object = |name: &str| -> Option<Handle> {
            // SAFETY: only the address of the object is taken.
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

/// MPI, initialized.
pub struct Mpi {
    functions: Functions,
    constants: Constants,
    /// Functions are used as long as this is.
    _library: [Library; 2],
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Mpi").finish_non_exhaustive()
    }
}

/// Names of the library, by what the launcher has left in the environment.
fn names() -> Vec<String> {
    if let Ok(chosen) = std::env::var(CHOSEN) {
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
    /// Loads the library of the launcher and joins the others that were launched. [`finalize`](Mpi::finalize) must be called in the end.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn init() -> Result<Mpi, Failed> {
        let names = names();
        let mut why = String::new();
        let load = |name: &String| {
            // SAFETY: a library that is meant to be loaded; global, as its own plug-ins look its symbols up in the program.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }
                .map_err(|error| why = error.to_string())
                .ok()
        };
        let Some(library) = names.iter().find_map(load) else {
            return Err(Failed::NotFound { tried: names.join(", "), why });
        };
        // As the program's own calls would find them: those of a hook that is preloaded come first.
        let program = Library::this();
        let mpi = Mpi {
            functions: Functions::of(&program)?,
            constants: Constants::of(&program),
            _library: [library, program],
        };
        // SAFETY: no arguments to be parsed; it is the first call, and no other thread makes any.
        mpi.check("MPI_Init", unsafe { (mpi.functions.init)(null_mut(), null_mut()) })?;
        Ok(mpi)
    }

    /// Leaves the others.
    ///
    /// # Errors
    /// [`Failed::Call`].
    pub fn finalize(&self) -> Result<(), Failed> {
        // SAFETY: initialized, see `init`.
        self.check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), Failed> {
        /// More than any MPI's `MPI_MAX_ERROR_STRING`.
        const ROOM: usize = 8192;
        if code == 0 {
            return Ok(());
        }
        let mut text = vec![0u8; ROOM];
        let mut length = 0;
        // SAFETY: room enough for any.
        let said = unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &raw mut length) };
        text.truncate(if said == 0 { usize::try_from(length).unwrap_or(0) } else { 0 });
        Err(Failed::Call { function, why: String::from_utf8_lossy(&text).trim().to_owned() })
    }

    fn rank(&self) -> Result<usize, Failed> {
        let mut rank = 0;
        // SAFETY: initialized, see `init`; a communicator of this MPI.
        self.check("MPI_Comm_rank", unsafe {
            (self.functions.comm_rank)(self.constants.world, &raw mut rank)
        })?;
        Ok(rank as usize)
    }

    /// How many were launched.
    ///
    /// # Errors
    /// [`Failed::Call`].
    pub fn size(&self) -> Result<usize, Failed> {
        let mut size = 0;
        // SAFETY: as in `rank`.
        self.check("MPI_Comm_size", unsafe {
            (self.functions.comm_size)(self.constants.world, &raw mut size)
        })?;
        Ok(size as usize)
    }

    fn barrier(&self) -> Result<(), Failed> {
        // SAFETY: as in `rank`.
        self.check("MPI_Barrier", unsafe { (self.functions.barrier)(self.constants.world) })
    }

    /// The bytes of rank 0, everywhere.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Failed> {
        let (count, world) = (count(bytes.len())?, self.constants.world);
        // SAFETY: as in `rank`; so many bytes.
        self.check("MPI_Bcast", unsafe {
            (self.functions.bcast)(address_mut(bytes), count, self.constants.byte, 0, world)
        })
    }

    /// What each rank has, in order, at rank 0; elsewhere nothing.
    fn gather(&self, bytes: &[u8], is_root: bool) -> Result<Vec<Vec<u8>>, Failed> {
        let (byte, world) = (self.constants.byte, self.constants.world);
        let own = count(bytes.len())?;
        let mut lengths: Vec<c_int> = vec![0; if is_root { self.size()? } else { 0 }];
        // SAFETY: as in `rank`; four bytes of each rank, for which there is room at rank 0.
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
        // SAFETY: as above, of each rank as many as it has told.
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

/// Where so many are: of none it would be a number that is `MPI_IN_PLACE` for Open MPI.
fn address_mut<T>(all: &mut [T]) -> *mut c_void {
    if all.is_empty() { null_mut() } else { all.as_mut_ptr().cast() }
}

fn count(bytes: usize) -> Result<c_int, Failed> {
    c_int::try_from(bytes).map_err(|_| Failed::TooLong(bytes))
}

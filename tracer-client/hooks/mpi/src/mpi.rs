//! Calls that the hooks make to MPI: local calls only, with arguments that MPI has just accepted.
//!
//! None of them communicates. None of them can fail and thereby call an error handler of the
//! program: communicator and datatype come from a call that has succeeded, the file is open, and
//! positions are not queried for files opened for sequential access.

use crate::abi::{Abi, Handle, MODE_SEQUENTIAL, SUCCESS, Status};
use crate::real::next_symbol;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

macro_rules! functions {
    ($($field:ident $name:literal ($($type:ty),*);)*) => {
        /// The loaded MPI.
        pub(crate) struct Mpi {
            pub(crate) abi: Abi,
            $($field: unsafe extern "C" fn($($type),*) -> c_int,)*
            /// Present since MPI 4, where the call without `_c` refuses types made with large
            /// counts.
            envelope_c: Option<unsafe extern "C" fn(Handle, *mut i64, *mut i64, *mut i64, *mut i64, *mut c_int) -> c_int>,
        }

        impl Mpi {
            fn find() -> Option<Mpi> {
                let abi = Abi::loaded()?;
                let find = |name: &CStr| Some(next_symbol(name)).filter(|at| !at.is_null());
                // SAFETY:
                // - A function of one of these names has this prototype in every MPI.
                unsafe {
                    Some(Mpi {
                        abi,
                        $($field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(find($name)?),)*
                        envelope_c: find(c"PMPI_Type_get_envelope_c").map(|at| std::mem::transmute(at)),
                    })
                }
            }
        }
    };
}

functions! {
    comm_rank c"PMPI_Comm_rank" (Handle, *mut c_int);
    comm_size c"PMPI_Comm_size" (Handle, *mut c_int);
    type_size c"PMPI_Type_size_x" (Handle, *mut i64);
    type_extent c"PMPI_Type_get_extent_x" (Handle, *mut i64, *mut i64);
    type_envelope c"PMPI_Type_get_envelope" (Handle, *mut c_int, *mut c_int, *mut c_int, *mut c_int);
    type_contents c"PMPI_Type_get_contents" (Handle, c_int, c_int, c_int, *mut c_int, *mut isize, *mut c_void);
    type_free c"PMPI_Type_free" (*mut c_void);
    byte_offset c"PMPI_File_get_byte_offset" (Handle, i64, *mut i64);
    position c"PMPI_File_get_position" (Handle, *mut i64);
    elements c"PMPI_Get_elements_x" (*const c_void, Handle, *mut i64);
    error_class c"PMPI_Error_class" (c_int, *mut c_int);
}

/// Returns the loaded MPI, if its binary interface is known. Must be called within a call of MPI.
pub(crate) fn mpi() -> Option<&'static Mpi> {
    static MPI: OnceLock<Option<Mpi>> = OnceLock::new();
    MPI.get_or_init(Mpi::find).as_ref()
}

/// Number of constructor arguments of a datatype, and its combiner (`MPI_Type_get_envelope`).
pub(crate) struct Envelope {
    integers: usize,
    addresses: usize,
    datatypes: usize,
    /// Number of the combiner in this MPI, see [`Abi::combiner`].
    pub(crate) combiner: c_int,
}

/// Constructor arguments of a datatype (`MPI_Type_get_contents`).
pub(crate) struct Contents {
    pub(crate) integers: Vec<c_int>,
    pub(crate) addresses: Vec<isize>,
    /// New references, which must be freed unless they are predefined types.
    pub(crate) datatypes: Vec<Handle>,
}

impl Mpi {
    /// Returns this process's rank in a communicator, and the communicator's size.
    pub(crate) fn communicator(&self, comm: Handle) -> (u32, u32) {
        let (mut rank, mut size) = (0, 0);
        // SAFETY:
        // - `comm` is a communicator that a call of MPI has just accepted.
        // - `rank` and `size` are writable.
        unsafe {
            (self.comm_rank)(comm, &raw mut rank);
            (self.comm_size)(comm, &raw mut size);
        }
        (rank.max(0) as u32, size.max(0) as u32)
    }

    /// Returns the size in bytes of a datatype that MPI has just accepted.
    pub(crate) fn size(&self, datatype: Handle) -> Option<u64> {
        let mut size = -1;
        // SAFETY:
        // - `datatype` is valid.
        // - `size` is writable.
        let is_known = unsafe { (self.type_size)(datatype, &raw mut size) } == SUCCESS;
        u64::try_from(size).ok().filter(|_| is_known)
    }

    /// Returns the extent in bytes of a datatype that MPI has just accepted.
    pub(crate) fn extent(&self, datatype: Handle) -> Option<i64> {
        let (mut lower, mut extent) = (0, -1);
        // SAFETY:
        // - `datatype` is valid.
        // - `lower` and `extent` are writable.
        let is_known = unsafe { (self.type_extent)(datatype, &raw mut lower, &raw mut extent) } == SUCCESS;
        is_known.then_some(extent)
    }

    /// Converts an offset in elementary types to a byte offset in the file.
    pub(crate) fn byte_offset(&self, fh: Handle, amode: c_int, etypes: i64) -> Option<u64> {
        if amode & MODE_SEQUENTIAL != 0 || etypes < 0 {
            return None;
        }
        let mut bytes = -1;
        // SAFETY:
        // - `fh` is an open file that has positions.
        // - `etypes` is not negative, so that MPI accepts it.
        // - `bytes` is writable.
        let is_known = unsafe { (self.byte_offset)(fh, etypes, &raw mut bytes) } == SUCCESS;
        u64::try_from(bytes).ok().filter(|_| is_known)
    }

    /// Returns the individual file pointer, in elementary types.
    pub(crate) fn position(&self, fh: Handle, amode: c_int) -> Option<i64> {
        if amode & MODE_SEQUENTIAL != 0 {
            return None;
        }
        let mut etypes = -1;
        // SAFETY:
        // - `fh` is an open file that has positions.
        // - `etypes` is writable.
        let is_known = unsafe { (self.position)(fh, &raw mut etypes) } == SUCCESS;
        Some(etypes).filter(|etypes| is_known && *etypes >= 0)
    }

    /// Returns the number of bytes moved by a request that has succeeded; 0 if MPI does not know
    /// it.
    ///
    /// # Safety
    /// - `status` points to the status of such a request.
    pub(crate) unsafe fn bytes_moved(&self, status: *const c_void) -> i64 {
        let mut bytes = -1;
        // SAFETY:
        // - `status` is valid, by the contract of this function.
        // - `byte` is the handle of `MPI_BYTE`.
        // - `bytes` is writable.
        unsafe { (self.elements)(status, self.abi.byte, &raw mut bytes) };
        bytes.max(0)
    }

    /// Converts the return value of a call of MPI to −errno, or 0 for success.
    pub(crate) fn result(&self, returned: c_int) -> i64 {
        if returned == SUCCESS {
            return 0;
        }
        -i64::from(self.abi.errno(self.class(returned)))
    }

    /// Returns the error class of the return value of a call of MPI.
    pub(crate) fn class(&self, returned: c_int) -> c_int {
        let mut class = returned;
        if returned != SUCCESS {
            // SAFETY:
            // - `returned` is an error code that a call of MPI has returned.
            // - `class` is writable.
            unsafe { (self.error_class)(returned, &raw mut class) };
        }
        class
    }

    /// Returns the program's status, or `own` if the program ignores the status.
    pub(crate) fn status_or_own(&self, given: *mut c_void, own: &mut Status) -> *mut c_void {
        if given as usize == self.abi.status_ignore { own.0.as_mut_ptr().cast() } else { given }
    }

    /// Returns the envelope of a datatype; `None` if MPI cannot decode the datatype.
    pub(crate) fn envelope(&self, datatype: Handle) -> Option<Envelope> {
        let mut combiner = 0;
        if let Some(envelope) = self.envelope_c {
            let mut counts = [0i64; 4];
            let [integers, addresses, large, datatypes] = &mut counts;
            // SAFETY:
            // - `datatype` is valid.
            // - The counts and `combiner` are writable.
            if unsafe { envelope(datatype, integers, addresses, large, datatypes, &raw mut combiner) }
                != SUCCESS
            {
                return None;
            }
            let [integers, addresses, large, datatypes] = counts.map(|count| count as usize);
            return (large == 0).then_some(Envelope { integers, addresses, datatypes, combiner });
        }
        let mut counts = [0; 3];
        let [integers, addresses, datatypes] = &mut counts;
        // SAFETY:
        // - `datatype` is valid.
        // - The counts and `combiner` are writable.
        let returned =
            unsafe { (self.type_envelope)(datatype, integers, addresses, datatypes, &raw mut combiner) };
        let [integers, addresses, datatypes] = counts.map(|count| count as usize);
        (returned == SUCCESS).then_some(Envelope { integers, addresses, datatypes, combiner })
    }

    /// Returns the constructor arguments of a derived datatype.
    pub(crate) fn contents(&self, datatype: Handle, envelope: &Envelope) -> Option<Contents> {
        let mut integers = vec![0; envelope.integers.max(1)];
        let mut addresses = vec![0; envelope.addresses.max(1)];
        // The elements have the size of a pointer, the largest handle of any MPI.
        let mut handles = vec![0usize; envelope.datatypes.max(1)];
        // SAFETY:
        // - `datatype` is a derived datatype.
        // - The three arrays have the lengths that its envelope requires.
        let returned = unsafe {
            (self.type_contents)(
                datatype,
                envelope.integers as c_int,
                envelope.addresses as c_int,
                envelope.datatypes as c_int,
                integers.as_mut_ptr(),
                addresses.as_mut_ptr(),
                handles.as_mut_ptr().cast(),
            )
        };
        if returned != SUCCESS {
            return None;
        }
        let first = handles.as_ptr().cast::<u8>();
        // SAFETY:
        // - `i` is less than the number of handles that the call has written.
        let datatypes = (0..envelope.datatypes)
            .map(|i| unsafe { self.abi.read_handle(first.add(i * self.abi.handle).cast()) })
            .collect();
        Some(Contents { integers, addresses, datatypes })
    }

    /// Frees a derived datatype of [`contents`](Self::contents).
    pub(crate) fn free(&self, datatype: Handle) {
        let mut datatype = datatype;
        // SAFETY:
        // - `datatype` is a reference that `contents` has returned and that nothing else uses.
        // - On a little-endian machine an integer handle is at the address of the word that holds
        //   it.
        unsafe { (self.type_free)((&raw mut datatype).cast()) };
    }
}

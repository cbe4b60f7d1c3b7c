//! What the hooks ask of MPI: local calls only, with arguments that MPI itself has just accepted.
//!
//! None of these communicates, and none can fail and so call an error handler of the program: communicator and datatype
//! come from a call that has succeeded, a file is open, and positions are not asked of files opened for sequential access.

use crate::abi::{Abi, Handle, MODE_SEQUENTIAL, SUCCESS, Status};
use crate::real::next;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

macro_rules! functions {
    ($($field:ident $name:literal ($($type:ty),*);)*) => {
        /// The MPI that is loaded.
        pub(crate) struct Mpi {
            pub(crate) abi: Abi,
            $($field: unsafe extern "C" fn($($type),*) -> c_int,)*
            /// Present from MPI 4 on. There the call without it refuses types that were made with large counts.
            envelope_c: Option<unsafe extern "C" fn(Handle, *mut i64, *mut i64, *mut i64, *mut i64, *mut c_int) -> c_int>,
        }

        impl Mpi {
            fn find() -> Option<Mpi> {
                let abi = Abi::loaded()?;
                let find = |name: &CStr| Some(next(name)).filter(|at| !at.is_null());
                // SAFETY: functions of these names have these prototypes.
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

/// The MPI that is loaded, if it is one that is known. To be asked in a call of MPI.
pub(crate) fn mpi() -> Option<&'static Mpi> {
    static MPI: OnceLock<Option<Mpi>> = OnceLock::new();
    MPI.get_or_init(Mpi::find).as_ref()
}

impl Mpi {
    /// Rank in a communicator, and its size.
    pub(crate) fn communicator(&self, comm: Handle) -> (u32, u32) {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a communicator that a file has just been opened with.
        unsafe {
            (self.comm_rank)(comm, &raw mut rank);
            (self.comm_size)(comm, &raw mut size);
        }
        (rank.max(0) as u32, size.max(0) as u32)
    }

    /// Bytes of a datatype that MPI has just accepted.
    pub(crate) fn size(&self, datatype: Handle) -> Option<u64> {
        let mut size = -1;
        // SAFETY: a valid datatype.
        let known = unsafe { (self.type_size)(datatype, &raw mut size) } == SUCCESS;
        u64::try_from(size).ok().filter(|_| known)
    }

    /// Extent of a datatype that MPI has just accepted.
    pub(crate) fn extent(&self, datatype: Handle) -> Option<i64> {
        let (mut lower, mut extent) = (0, -1);
        // SAFETY: a valid datatype.
        let known = unsafe { (self.type_extent)(datatype, &raw mut lower, &raw mut extent) } == SUCCESS;
        known.then_some(extent)
    }

    /// Byte offset in the file of an offset in elementary types.
    pub(crate) fn byte_offset(&self, fh: Handle, amode: c_int, etypes: i64) -> Option<u64> {
        if amode & MODE_SEQUENTIAL != 0 || etypes < 0 {
            return None;
        }
        let mut bytes = -1;
        // SAFETY: an open file with positions, and an offset that is none of what MPI refuses.
        let known = unsafe { (self.byte_offset)(fh, etypes, &raw mut bytes) } == SUCCESS;
        u64::try_from(bytes).ok().filter(|_| known)
    }

    /// The individual file pointer, in elementary types.
    pub(crate) fn position(&self, fh: Handle, amode: c_int) -> Option<i64> {
        if amode & MODE_SEQUENTIAL != 0 {
            return None;
        }
        let mut etypes = -1;
        // SAFETY: an open file with positions.
        let known = unsafe { (self.position)(fh, &raw mut etypes) } == SUCCESS;
        Some(etypes).filter(|etypes| known && *etypes >= 0)
    }

    /// Bytes moved, of the status of a request that has succeeded; 0 where MPI does not say.
    ///
    /// # Safety
    /// `status` points to such a status.
    pub(crate) unsafe fn bytes(&self, status: *const c_void) -> i64 {
        let mut bytes = -1;
        // SAFETY: by the contract of this function.
        unsafe { (self.elements)(status, self.abi.byte, &raw mut bytes) };
        bytes.max(0)
    }

    /// −errno for what a call of MPI has returned, 0 for success.
    pub(crate) fn result(&self, returned: c_int) -> i64 {
        if returned == SUCCESS {
            return 0;
        }
        -i64::from(self.abi.errno(self.class(returned)))
    }

    /// The error class of what a call of MPI has returned.
    pub(crate) fn class(&self, returned: c_int) -> c_int {
        let mut class = returned;
        if returned != SUCCESS {
            // SAFETY: takes any code that a call has returned.
            unsafe { (self.error_class)(returned, &raw mut class) };
        }
        class
    }

    /// Which status to pass where the program ignores it: one of ours.
    pub(crate) fn status(&self, given: *mut c_void, ours: &mut Status) -> *mut c_void {
        if given as usize == self.abi.status_ignore { ours.0.as_mut_ptr().cast() } else { given }
    }

    /// How many integers, addresses and datatypes a datatype was made of, and the number of its combiner. `None`: it cannot
    /// be taken apart.
    pub(crate) fn envelope(&self, datatype: Handle) -> Option<([usize; 3], c_int)> {
        let mut combiner = 0;
        if let Some(envelope) = self.envelope_c {
            let mut counts = [0i64; 4];
            let [integers, addresses, large, datatypes] = &mut counts;
            // SAFETY: a valid datatype.
            if unsafe { envelope(datatype, integers, addresses, large, datatypes, &raw mut combiner) }
                != SUCCESS
            {
                return None;
            }
            let [integers, addresses, large, datatypes] = counts.map(|count| count as usize);
            return (large == 0).then_some(([integers, addresses, datatypes], combiner));
        }
        let mut counts = [0; 3];
        let [integers, addresses, datatypes] = &mut counts;
        // SAFETY: a valid datatype.
        let known =
            unsafe { (self.type_envelope)(datatype, integers, addresses, datatypes, &raw mut combiner) };
        (known == SUCCESS).then_some((counts.map(|count| count as usize), combiner))
    }

    /// What a derived datatype was made of, as many as [`envelope`](Self::envelope) says. The datatypes are new references.
    pub(crate) fn contents(
        &self,
        datatype: Handle,
        counts: [usize; 3],
    ) -> Option<(Vec<c_int>, Vec<isize>, Vec<Handle>)> {
        let [integers, addresses, datatypes] = counts;
        let (mut ints, mut addrs) = (vec![0; integers.max(1)], vec![0; addresses.max(1)]);
        // Room for pointers, whatever a handle is.
        let mut types = vec![0usize; datatypes.max(1)];
        // SAFETY: a derived datatype, and room for what it was made of.
        let known = unsafe {
            (self.type_contents)(
                datatype,
                integers as c_int,
                addresses as c_int,
                datatypes as c_int,
                ints.as_mut_ptr(),
                addrs.as_mut_ptr(),
                types.as_mut_ptr().cast(),
            )
        };
        if known != SUCCESS {
            return None;
        }
        let first = types.as_ptr().cast::<u8>();
        // SAFETY: so many handles were written.
        let handles =
            (0..datatypes).map(|i| unsafe { self.abi.read_handle(first.add(i * self.abi.handle).cast()) });
        Some((ints, addrs, handles.collect()))
    }

    /// Gives back a derived datatype of [`contents`](Self::contents).
    pub(crate) fn free(&self, datatype: Handle) {
        let mut datatype = datatype;
        // SAFETY: a reference of ours; on a little-endian machine an integer handle lies at the same address.
        unsafe { (self.type_free)((&raw mut datatype).cast()) };
    }
}

//! Doing things as the caller: who owns what is made, and which bits a write takes away.
//!
//! Whether the caller may do it the kernel has decided before it asks (`default_permissions`), with all of the caller's
//! groups. So what is made here is made with the caller's user and group, which the file system below gives to the new file,
//! but with root's capabilities, so that the groups that are not known here are not missed.
//! Everything here is of one thread: Linux has credentials and, after `unshare`, the file mode mask by thread.

use fuser::Request;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities};
use std::cell::Cell;

thread_local! {
    static OWN_MASK: Cell<bool> = const { Cell::new(false) };
    /// The thread has `CAP_FSETID`.
    static KEEPS: Cell<bool> = const { Cell::new(true) };
}

/// Who serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// What root has; `None` for another user, to whom everything belongs that is made.
    capabilities: Option<CapabilitySets>,
}

impl Server {
    /// # Errors
    /// If this thread cannot have a file mode mask of its own.
    pub(crate) fn new() -> rustix::io::Result<Server> {
        own_mask()?;
        let root = rustix::process::geteuid().is_root();
        Ok(Server { capabilities: if root { Some(capabilities(None)?) } else { None } })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.capabilities.is_some()
    }

    /// Makes something new as the caller, with the caller's mask.
    pub(crate) fn making<T>(
        &self,
        request: &Request,
        mask: u32,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        own_mask()?;
        rustix::process::umask(Mode::from_raw_mode(mask & 0o777));
        let Some(sets) = self.capabilities else { return make() };
        let (uid, gid) = (request.uid(), request.gid());
        if uid == u32::MAX || gid == u32::MAX {
            // A user of another namespace that is nobody here.
            return Err(Errno::OVERFLOW);
        }
        self.keep_bits(true);
        if uid == 0 && gid == 0 {
            return make();
        }
        let _back = Back;
        // SAFETY: changes the ids of this thread alone, which nobody else relies on; `Back` undoes it.
        let was = unsafe {
            libc::setfsgid(gid);
            libc::setfsuid(uid);
            // An id that cannot be set changes nothing and says what is.
            (libc::setfsgid(u32::MAX) as u32, libc::setfsuid(u32::MAX) as u32)
        };
        if was != (gid, uid) {
            return Err(Errno::PERM);
        }
        // Another user than root has lost those for files.
        set_capabilities(None, sets)?;
        make()
    }

    /// Whether the next change of a file's data by this thread leaves set-user-id, set-group-id bits and capabilities, as root's do.
    pub(crate) fn keep_bits(&self, keep: bool) {
        let Some(mut sets) = self.capabilities else { return };
        if KEEPS.get() != keep {
            sets.effective.set(CapabilitySet::FSETID, keep && sets.effective.contains(CapabilitySet::FSETID));
            if set_capabilities(None, sets).is_ok() {
                KEEPS.set(keep);
            }
        }
    }
}

/// Root again, with what root can do.
struct Back;

impl Drop for Back {
    fn drop(&mut self) {
        // SAFETY: as above; back to what the thread began with.
        unsafe {
            libc::setfsuid(0);
            libc::setfsgid(0);
        }
    }
}

fn own_mask() -> Result<(), Errno> {
    if !OWN_MASK.get() {
        // SAFETY: working directory, root and mask of this thread become its own; no descriptor is concerned.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
        OWN_MASK.set(true);
    }
    Ok(())
}

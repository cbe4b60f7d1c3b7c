//! Credentials of requests: the owner of new files, and the mode bits that a write clears.
//!
//! The kernel has checked the caller's permission, with all groups of the caller, before it sends a
//! request (`default_permissions`). A new file is created with the caller's user and group, which
//! the source file system assigns to it, but with root's capabilities, because the caller's
//! supplementary groups are unknown here. All changes affect one thread: Linux has credentials per
//! thread, and after `unshare` also the file mode mask.

use fuser::Request;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities};
use std::cell::Cell;

thread_local! {
    static HAS_OWN_MASK: Cell<bool> = const { Cell::new(false) };
    /// Whether the thread has `CAP_FSETID`.
    static HAS_FSETID: Cell<bool> = const { Cell::new(true) };
}

/// Effect of a change of a file's data on its set-user-id and set-group-id bits and capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetIdBits {
    /// They stay, as for a change by root.
    Keep,
    /// The kernel clears them.
    Clear,
}

impl SetIdBits {
    /// The effect of a change by the caller of a request.
    pub(crate) fn for_caller(request: &Request) -> SetIdBits {
        if request.uid() == 0 { SetIdBits::Keep } else { SetIdBits::Clear }
    }
}

/// Credentials of the process that serves the file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerCredentials {
    /// Root's capabilities; `None` for another user, who then owns every new file.
    capabilities: Option<CapabilitySets>,
}

impl ServerCredentials {
    /// Reads the credentials of this process.
    ///
    /// # Errors
    /// If this thread cannot get a file mode mask of its own, or its capabilities cannot be read.
    pub(crate) fn new() -> rustix::io::Result<ServerCredentials> {
        unshare_mask()?;
        let root = rustix::process::geteuid().is_root();
        Ok(ServerCredentials { capabilities: if root { Some(capabilities(None)?) } else { None } })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.capabilities.is_some()
    }

    /// Calls `create` with the caller's user, group and file mode mask.
    ///
    /// # Errors
    /// - `EOVERFLOW` if the caller's user or group has no id in this namespace.
    /// - `EPERM` if this thread cannot take the caller's ids.
    /// - Errors of `create`.
    pub(crate) fn as_caller<T>(
        &self,
        request: &Request,
        mask: u32,
        create: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        unshare_mask()?;
        rustix::process::umask(Mode::from_raw_mode(mask & 0o777));
        let Some(sets) = self.capabilities else { return create() };
        let (uid, gid) = (request.uid(), request.gid());
        if uid == u32::MAX || gid == u32::MAX {
            // A user of another namespace without a mapping in this one.
            return Err(Errno::OVERFLOW);
        }
        self.on_data_change(SetIdBits::Keep);
        if uid == 0 && gid == 0 {
            return create();
        }
        let _restore = RestoreRoot;
        // A call that fails changes nothing and returns the current id, so that the last two calls
        // read the ids.
        // SAFETY:
        // - The calls change ids of this thread only.
        // - No other code relies on these ids until `RestoreRoot` restores them.
        let current = unsafe {
            libc::setfsgid(gid);
            libc::setfsuid(uid);
            (libc::setfsgid(u32::MAX) as u32, libc::setfsuid(u32::MAX) as u32)
        };
        if current != (gid, uid) {
            return Err(Errno::PERM);
        }
        // The change to another user has removed the capabilities for files.
        set_capabilities(None, sets)?;
        create()
    }

    /// Sets the effect of this thread's next changes of file data on the set-id bits.
    pub(crate) fn on_data_change(&self, bits: SetIdBits) {
        let Some(mut sets) = self.capabilities else { return };
        let keep = bits == SetIdBits::Keep;
        if HAS_FSETID.get() != keep {
            sets.effective.set(CapabilitySet::FSETID, keep && sets.effective.contains(CapabilitySet::FSETID));
            if set_capabilities(None, sets).is_ok() {
                HAS_FSETID.set(keep);
            }
        }
    }
}

/// Restores root's ids when it is dropped. The kernel then restores root's capabilities for files.
struct RestoreRoot;

impl Drop for RestoreRoot {
    fn drop(&mut self) {
        // SAFETY:
        // - The calls change ids of this thread only, to those it started with.
        unsafe {
            libc::setfsuid(0);
            libc::setfsgid(0);
        }
    }
}

/// Gives this thread a file mode mask of its own.
fn unshare_mask() -> Result<(), Errno> {
    if !HAS_OWN_MASK.get() {
        // SAFETY:
        // - Only working directory, root directory and mask are unshared; the table of descriptors
        //   stays shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
        HAS_OWN_MASK.set(true);
    }
    Ok(())
}

//! Drops the privileges that a daemon does not need.
//!
//! Privileges belong to a thread and are inherited by threads that it starts. They must be dropped
//! before there is a second thread, which is checked.

use nix::unistd::User as Entry;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::ffi::CString;
use std::io;

/// Capabilities of a log-client on a node with several users: to read and write the segments of
/// other users (`DAC_OVERRIDE`), to check whether segments are still open (`LEASE`), and to verify
/// which process created a segment (`SYS_PTRACE`).
pub const LOG_CLIENT: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::LEASE).union(CapabilitySet::SYS_PTRACE);

/// Privileges cannot be dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// There is no user of this name.
    #[error("there is no user `{}`; create it, e.g. with `useradd --system`", .0.escape_debug())]
    NoUser(String),
    /// The user database cannot be read.
    #[error("cannot look up the user `{name}`: {source}")]
    UserDatabase {
        /// Name of the user.
        name: String,
        /// Error of the system.
        source: nix::errno::Errno,
    },
    /// The process has several threads; a system call would change only one of them.
    #[error("cannot drop privileges: there are {0} threads already")]
    Threads(usize),
    /// The process cannot switch to the user.
    #[error("cannot switch to the user `{name}`: {source}; start as root or as that user, or remove `user`")]
    Switch {
        /// Name of the user.
        name: String,
        /// Error of the system.
        source: Errno,
    },
    /// A step failed.
    #[error("cannot {step}: {source}")]
    Step {
        /// The step.
        step: &'static str,
        /// Error of the system.
        source: Errno,
    },
    /// All steps succeeded, but privileges remain.
    #[error("privileges were not dropped: {0:?} remain")]
    Remaining(CapabilitySets),
}

/// A user of this machine.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Finds a user by name.
    ///
    /// # Errors
    /// [`PrivilegeError::NoUser`], [`PrivilegeError::UserDatabase`].
    pub fn find(name: &str) -> Result<User, PrivilegeError> {
        let none = || PrivilegeError::NoUser(name.to_owned());
        let c_name = CString::new(name).map_err(|_| none())?;
        let failed = |source| PrivilegeError::UserDatabase { name: name.to_owned(), source };
        let entry = Entry::from_name(name).map_err(failed)?.ok_or_else(none)?;
        let groups = nix::unistd::getgrouplist(&c_name, entry.gid).map_err(failed)?;
        Ok(User {
            name: name.into(),
            uid: Uid::from_raw(entry.uid.as_raw()),
            gid: Gid::from_raw(entry.gid.as_raw()),
            groups: groups.into_iter().map(|gid| Gid::from_raw(gid.as_raw())).collect(),
        })
    }

    /// User id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Id of the user's primary group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid.as_raw()
    }
}

/// Returns the name of the user with this id; `None` if the user database does not contain it or
/// cannot be read.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    Entry::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten().map(|entry| entry.name)
}

/// Switches to `user`, if one is given, and drops all capabilities except `keep`. Programs started
/// from now on cannot gain privileges.
///
/// # Errors
/// [`PrivilegeError`]. The process must end then.
pub fn reduce_to(user: Option<&User>, keep: CapabilitySet) -> Result<(), PrivilegeError> {
    let failed = |step: &'static str| move |source: Errno| PrivilegeError::Step { step, source };
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads > 1 {
        return Err(PrivilegeError::Threads(threads));
    }
    // Read them before the process loses the right to.
    let held = capabilities(None).map_err(failed("read the capabilities"))?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
            if !keep.contains(capability) && capability_is_in_bounding_set(capability) == Ok(true) {
                remove_capability_from_bounding_set(capability).map_err(failed("bound the capabilities"))?;
            }
        }
    }
    if let Some(user) = user.filter(|user| user.uid != geteuid()) {
        become_user(user, !keep.is_empty())?;
    }
    let kept = held.permitted & keep;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    // Services may not make the call if there is nothing left to drop. The inheritable set does not
    // matter, because started programs cannot gain privileges.
    let before = capabilities(None).map_err(failed("read the capabilities"))?;
    if (before.effective, before.permitted) != (kept, kept) {
        set_capabilities(None, sets).map_err(failed("drop capabilities"))?;
    }
    clear_ambient_capability_set().map_err(failed("drop ambient capabilities"))?;
    set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    let left = capabilities(None).map_err(failed("read the capabilities"))?;
    if (left.effective, left.permitted) != (kept, kept) || user.is_some_and(|user| geteuid() != user.uid) {
        return Err(PrivilegeError::Remaining(left));
    }
    Ok(())
}

fn become_user(user: &User, keeping: bool) -> Result<(), PrivilegeError> {
    let failed = |source| PrivilegeError::Switch { name: user.name.clone(), source };
    set_keep_capabilities(keeping).map_err(failed)?;
    set_thread_groups(&user.groups).map_err(failed)?;
    set_thread_res_gid(user.gid, user.gid, user.gid).map_err(failed)?;
    set_thread_res_uid(user.uid, user.uid, user.uid).map_err(failed)
}

/// Creates a directory that belongs to a user. An existing directory is not changed.
///
/// # Errors
/// Errors of the system.
pub fn create_dir_for(user: &User, dir: &std::path::Path) -> io::Result<()> {
    if dir.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    std::os::unix::fs::chown(dir, Some(user.uid()), Some(user.gid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_with_their_groups() {
        let root = User::find("root").unwrap();
        assert_eq!((root.uid(), root.gid()), (0, 0));
        assert!(root.groups.contains(&Gid::ROOT));
        for name in ["no-such-user", "", "a\0b"] {
            assert!(User::find(name).unwrap_err().to_string().contains("there is no user"), "{name:?}");
        }
    }

    #[test]
    fn dropping_privileges_fails_with_threads() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        let refused = reduce_to(None, CapabilitySet::all()).unwrap_err().to_string();
        drop(end);
        assert!(refused.contains("threads already"), "{refused}");
        assert!(other.join().unwrap().is_err());
    }
}

//! Giving up what a daemon does not need.
//!
//! Privileges belong to a thread, and those that begin later inherit them: everything here must be done before there is
//! a second one, which is checked.

use nix::unistd::User as Entry;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::ffi::CString;
use std::io;

/// What a log-client needs on a node with several users: to read and write back the segments of others
/// (`DAC_OVERRIDE`), to ask whether they are still held (`LEASE`), and to see whether a process that can be anybody has
/// made a segment (`SYS_PTRACE`).
pub const LOG_CLIENT: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::LEASE).union(CapabilitySet::SYS_PTRACE);

/// A user of this machine.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Looks a user up.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn find(name: &str) -> Result<User, String> {
        let none = || {
            format!("there is no user `{}`; make one, such as with `useradd --system`", name.escape_debug())
        };
        let c_name = CString::new(name).map_err(|_| none())?;
        let failed = |error| format!("cannot look up the user `{name}`: {error}");
        let entry = Entry::from_name(name).map_err(failed)?.ok_or_else(none)?;
        let groups = nix::unistd::getgrouplist(&c_name, entry.gid).map_err(failed)?;
        Ok(User {
            name: name.into(),
            uid: Uid::from_raw(entry.uid.as_raw()),
            gid: Gid::from_raw(entry.gid.as_raw()),
            groups: groups.into_iter().map(|gid| Gid::from_raw(gid.as_raw())).collect(),
        })
    }

    /// Number of the user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Number of the user's own group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid.as_raw()
    }
}

/// Name of the user with this number; `None` if the user database does not know it, or cannot say.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    Entry::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten().map(|entry| entry.name)
}

/// Becomes this user, if one is given, and keeps none but these capabilities, of those that are there; what is started
/// from here on cannot gain any.
///
/// # Errors
/// What could not be given up, in words. Then the process must end.
pub fn reduce_to(user: Option<&User>, keep: CapabilitySet) -> Result<(), String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: rustix::io::Errno| format!("cannot {what}: {error}")
    };
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads > 1 {
        return Err(format!("cannot give up privileges: there are {threads} threads already"));
    }
    // As long as there is the right to it.
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
    // Services have no right to the call where there is nothing left to give up. What could be inherited is of no use: nothing
    // that is started gains privileges.
    let before = capabilities(None).map_err(failed("read the capabilities"))?;
    if (before.effective, before.permitted) != (kept, kept) {
        set_capabilities(None, sets).map_err(failed("give up capabilities"))?;
    }
    clear_ambient_capability_set().map_err(failed("give up ambient capabilities"))?;
    set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    let left = capabilities(None).map_err(failed("read the capabilities"))?;
    if (left.effective, left.permitted) != (kept, kept) || user.is_some_and(|user| geteuid() != user.uid) {
        return Err(format!("privileges were not given up: {left:?} are left"));
    }
    Ok(())
}

fn become_user(user: &User, keeping: bool) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| {
        format!(
            "cannot become the user `{}`: {error}; start as root, or as that user, or leave `user` out",
            user.name
        )
    };
    set_keep_capabilities(keeping).map_err(failed)?;
    set_thread_groups(&user.groups).map_err(failed)?;
    set_thread_res_gid(user.gid, user.gid, user.gid).map_err(failed)?;
    set_thread_res_uid(user.uid, user.uid, user.uid).map_err(failed)
}

/// Gives a new directory to a user; one that exists stays as it is.
///
/// # Errors
/// As of the system.
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
            assert!(User::find(name).unwrap_err().contains("there is no user"), "{name:?}");
        }
    }

    #[test]
    fn with_threads_it_is_too_late() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        let refused = reduce_to(None, CapabilitySet::all()).unwrap_err();
        drop(end);
        assert!(refused.contains("threads already"), "{refused}");
        assert!(other.join().unwrap().is_err());
    }
}

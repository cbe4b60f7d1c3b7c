//! Calls on a path. The variants that take a directory descriptor get `AT_FDCWD`: the paths are
//! absolute.

use super::super::returned::{Result, returned};
use super::address_mut;
use super::descriptor::KEEP_OWNER;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr::null;

mod functions {
    use super::{c_char, c_int};

    unsafe extern "C" {
        pub(super) fn futimesat(directory: c_int, path: *const c_char, times: *const libc::timeval) -> c_int;
        pub(super) fn euidaccess(path: *const c_char, mode: c_int) -> c_int;
    }
}

/// Calls with a path and numbers.
macro_rules! on_path {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*);)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr $(, $argument: $type)*) -> Result<i64> {
            // SAFETY:
            // - `path` is a C string that outlives the call, which only reads it;
            // - the other arguments are numbers.
            returned(unsafe { $function(path.as_ptr() $(, $argument)*) })
        }
    )* };
}

on_path! {
    truncate => libc::truncate64, (length: i64);
    access => libc::access, (mode: c_int);
    euidaccess => functions::euidaccess, (mode: c_int);
    mkdir => libc::mkdir, (mode: c_uint);
    mkfifo => libc::mkfifo, (mode: c_uint);
    rmdir => libc::rmdir, ();
    unlink => libc::unlink, ();
    remove => libc::remove, ();
    chmod => libc::chmod, (mode: c_uint);
    chdir => libc::chdir, ();
    open => libc::open64, (flags: c_int, mode: c_uint);
    creat => libc::creat64, (mode: c_uint);
}

/// Calls with a path, relative to `AT_FDCWD`, and numbers.
macro_rules! on_path_at {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*);)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr $(, $argument: $type)*) -> Result<i64> {
            // SAFETY:
            // - `path` is a C string that outlives the call, which only reads it;
            // - the other arguments are numbers.
            returned(unsafe { $function(libc::AT_FDCWD, path.as_ptr() $(, $argument)*) })
        }
    )* };
}

on_path_at! {
    faccessat => libc::faccessat, (mode: c_int, flags: c_int);
    mkdirat => libc::mkdirat, (mode: c_uint);
    mkfifoat => libc::mkfifoat, (mode: c_uint);
    unlinkat => libc::unlinkat, (flags: c_int);
    fchmodat => libc::fchmodat, (mode: c_uint, flags: c_int);
    openat => libc::openat64, (flags: c_int, mode: c_uint);
}

/// Calls with two paths.
macro_rules! on_two_paths {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(from: &CStr, to: &CStr) -> Result<i64> {
            // SAFETY: both are C strings that outlive the call, which only reads them.
            returned(unsafe { $function(from.as_ptr(), to.as_ptr()) })
        }
    )* };
}

on_two_paths! {
    rename => libc::rename;
    link => libc::link;
    symlink => libc::symlink;
}

/// Calls with two paths, relative to `AT_FDCWD`, and numbers.
macro_rules! on_two_paths_at {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*);)*) => { $(
        pub(in crate::replay::calls) fn $name(from: &CStr, to: &CStr $(, $argument: $type)*) -> Result<i64> {
            let (cwd, from, to) = (libc::AT_FDCWD, from.as_ptr(), to.as_ptr());
            // SAFETY:
            // - both paths are C strings that outlive the call, which only reads them;
            // - the other arguments are numbers.
            returned(unsafe { $function(cwd, from, cwd, to $(, $argument)*) })
        }
    )* };
}

on_two_paths_at! {
    renameat => libc::renameat, ();
    renameat2 => libc::renameat2, (flags: c_uint);
    linkat => libc::linkat, (flags: c_int);
}

/// `content`: what the link contains.
pub(in crate::replay::calls) fn symlinkat(content: &CStr, link: &CStr) -> Result<i64> {
    // SAFETY: both are C strings that outlive the call, which only reads them.
    returned(unsafe { libc::symlinkat(content.as_ptr(), libc::AT_FDCWD, link.as_ptr()) })
}

pub(in crate::replay::calls) fn mknod(path: &CStr, mode: c_uint) -> Result<i64> {
    // SAFETY: `path` is a C string that outlives the call; the other arguments are numbers.
    returned(unsafe { libc::mknod(path.as_ptr(), mode, 0) })
}

pub(in crate::replay::calls) fn mknodat(path: &CStr, mode: c_uint) -> Result<i64> {
    // SAFETY: `path` is a C string that outlives the call; the other arguments are numbers.
    returned(unsafe { libc::mknodat(libc::AT_FDCWD, path.as_ptr(), mode, 0) })
}

/// Calls that fill a structure, which is not read.
macro_rules! fills {
    ($($name:ident => $function:path, $structure:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr) -> Result<i64> {
            let mut out = MaybeUninit::<$structure>::uninit();
            // SAFETY:
            // - `path` is a C string that outlives the call;
            // - `out` is valid for writes of the structure that the call fills.
            returned(unsafe { $function(path.as_ptr(), out.as_mut_ptr()) })
        }
    )* };
}

fills! {
    stat => libc::stat64, libc::stat64;
    lstat => libc::lstat64, libc::stat64;
    statfs => libc::statfs64, libc::statfs64;
    statvfs => libc::statvfs64, libc::statvfs64;
}

pub(in crate::replay::calls) fn fstatat(path: &CStr, flags: c_int) -> Result<i64> {
    let mut out = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY:
    // - `path` is a C string that outlives the call;
    // - `out` is valid for writes of the structure that the call fills.
    returned(unsafe { libc::fstatat64(libc::AT_FDCWD, path.as_ptr(), out.as_mut_ptr(), flags) })
}

pub(in crate::replay::calls) fn statx(path: &CStr, flags: c_int, mask: c_uint) -> Result<i64> {
    let mut out = MaybeUninit::<libc::statx>::uninit();
    // SAFETY:
    // - `path` is a C string that outlives the call;
    // - `out` is valid for writes of the structure that the call fills.
    returned(unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, out.as_mut_ptr()) })
}

pub(in crate::replay::calls) fn readlink(path: &CStr, memory: &mut [u8]) -> Result<i64> {
    // SAFETY:
    // - `path` is a C string that outlives the call;
    // - `memory` is valid for writes of its length, or null with length 0.
    returned(unsafe { libc::readlink(path.as_ptr(), address_mut(memory).cast(), memory.len()) } as i64)
}

pub(in crate::replay::calls) fn readlinkat(path: &CStr, memory: &mut [u8]) -> Result<i64> {
    let (out, length) = (address_mut(memory).cast(), memory.len());
    // SAFETY:
    // - `path` is a C string that outlives the call;
    // - `memory` is valid for writes of its length, or null with length 0.
    returned(unsafe { libc::readlinkat(libc::AT_FDCWD, path.as_ptr(), out, length) } as i64)
}

/// Calls that leave owner and group unchanged.
macro_rules! owners {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr) -> Result<i64> {
            // SAFETY: `path` is a C string that outlives the call; the other arguments are numbers.
            returned(unsafe { $function(path.as_ptr(), KEEP_OWNER, KEEP_OWNER) })
        }
    )* };
}

owners! {
    chown => libc::chown;
    lchown => libc::lchown;
}

pub(in crate::replay::calls) fn fchownat(path: &CStr, flags: c_int) -> Result<i64> {
    // SAFETY: `path` is a C string that outlives the call; the other arguments are numbers.
    returned(unsafe { libc::fchownat(libc::AT_FDCWD, path.as_ptr(), KEEP_OWNER, KEEP_OWNER, flags) })
}

/// Calls that set the current time.
macro_rules! times {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr) -> Result<i64> {
            // SAFETY:
            // - `path` is a C string that outlives the call;
            // - a null pointer stands for the current time.
            returned(unsafe { $function(path.as_ptr(), null()) })
        }
    )* };
}

times! {
    utime => libc::utime;
    utimes => libc::utimes;
    lutimes => libc::lutimes;
}

/// Sets the current time.
pub(in crate::replay::calls) fn futimesat(path: &CStr) -> Result<i64> {
    // SAFETY: as in `utimes`.
    returned(unsafe { functions::futimesat(libc::AT_FDCWD, path.as_ptr(), null()) })
}

/// Sets the current time.
pub(in crate::replay::calls) fn utimensat(path: &CStr, flags: c_int) -> Result<i64> {
    // SAFETY: as in `utimes`.
    returned(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), null(), flags) })
}

/// Calls that fill `memory` with an attribute.
macro_rules! gets_attribute {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr, name: &CStr, memory: &mut [u8]) -> Result<i64> {
            // SAFETY:
            // - `path` and `name` are C strings that outlive the call;
            // - `memory` is valid for writes of its length, or null with length 0.
            returned(unsafe {
                $function(path.as_ptr(), name.as_ptr(), address_mut(memory), memory.len())
            } as i64)
        }
    )* };
}

gets_attribute! {
    getxattr => libc::getxattr;
    lgetxattr => libc::lgetxattr;
}

/// Calls that set an attribute.
macro_rules! sets_attribute {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr, name: &CStr, value: &mut [u8]) -> Result<i64> {
            // SAFETY:
            // - `path` and `name` are C strings that outlive the call;
            // - `value` is valid for reads of its length, or null with length 0.
            returned(unsafe {
                $function(path.as_ptr(), name.as_ptr(), address_mut(value), value.len(), 0)
            })
        }
    )* };
}

sets_attribute! {
    setxattr => libc::setxattr;
    lsetxattr => libc::lsetxattr;
}

/// Calls that fill `memory` with the names of the attributes.
macro_rules! lists_attributes {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr, memory: &mut [u8]) -> Result<i64> {
            // SAFETY:
            // - `path` is a C string that outlives the call;
            // - `memory` is valid for writes of its length, or null with length 0.
            returned(unsafe {
                $function(path.as_ptr(), address_mut(memory).cast(), memory.len())
            } as i64)
        }
    )* };
}

lists_attributes! {
    listxattr => libc::listxattr;
    llistxattr => libc::llistxattr;
}

/// Calls that remove an attribute.
macro_rules! removes_attribute {
    ($($name:ident => $function:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(path: &CStr, name: &CStr) -> Result<i64> {
            // SAFETY: `path` and `name` are C strings that outlive the call.
            returned(unsafe { $function(path.as_ptr(), name.as_ptr()) })
        }
    )* };
}

removes_attribute! {
    removexattr => libc::removexattr;
    lremovexattr => libc::lremovexattr;
}

//! Hooks of extended attributes.

use crate::path::Path;
use crate::real::hook;
use crate::request::{StringRole, on_fd_and_string, on_fd_arg, on_path, on_path_and_string};
use miot_tracer::{NONE, op::posix};
use std::ffi::{c_int, c_void};

type Value = *mut c_void;

hook!(getxattr(path: Path, name: Path, value: Value, size: usize) -> isize, |real| {
    on_path_and_string(posix::GETXATTR, path.into(), name, StringRole::AttributeName, size as u64, real)
});
hook!(lgetxattr(path: Path, name: Path, value: Value, size: usize) -> isize, |real| {
    on_path_and_string(posix::LGETXATTR, path.into(), name, StringRole::AttributeName, size as u64, real)
});
hook!(fgetxattr(fd: c_int, name: Path, value: Value, size: usize) -> isize, |real| {
    on_fd_and_string(posix::FGETXATTR, fd, name, size as u64, real)
});
hook!(setxattr(path: Path, name: Path, value: Value, size: usize, flags: c_int) -> c_int, |real| {
    on_path_and_string(posix::SETXATTR, path.into(), name, StringRole::AttributeName, size as u64, real)
});
hook!(lsetxattr(path: Path, name: Path, value: Value, size: usize, flags: c_int) -> c_int, |real| {
    on_path_and_string(posix::LSETXATTR, path.into(), name, StringRole::AttributeName, size as u64, real)
});
hook!(fsetxattr(fd: c_int, name: Path, value: Value, size: usize, flags: c_int) -> c_int, |real| {
    on_fd_and_string(posix::FSETXATTR, fd, name, size as u64, real)
});
hook!(listxattr(path: Path, list: Value, size: usize) -> isize, |real| {
    on_path(posix::LISTXATTR, path, size as u64, real)
});
hook!(llistxattr(path: Path, list: Value, size: usize) -> isize, |real| {
    on_path(posix::LLISTXATTR, path, size as u64, real)
});
hook!(flistxattr(fd: c_int, list: Value, size: usize) -> isize, |real| {
    on_fd_arg(posix::FLISTXATTR, fd, size as u64, real)
});
hook!(removexattr(path: Path, name: Path) -> c_int, |real| {
    on_path_and_string(posix::REMOVEXATTR, path.into(), name, StringRole::AttributeName, NONE, real)
});
hook!(lremovexattr(path: Path, name: Path) -> c_int, |real| {
    on_path_and_string(posix::LREMOVEXATTR, path.into(), name, StringRole::AttributeName, NONE, real)
});
hook!(fremovexattr(fd: c_int, name: Path) -> c_int, |real| {
    on_fd_and_string(posix::FREMOVEXATTR, fd, name, NONE, real)
});

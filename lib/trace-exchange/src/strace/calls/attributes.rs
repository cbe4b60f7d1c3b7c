//! Calls that read and change attributes of files.

use super::super::state::OpenDescription;
use super::super::syntax;
use super::{CallReader, Draft, Read, required};
use miot_proto::op::posix;

impl CallReader<'_, '_> {
    /// Requests on attributes: status, permissions, owners, times.
    pub(super) fn attribute_request(&mut self) -> Read<Option<Draft>> {
        Ok(Some(match self.call.name {
            "stat" => self.on_path(posix::STAT, self.path(0)?),
            "lstat" => self.on_path(posix::LSTAT, self.path(0)?),
            "fstat" => self.status_of_open()?,
            "newfstatat" | "fstatat64" | "statx" => self.status_at()?,
            "statfs" => self.on_path(posix::STATFS, self.path(0)?),
            "fstatfs" => self.on_file(posix::FSTATFS, 0)?,
            "access" => Draft { arg: self.call.number(1), ..self.on_path(posix::ACCESS, self.path(0)?) },
            "faccessat" | "faccessat2" => {
                Draft { arg: self.call.number(2), ..self.on_path(posix::FACCESSAT, self.path_at(0)?) }
            }
            "chmod" => Draft { arg: self.call.number(1), ..self.on_path(posix::CHMOD, self.path(0)?) },
            "fchmod" => Draft { arg: self.call.number(1), ..self.on_file(posix::FCHMOD, 0)? },
            "fchmodat" | "fchmodat2" => {
                Draft { arg: self.call.number(2), ..self.on_path(posix::FCHMODAT, self.path_at(0)?) }
            }
            "chown" => self.on_path(posix::CHOWN, self.path(0)?),
            "lchown" => self.on_path(posix::LCHOWN, self.path(0)?),
            "fchown" => self.on_file(posix::FCHOWN, 0)?,
            "fchownat" => {
                Draft { arg: self.call.number(4), ..self.on_path(posix::FCHOWNAT, self.path_at(0)?) }
            }
            "utime" => self.on_path(posix::UTIME, self.path(0)?),
            "utimes" => self.on_path(posix::UTIMES, self.path(0)?),
            "futimesat" | "utimensat" if self.call.arg(1) == b"NULL" => self.on_file(posix::FUTIMENS, 0)?,
            "futimesat" => self.on_path(posix::FUTIMESAT, self.path_at(0)?),
            "utimensat" => {
                Draft { arg: self.call.number(3), ..self.on_path(posix::UTIMENSAT, self.path_at(0)?) }
            }
            _ => return Ok(None),
        }))
    }

    /// Reads the status of an open file.
    fn status_of_open(&mut self) -> Read<Draft> {
        let open = self.file(0)?;
        learn_size(&open, self.call.arg(1));
        Ok(self.on(posix::FSTAT, open))
    }

    /// Reads the status of a path relative to a directory, or of an open file.
    fn status_at(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let flags = self.call.number(if name == "statx" { 2 } else { 3 });
        let empty = matches!(self.call.arg(1), b"\"\"" | b"NULL");
        let op = if name == "statx" { posix::STATX } else { posix::FSTATAT };
        if empty && flags.unwrap_or(0) & i64::from(libc::AT_EMPTY_PATH) != 0 {
            let open = self.file(0)?;
            learn_size(&open, self.call.arg(2));
            Ok(self.on(if name == "statx" { op } else { posix::FSTAT }, open))
        } else {
            Ok(Draft { arg: flags, ..self.on_path(op, self.path_at(0)?) })
        }
    }

    /// Requests on extended attributes.
    pub(super) fn extended_attribute_request(&mut self) -> Read<Option<Draft>> {
        Ok(Some(match self.call.name {
            "getxattr" | "lgetxattr" | "setxattr" | "lsetxattr" | "removexattr" | "lremovexattr" => {
                self.extended_attribute()?
            }
            "fgetxattr" | "fsetxattr" | "fremovexattr" => self.extended_attribute_of_open()?,
            "listxattr" => {
                Draft { length: self.call.number(2), ..self.on_path(posix::LISTXATTR, self.path(0)?) }
            }
            "llistxattr" => {
                Draft { length: self.call.number(2), ..self.on_path(posix::LLISTXATTR, self.path(0)?) }
            }
            "flistxattr" => Draft { length: self.call.number(2), ..self.on_file(posix::FLISTXATTR, 0)? },
            _ => return Ok(None),
        }))
    }

    /// Reads, sets or removes an extended attribute by path.
    fn extended_attribute(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let op = match name {
            "getxattr" => posix::GETXATTR,
            "lgetxattr" => posix::LGETXATTR,
            "setxattr" => posix::SETXATTR,
            "lsetxattr" => posix::LSETXATTR,
            "removexattr" => posix::REMOVEXATTR,
            _ => posix::LREMOVEXATTR,
        };
        Ok(Draft {
            length: self.call.number(3),
            ..self.on_two(op, self.path(0)?, required(syntax::string(self.call.arg(1)))?)
        })
    }

    /// Reads, sets or removes an extended attribute of an open file.
    fn extended_attribute_of_open(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let op = match name {
            "fgetxattr" => posix::FGETXATTR,
            "fsetxattr" => posix::FSETXATTR,
            _ => posix::FREMOVEXATTR,
        };
        let attribute = required(syntax::string(self.call.arg(1)))?;
        Ok(Draft { path2: Some(attribute), length: self.call.number(3), ..self.on_file(op, 0)? })
    }
}

/// `{st_mode=S_IFREG|0644, st_size=5, ...}`
fn learn_size(open: &OpenDescription, text: &[u8]) {
    if syntax::field(text, "st_mode").is_some_and(|mode| mode.starts_with(b"S_IFREG"))
        && let Some(size) = syntax::field(text, "st_size").and_then(syntax::integer)
    {
        open.size.set(Some(size));
    }
}

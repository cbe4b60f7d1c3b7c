//! Calls that create, remove and rename names.

use super::super::syntax;
use super::{CallReader, Draft, Read, required};
use miot_proto::op::posix;

impl CallReader<'_, '_> {
    /// Requests on names in directories.
    pub(super) fn name_request(&mut self) -> Read<Option<Draft>> {
        Ok(Some(match self.call.name {
            "mkdir" => Draft { arg: self.call.number(1), ..self.on_path(posix::MKDIR, self.path(0)?) },
            "mkdirat" => Draft { arg: self.call.number(2), ..self.on_path(posix::MKDIRAT, self.path_at(0)?) },
            "rmdir" => self.on_path(posix::RMDIR, self.path(0)?),
            "unlink" | "unlinkat" => self.unlink()?,
            "rename" | "renameat" | "renameat2" => self.rename()?,
            "link" => self.on_two(posix::LINK, self.path(0)?, self.path(1)?),
            "linkat" => Draft {
                arg: self.call.number(4),
                ..self.on_two(posix::LINKAT, self.path_at(0)?, self.path_at(2)?)
            },
            "symlink" => {
                self.on_two(posix::SYMLINK, required(syntax::string(self.call.arg(0)))?, self.path(1)?)
            }
            "symlinkat" => {
                self.on_two(posix::SYMLINKAT, required(syntax::string(self.call.arg(0)))?, self.path_at(1)?)
            }
            "readlink" => {
                Draft { length: self.call.number(2), ..self.on_path(posix::READLINK, self.path(0)?) }
            }
            "readlinkat" => {
                Draft { length: self.call.number(3), ..self.on_path(posix::READLINKAT, self.path_at(0)?) }
            }
            "mknod" => Draft { arg: self.call.number(1), ..self.on_path(posix::MKNOD, self.path(0)?) },
            "mknodat" => Draft { arg: self.call.number(2), ..self.on_path(posix::MKNODAT, self.path_at(0)?) },
            _ => return Ok(None),
        }))
    }

    /// Removes a name.
    fn unlink(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let at = name == "unlinkat";
        let path = if at { self.path_at(0)? } else { self.path(0)? };
        if !self.call.failed() {
            self.import.sizes.removed(&path);
        }
        let op = if at { posix::UNLINKAT } else { posix::UNLINK };
        Ok(Draft { arg: if at { self.call.number(2) } else { None }, ..self.on_path(op, path) })
    }

    /// Renames a file.
    fn rename(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let plain = name == "rename";
        let (from, to) =
            if plain { (self.path(0)?, self.path(1)?) } else { (self.path_at(0)?, self.path_at(2)?) };
        if !self.call.failed() {
            self.import.sizes.renamed(&from, &to);
            self.import.renamed.insert(to.clone());
        }
        let op = match name {
            "rename" => posix::RENAME,
            "renameat" => posix::RENAMEAT,
            _ => posix::RENAMEAT2,
        };
        Ok(Draft {
            arg: if name == "renameat2" { self.call.number(4) } else { None },
            ..self.on_two(op, from, to)
        })
    }
}

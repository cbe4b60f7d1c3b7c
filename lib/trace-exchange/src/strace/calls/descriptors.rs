//! Calls that open, close and duplicate descriptors, and calls on a descriptor without data.

use super::super::state::{Descriptor, OpenDescription, TracedThread};
use super::super::syntax;
use super::{CallReader, Draft, Read, Skip, required};
use miot_proto::event::flag;
use miot_proto::op::posix;
use std::rc::Rc;

impl CallReader<'_, '_> {
    /// Requests that change descriptors or the state of an open file.
    pub(super) fn descriptor_request(&mut self) -> Read<Option<Draft>> {
        Ok(Some(match self.call.name {
            "open" | "openat" | "openat2" | "creat" => self.open_file()?,
            "close" => self.close()?,
            "close_range" => self.close_range()?,
            "dup" | "dup2" | "dup3" => self.duplicate()?,
            "fcntl" => self.fcntl()?,
            "flock" => Draft { arg: self.call.number(1), ..self.on_file(posix::FLOCK, 0)? },
            "chdir" => self.change_directory()?,
            "fchdir" => self.change_directory_to_open()?,
            "pipe" | "pipe2" | "socketpair" => self.open_pair()?,
            "socket" | "accept" | "accept4" | "eventfd" | "eventfd2" | "epoll_create" | "epoll_create1"
            | "timerfd_create" | "signalfd" | "signalfd4" | "inotify_init" | "inotify_init1"
            | "memfd_create" | "pidfd_open" | "userfaultfd" | "perf_event_open" | "io_uring_setup" => {
                self.open_other()?
            }
            _ => return Ok(None),
        }))
    }

    /// Opens a file.
    fn open_file(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let (op, path, flags, mode) = match name {
            "open" => (posix::OPEN, self.path(0)?, self.call.number(1), self.call.number(2)),
            "creat" => (posix::CREAT, self.path(0)?, None, self.call.number(1)),
            "openat" => (posix::OPENAT, self.path_at(0)?, self.call.number(2), self.call.number(3)),
            _ => {
                let field = |name| syntax::field(self.call.arg(2), name).and_then(syntax::flags);
                (posix::OPENAT, self.path_at(0)?, field("flags"), field("mode"))
            }
        };
        let created = i64::from(libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC);
        let flags = if name == "creat" { Some(created) } else { flags };
        let mut draft = self.on_path(op, path.clone());
        draft.arg = flags.map(|flags| flags & 0xffff_ffff | mode.unwrap_or(0) << 32);
        if !self.call.failed() {
            draft.open = Some(self.import.opened(self.task, self.call, path, flags.unwrap_or(0)));
        }
        Ok(draft)
    }

    /// Closes a descriptor.
    fn close(&mut self) -> Read<Draft> {
        let open = self.import.file(self.task, self.call.arg(0));
        let descriptor = required(syntax::descriptor(self.call.arg(0)))?.0;
        self.task.descriptors.borrow_mut().remove(&descriptor);
        match open {
            Some(open) if !open.no_file => Ok(self.on(posix::CLOSE, open)),
            _ => Err(Skip::NoFile),
        }
    }

    /// Closes a range of descriptors.
    fn close_range(&mut self) -> Read<Draft> {
        let (first, last, flags) =
            (required(self.call.number(0))?, required(self.call.number(1))?, self.call.number(2));
        if flags == Some(0) && !self.call.failed() {
            let closed = first..=last & 0xffff_ffff;
            self.task
                .descriptors
                .borrow_mut()
                .retain(|descriptor, _| !closed.contains(&i64::from(*descriptor)));
        }
        let range = (first as u64 & 0xffff_ffff | (last as u64) << 32) as i64;
        let flags = (flags.unwrap_or(0) as u16 & 0x7f) << flag::OP_SHIFT;
        Ok(Draft { arg: Some(range), flags, ..self.draft(posix::CLOSE_RANGE) })
    }

    /// Duplicates a descriptor.
    fn duplicate(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let open = required(self.import.file(self.task, self.call.arg(0)))?;
        let close_on_exec = self.call.number(2).unwrap_or(0) & i64::from(libc::O_CLOEXEC) != 0;
        duplicate(self.task, &open, self.call.result, name == "dup3" && close_on_exec);
        if open.no_file {
            return Err(Skip::NoFile);
        }
        let new = syntax::descriptor(self.call.arg(1)).map(|(new, _)| i64::from(new));
        let op = match name {
            "dup" => posix::DUP,
            "dup2" => posix::DUP2,
            _ => posix::DUP3,
        };
        Ok(Draft { arg: new.filter(|_| name != "dup"), ..self.on(op, open) })
    }

    /// Operates on a descriptor: may duplicate it or change its flags.
    fn fcntl(&mut self) -> Read<Draft> {
        let open = required(self.import.file(self.task, self.call.arg(0)))?;
        let command = self.call.number(1);
        let set = |at| self.call.number(at).unwrap_or(0);
        let descriptor = required(syntax::descriptor(self.call.arg(0)))?.0;
        match command.map(|command| command as i32) {
            Some(libc::F_DUPFD) => duplicate(self.task, &open, self.call.result, false),
            Some(libc::F_DUPFD_CLOEXEC) => duplicate(self.task, &open, self.call.result, true),
            Some(libc::F_SETFD) if !self.call.failed() => {
                if let Some(descriptor) = self.task.descriptors.borrow_mut().get_mut(&descriptor) {
                    descriptor.close_on_exec = set(2) & i64::from(libc::FD_CLOEXEC) != 0;
                }
            }
            Some(libc::F_SETFL) if !self.call.failed() => open.set_flags(set(2)),
            _ => {}
        }
        if open.no_file {
            return Err(Skip::NoFile);
        }
        Ok(Draft { arg: command, ..self.on(posix::FCNTL, open) })
    }

    /// Changes the working directory to a path.
    fn change_directory(&mut self) -> Read<Draft> {
        let path = self.path(0)?;
        if !self.call.failed() {
            self.task.directory.replace(Some(path.clone()));
        }
        Ok(self.on_path(posix::CHDIR, path))
    }

    /// Changes the working directory to an open directory.
    fn change_directory_to_open(&mut self) -> Read<Draft> {
        let open = self.file(0)?;
        if !self.call.failed() {
            self.task.directory.replace(open.path.clone());
        }
        Ok(self.on(posix::FCHDIR, open))
    }

    /// Opens a pair of descriptors that are not files.
    fn open_pair(&mut self) -> Read<Draft> {
        let name = self.call.name;
        let at = if name == "socketpair" { 3 } else { 0 };
        if !self.call.failed() {
            let inside = self.call.arg(at).strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]"));
            for text in inside.unwrap_or_default().split(|byte| *byte == b',') {
                if let Some((descriptor, _)) = syntax::descriptor(text.trim_ascii()) {
                    self.import.no_file(self.task, descriptor);
                }
            }
        }
        Err(Skip::Other)
    }

    /// Opens a descriptor that is not a file.
    fn open_other(&mut self) -> Read<Draft> {
        if !self.call.failed() {
            self.import.no_file(self.task, self.call.result as i32);
        }
        Err(Skip::Other)
    }
}

fn duplicate(task: &TracedThread, open: &Rc<OpenDescription>, new: i64, close_on_exec: bool) {
    if let Ok(new) = i32::try_from(new)
        && new >= 0
    {
        task.descriptors.borrow_mut().insert(new, Descriptor { open: Rc::clone(open), close_on_exec });
    }
}

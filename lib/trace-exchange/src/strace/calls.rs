//! Meaning of each system call: a request on files, a change of shared state, or neither.
//!
//! `tests/src/strace/calls.rs` interprets the same calls independently, as a second witness in
//! tests.

mod attributes;
mod data;
mod descriptors;
mod names;

use super::Import;
use super::state::{OpenDescription, TracedThread};
use super::syntax::{self, AT_FDCWD, CallResult};
use miot_proto::op::Op;
use std::rc::Rc;

/// A completed system call.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a [&'a [u8]],
    pub(super) result: i64,
    pub(super) result_path: Option<&'a [u8]>,
}

impl<'a> Call<'a> {
    pub(super) fn new(name: &'a str, args: &'a [&'a [u8]], value: i64, result: &CallResult<'a>) -> Call<'a> {
        Call { name, args, result: value, result_path: result.path }
    }

    fn arg(&self, at: usize) -> &'a [u8] {
        self.args.get(at).copied().unwrap_or_default()
    }

    fn number(&self, at: usize) -> Option<i64> {
        syntax::flags(self.arg(at))
    }

    fn failed(&self) -> bool {
        self.result < 0
    }
}

/// A request as far as the line describes it.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) op: Option<Op>,
    pub(super) open: Option<Rc<OpenDescription>>,
    pub(super) path: Option<Vec<u8>>,
    pub(super) path2: Option<Vec<u8>>,
    pub(super) offset: Option<i64>,
    pub(super) offset2: Option<i64>,
    pub(super) length: Option<i64>,
    pub(super) arg: Option<i64>,
    pub(super) result: i64,
    pub(super) flags: u16,
}

/// Result of reading a call.
#[derive(Debug)]
pub(super) enum Meaning {
    Request(Box<Draft>),
    /// A request on a pipe, a socket or another descriptor that is not a file.
    NoFile,
    /// Not an I/O request, or an operation that MIOT does not know.
    Other,
}

/// Why a call is not a request.
enum Skip {
    /// A required argument is missing or unreadable.
    Unclear,
    /// The descriptor is not a file.
    NoFile,
    /// The call is not an I/O request.
    Other,
}

type Read<T> = Result<T, Skip>;

fn required<T>(value: Option<T>) -> Read<T> {
    value.ok_or(Skip::Unclear)
}

/// Joins a relative path to a directory, and removes empty components: `//`, `/./`, a slash at the
/// end.
pub(super) fn absolute(directory: Option<&[u8]>, path: &[u8]) -> Vec<u8> {
    let joined = match directory {
        Some(directory) if !path.starts_with(b"/") => [directory, b"/", path].concat(),
        _ => path.to_vec(),
    };
    let parts = joined.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let clean = parts.collect::<Vec<_>>().join(&b'/');
    if joined.starts_with(b"/") { [b"/", &clean[..]].concat() } else { clean }
}

/// Reads the request of a call, and applies the call to the state of the thread.
///
/// # Errors
/// A required argument is missing or unreadable.
pub(super) fn meaning(import: &mut Import<'_>, task: &TracedThread, call: &Call<'_>) -> Result<Meaning, ()> {
    match (CallReader { import, task, call }).request() {
        Ok(draft) => Ok(Meaning::Request(Box::new(draft))),
        Err(Skip::NoFile) => Ok(Meaning::NoFile),
        Err(Skip::Other) => Ok(Meaning::Other),
        Err(Skip::Unclear) => Err(()),
    }
}

/// A call, with the state that it reads and changes.
struct CallReader<'a, 'i> {
    import: &'a mut Import<'i>,
    task: &'a TracedThread,
    call: &'a Call<'a>,
}

impl CallReader<'_, '_> {
    fn request(&mut self) -> Read<Draft> {
        let families = [
            Self::data_request,
            Self::descriptor_request,
            Self::attribute_request,
            Self::name_request,
            Self::size_request,
            Self::extended_attribute_request,
        ];
        for family in families {
            if let Some(draft) = family(self)? {
                return Ok(draft);
            }
        }
        Err(Skip::Other)
    }

    /// Absolute path in an argument.
    fn path(&self, at: usize) -> Read<Vec<u8>> {
        let text = required(syntax::string(self.call.arg(at)))?;
        Ok(absolute(self.task.directory.borrow().as_deref(), &text))
    }

    /// Absolute path from a directory descriptor in an argument and a path in the next one.
    fn path_at(&self, at: usize) -> Read<Vec<u8>> {
        let (descriptor, shown) = required(syntax::descriptor(self.call.arg(at)))?;
        let text = required(syntax::string(self.call.arg(at + 1)))?;
        let directory = match self.task.open(descriptor) {
            _ if descriptor == AT_FDCWD => self.task.directory.borrow().clone().or(shown),
            Some(open) => open.path.clone().or(shown),
            None => shown,
        };
        Ok(absolute(directory.as_deref(), &text))
    }

    /// The open file of a descriptor in an argument.
    fn file(&mut self, at: usize) -> Read<Rc<OpenDescription>> {
        let open = required(self.import.file(self.task, self.call.arg(at)))?;
        if open.no_file { Err(Skip::NoFile) } else { Ok(open) }
    }

    fn draft(&self, op: Op) -> Draft {
        Draft { op: Some(op), result: self.call.result, ..Draft::default() }
    }

    fn on_path(&self, op: Op, path: Vec<u8>) -> Draft {
        Draft { path: Some(path), ..self.draft(op) }
    }

    fn on_two(&self, op: Op, path: Vec<u8>, path2: Vec<u8>) -> Draft {
        Draft { path2: Some(path2), ..self.on_path(op, path) }
    }

    fn on(&self, op: Op, open: Rc<OpenDescription>) -> Draft {
        Draft { open: Some(open), ..self.draft(op) }
    }

    fn on_file(&mut self, op: Op, at: usize) -> Read<Draft> {
        let open = self.file(at)?;
        Ok(self.on(op, open))
    }
}

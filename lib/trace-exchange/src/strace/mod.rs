//! Import of the output of `strace -f -ttt -T -y`.
//!
//! The input is one file with the calls of all threads (`-f -o FILE`, or the output to a terminal),
//! or one file per thread (`-ff -o FILE`, named `FILE.PID`); these are merged by time. Lines are
//! processed in a single pass. Memory holds the state of living threads, open files and calls that
//! have not returned, and the names of files.
//!
//! An offset that a call does not contain is derived from opens, seeks and earlier calls, through
//! `dup`, `fork` and threads that share descriptors. It is null if the text is insufficient: for a
//! file that was open before the trace began, or a file opened for appending whose size is unknown.
//!
//! | module | role |
//! |---|---|
//! | `syntax` | lines, arguments, results |
//! | `names` | constants and errors |
//! | `state` | descriptors, open files, threads |
//! | `calls` | meaning of calls |
//! | `merge` | merges files of one thread each by time |

mod calls;
mod merge;
mod names;
mod open_files;
mod state;
mod syntax;

use crate::import::{BadLine, Error, OnError, Report, shown};
use crate::{Event, Process, TraceBuilder};
use calls::{Call, Meaning};
use miot_proto::event::flag;
use state::{Sizes, TracedThread};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use syntax::{CallResult, Refused, StraceLine};

/// Returns true if this looks like strace: a line with a process or a time, and a call.
#[must_use]
pub fn detect(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').take(20).any(|line| {
        let head = syntax::head(line);
        matches!(head, Ok(head) if syntax::body(head.rest).is_ok())
            || line.windows(7).any(|word| word == b"execve(")
    })
}

/// A call that has not returned.
#[derive(Debug)]
struct Pending {
    name: String,
    text: Vec<u8>,
    begin: i64,
}

/// An import in progress: it reads lines and adds events to the builder.
#[derive(Debug)]
pub struct Import<'a> {
    builder: &'a mut TraceBuilder,
    node: String,
    on_error: OnError,
    report: Report,
    tasks: HashMap<u32, TracedThread>,
    pending: HashMap<u32, Pending>,
    sizes: Sizes,
    /// New names of renamed files.
    renamed: HashSet<Vec<u8>>,
    handles: u64,
    /// Beginning of a line that strace interrupted with a message.
    broken: Vec<u8>,
    /// Thread of the previous line, for lines without a thread.
    last: u32,
    /// Working directory of the first process.
    directory: Option<Vec<u8>>,
}

/// Maximum number of reported call names: Linux has 400, a damaged file may have any number.
const NAMES: usize = 1000;

/// Result of a request during which the thread died, as the log-client records it.
const INTERRUPTED: i64 = -(libc::EINTR as i64);

/// Imports files into a trace. `progress` is called with the size of each line in bytes.
/// `directory` is the working directory of the first process; without it, the directory is taken
/// from the first call that shows it (`-y`).
///
/// # Errors
/// [`Error`].
pub fn import(
    files: &[PathBuf],
    builder: &mut TraceBuilder,
    node: &str,
    directory: Option<Vec<u8>>,
    on_error: OnError,
    mut progress: impl FnMut(u64),
) -> Result<Report, Error> {
    let mut import = Import::new(builder, node, on_error);
    let mut lines = merge::Lines::open(files)?;
    import.directory = match directory {
        Some(directory) => Some(directory),
        None => lines.directory()?,
    };
    while let Some(line) = lines.next()? {
        progress(line.bytes);
        import.line(line.file, line.tid, line.number, line.text)?;
    }
    import.finish()
}

impl<'a> Import<'a> {
    /// Starts an import.
    pub fn new(builder: &'a mut TraceBuilder, node: &str, on_error: OnError) -> Import<'a> {
        Import {
            builder,
            node: node.to_owned(),
            on_error,
            report: Report::default(),
            tasks: HashMap::new(),
            pending: HashMap::new(),
            sizes: Sizes::default(),
            renamed: HashSet::new(),
            handles: 0,
            broken: Vec::new(),
            last: 0,
            directory: None,
        }
    }

    /// Sets the working directory of processes that are not children of others.
    pub fn set_directory(&mut self, directory: Vec<u8>) {
        self.directory = Some(directory);
    }

    /// Processes a line. `tid` is its thread if the line does not contain one.
    ///
    /// # Errors
    /// [`Error::Line`], if invalid lines abort the import; [`Error::Build`].
    pub fn line(&mut self, file: &str, tid: Option<u32>, number: u64, text: &[u8]) -> Result<(), Error> {
        self.report.lines += 1;
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let whole;
        let line = if self.broken.is_empty() {
            text
        } else {
            whole = [&std::mem::take(&mut self.broken)[..], text].concat();
            &whole
        };
        match self.take(tid, line) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => {
                let bad = || BadLine { file: file.to_owned(), line: number, why, text: shown(line) };
                self.report.bad(self.on_error, bad)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the import. Requests that have not returned are recorded as interrupted.
    ///
    /// # Errors
    /// [`Error::Build`].
    pub fn finish(mut self) -> Result<Report, Error> {
        let mut left: Vec<u32> = self.pending.keys().copied().collect();
        left.sort_unstable();
        for tid in left {
            let end = self.pending.get(&tid).map_or(0, |pending| pending.begin);
            self.interrupted(tid, end)?;
        }
        Ok(self.report)
    }

    fn take(&mut self, tid: Option<u32>, line: &[u8]) -> Result<Result<(), Refused>, Error> {
        if line.trim_ascii().is_empty() || line.starts_with(b"strace: ") {
            return Ok(Ok(()));
        }
        // On a terminal strace prints this in the middle of a line.
        let attached = line.windows(16).position(|word| word == b"strace: Process ");
        if let Some(at) = attached.filter(|_| line.ends_with(b" attached")) {
            self.broken = line[..at].to_vec();
            return Ok(Ok(()));
        }
        let head = match syntax::head(line) {
            Ok(head) => head,
            Err(why) => return Ok(Err(why)),
        };
        let body = match syntax::body(head.rest) {
            Ok(body) => body,
            Err(why) => return Ok(Err(why)),
        };
        // A line without a thread belongs to the only thread, or to the thread of the previous
        // line.
        let alone = || if self.tasks.len() == 1 { self.tasks.keys().next().copied() } else { None };
        let tid = head.tid.or(tid).or_else(alone).unwrap_or(self.last);
        self.last = tid;
        match body {
            StraceLine::Other => {}
            StraceLine::Gone { .. } => {
                self.interrupted(tid, head.time)?;
                self.tasks.remove(&tid);
            }
            StraceLine::Superseded { by } => {
                if let Some(pending) = self.pending.remove(&by) {
                    self.pending.insert(tid, pending);
                }
                if let Some(task) = self.tasks.remove(&by) {
                    self.tasks.insert(tid, task);
                }
            }
            StraceLine::Unfinished { name, text } => {
                self.task(tid, head.comm);
                let pending = Pending { name: name.to_owned(), text: text.to_vec(), begin: head.time };
                if self.pending.insert(tid, pending).is_some() {
                    return Ok(Err("a call of this thread has not returned"));
                }
            }
            StraceLine::Resumed { name, text } => {
                let Some(pending) = self.pending.remove(&tid) else {
                    return Ok(Err("the beginning of this call is missing"));
                };
                if pending.name != name {
                    return Ok(Err("another call of this thread has not returned"));
                }
                let whole = [&pending.text[..], text].concat();
                let (args, result) = match syntax::call(&whole) {
                    Ok(call) => call,
                    Err(why) => return Ok(Err(why)),
                };
                let end = result.duration.map_or(head.time, |took| pending.begin.saturating_add(took));
                return self.call(tid, head.comm, &pending.name, &args, &result, pending.begin, end);
            }
            StraceLine::Call { name, args, result } => {
                if result.duration.is_none() && result.value.is_some() {
                    self.report.note("calls without a duration (strace -T), taken as 0");
                }
                let end = head.time.saturating_add(result.duration.unwrap_or(0));
                return self.call(tid, head.comm, name, &args, &result, head.time, end);
            }
        }
        Ok(Ok(()))
    }

    #[allow(clippy::too_many_arguments)]
    fn call(
        &mut self,
        tid: u32,
        comm: Option<&[u8]>,
        name: &str,
        args: &[&[u8]],
        result: &CallResult<'_>,
        begin: i64,
        end: i64,
    ) -> Result<Result<(), Refused>, Error> {
        let task = self.task(tid, comm);
        let Some(value) = result.value else {
            if result.unknown.starts_with(b"ERESTART") {
                // The call is restarted, or returns EINTR, on a separate line.
                self.report.note("calls that a signal interrupted and that were restarted, counted once");
                return Ok(Ok(()));
            }
            if name.starts_with("exit") {
                return Ok(Ok(()));
            }
            let call = Call::new(name, args, INTERRUPTED, result);
            return self.request(&task, &call, begin, end, true);
        };
        match name {
            "execve" | "execveat" => {
                if value == 0 {
                    self.execute(tid, name, args);
                }
                self.other(name);
                return Ok(Ok(()));
            }
            "clone" | "clone3" | "fork" | "vfork" | "clone2" => {
                if let Ok(child) = u32::try_from(value)
                    && child > 0
                    && !self.tasks.contains_key(&child)
                {
                    self.child(&task, child, clone_flags(name, &args.join(&b", "[..])));
                }
                self.other(name);
                return Ok(Ok(()));
            }
            _ => {}
        }
        let call = Call::new(name, args, value, result);
        self.request(&task, &call, begin, end, false)
    }

    fn request(
        &mut self,
        task: &TracedThread,
        call: &Call<'_>,
        begin: i64,
        end: i64,
        interrupted: bool,
    ) -> Result<Result<(), Refused>, Error> {
        let Ok(meaning) = calls::meaning(self, task, call) else {
            // A path that the kernel could not read either, e.g. `NULL`.
            if call.result < 0 {
                self.report
                    .note("failed calls with arguments that are neither a path nor a number, left out");
                return Ok(Ok(()));
            }
            return Ok(Err("arguments of this call are not understood"));
        };
        let draft = match meaning {
            Meaning::Request(draft) => draft,
            Meaning::NoFile => {
                self.report.note("requests on pipes, sockets and the like, left out");
                return Ok(Ok(()));
            }
            Meaning::Other => {
                self.other(call.name);
                return Ok(Ok(()));
            }
        };
        let Some(op) = draft.op else { return Ok(Ok(())) };
        let mut name = |path: &Option<Vec<u8>>| {
            path.as_ref().map(|path| self.builder.file(task.process, path)).transpose()
        };
        let opened = draft.open.as_ref().and_then(|open| open.path.clone());
        let event = Event {
            file: name(&draft.path.or(opened))?,
            file2: name(&draft.path2)?,
            handle: draft.open.as_ref().map(|open| open.handle),
            offset: draft.offset,
            offset2: draft.offset2,
            length: draft.length,
            arg: draft.arg,
            result: draft.result,
            flags: draft.flags | if interrupted { flag::INTERRUPTED } else { 0 },
            ..Event::new(task.thread, op, begin, end)
        };
        self.builder.event(&event)?;
        Ok(Ok(()))
    }

    fn other(&mut self, name: &str) {
        let others = &mut self.report.others;
        if let Some(count) = others.get_mut(name) {
            *count += 1;
        } else if others.len() < NAMES {
            others.insert(name.to_owned(), 1);
        }
    }

    /// Records a call of the thread that never returned.
    fn interrupted(&mut self, tid: u32, end: i64) -> Result<(), Error> {
        let Some(pending) = self.pending.remove(&tid) else { return Ok(()) };
        let whole = [pending.text.trim_ascii_end(), b") = ?"].concat();
        if let Ok((args, result)) = syntax::call(&whole) {
            // A call that was truncated within its arguments cannot be recorded as a request.
            let _ = self.call(tid, None, &pending.name, &args, &result, pending.begin, end)?;
        }
        Ok(())
    }

    /// Returns the thread. A new thread is a child of the latest `clone` call that has not
    /// returned; without such a call it existed before the trace began.
    fn task(&mut self, tid: u32, comm: Option<&[u8]>) -> TracedThread {
        if let Some(task) = self.tasks.get(&tid) {
            return task.clone();
        }
        let parents = self.pending.iter().filter(|(_, pending)| is_clone(&pending.name));
        let parent = parents.max_by_key(|(_, pending)| pending.begin);
        if let Some((parent, pending)) = parent
            && let Some(task) = self.tasks.get(parent).cloned()
        {
            let flags = clone_flags(&pending.name, &pending.text);
            return self.child(&task, tid, flags);
        }
        let process =
            self.builder.process(Process { node: self.node.clone(), pid: tid, ..Process::default() });
        let comm = comm.map(|comm| String::from_utf8_lossy(comm).into_owned()).unwrap_or_default();
        let thread = self.builder.thread(process, tid, &comm);
        let task = TracedThread {
            process,
            pid: tid,
            thread,
            descriptors: Rc::default(),
            directory: Rc::new(RefCell::new(self.directory.clone())),
            maps: Rc::default(),
        };
        self.tasks.insert(tid, task.clone());
        task
    }

    fn child(&mut self, parent: &TracedThread, tid: u32, flags: i64) -> TracedThread {
        let of_parent = self.builder.process_mut(parent.process).clone();
        let comm = base_name(&of_parent.exe).to_owned();
        let (process, pid) = if flags & i64::from(libc::CLONE_THREAD) != 0 {
            (parent.process, parent.pid)
        } else {
            let process = Process { pid: tid, ppid: parent.pid, ..of_parent };
            (self.builder.process(process), tid)
        };
        let thread = self.builder.thread(process, tid, &comm);
        let task = parent.child(flags, process, pid, thread);
        self.tasks.insert(tid, task.clone());
        task
    }

    /// Replaces the image of the process.
    fn execute(&mut self, tid: u32, name: &str, args: &[&[u8]]) {
        let Some(mut task) = self.tasks.remove(&tid) else { return };
        let at = usize::from(name == "execveat");
        let program = args.get(at).and_then(|text| syntax::string(text)).unwrap_or_default();
        let directory = task.directory.borrow().clone();
        let text = |bytes: &[u8]| miot_trace_store::escape::path(bytes).0.into_owned();
        let words = args.get(at + 1).map(|text| syntax::strings(text)).unwrap_or_default();
        let exe = text(&calls::absolute(directory.as_deref(), &program));
        let old = self.builder.process_mut(task.process).clone();
        let process = self.builder.process(Process {
            cmdline: words.iter().map(|word| text(word)).collect::<Vec<_>>().join(" "),
            cwd: directory.as_deref().map(text).unwrap_or_default(),
            pid: task.pid,
            exe: exe.clone(),
            ..old
        });
        let thread = self.builder.thread(process, tid, base_name(&exe));
        task.execute(process, thread);
        self.tasks.insert(tid, task);
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_clone(name: &str) -> bool {
    matches!(name, "clone" | "clone3" | "fork" | "vfork" | "clone2")
}

fn clone_flags(name: &str, text: &[u8]) -> i64 {
    match name {
        "fork" => 0,
        "vfork" => i64::from(libc::CLONE_VM | libc::CLONE_VFORK),
        _ => syntax::field(text, "flags").and_then(syntax::flags).unwrap_or(0),
    }
}

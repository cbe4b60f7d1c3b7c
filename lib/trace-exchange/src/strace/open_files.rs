//! Open files of the traced threads, as far as the calls show them.

use super::Import;
use super::calls::Call;
use super::state::{Descriptor, OpenDescription, Size, TracedThread};
use super::syntax;
use miot_proto::event::flag;
use std::cell::Cell;
use std::rc::Rc;

impl OpenDescription {
    pub(super) fn set_flags(&self, flags: i64) {
        self.append.set(flags & i64::from(libc::O_APPEND) != 0);
        self.direct.set(flags & i64::from(libc::O_DIRECT) != 0);
    }

    pub(super) fn flags(&self, writes: bool) -> u16 {
        let append = if writes && self.append.get() { flag::APPEND } else { 0 };
        append | if self.direct.get() { flag::DIRECT } else { 0 }
    }

    /// Offset of a request without an offset of its own.
    pub(super) fn start(&self, writes: bool) -> Option<i64> {
        if writes && self.append.get() { self.size.get() } else { self.position.get() }
    }

    /// Moves the position after a request without an offset of its own.
    pub(super) fn moved(&self, start: Option<i64>, result: i64, writes: bool) {
        if result > 0 {
            self.position.set(start.and_then(|start| start.checked_add(result)));
            if writes {
                self.grown(start, result);
            }
        }
    }

    /// Extends the size after a write at `start`.
    pub(super) fn grown(&self, start: Option<i64>, result: i64) {
        if result <= 0 {
            return;
        }
        let end = start.and_then(|start| start.checked_add(result));
        match (end, self.size.get()) {
            (Some(end), Some(size)) => self.size.set(Some(size.max(end))),
            // Without the offset, the new size is unknown.
            (None, _) => self.size.set(None),
            (Some(_), None) => {}
        }
    }
}

impl Import<'_> {
    /// Returns the open file of a descriptor; `None` if the argument is not a descriptor.
    pub(super) fn file(&mut self, task: &TracedThread, text: &[u8]) -> Option<Rc<OpenDescription>> {
        let (descriptor, shown) = syntax::descriptor(text)?;
        let known = task.open(descriptor);
        if let Some(open) = known {
            let other = shown.as_ref().is_some_and(|shown| !self.same(&open, shown));
            if !other {
                return Some(open);
            }
        }
        // Opened before the trace began, or by a call that strace did not record.
        let no_file = shown.as_ref().is_some_and(|shown| !shown.starts_with(b"/"));
        let size = shown.as_ref().map_or_else(Size::default, |path| self.sizes.of(path));
        let open = self.open(shown.clone(), shown, None, size, no_file);
        let entry = Descriptor { open: Rc::clone(&open), close_on_exec: false };
        task.descriptors.borrow_mut().insert(descriptor, entry);
        Some(open)
    }

    /// Returns true if `-y` shows the same file. Its text for an open file changes only when the
    /// file is renamed or removed.
    fn same(&self, open: &OpenDescription, shown: &[u8]) -> bool {
        let mut before = open.shown.borrow_mut();
        match &mut *before {
            None => *before = Some(shown.to_vec()),
            Some(before) if before.as_slice() == shown || shown.ends_with(b" (deleted)") => {}
            Some(before) if self.renamed.contains(shown) => *before = shown.to_vec(),
            Some(_) => return false,
        }
        true
    }

    fn open(
        &mut self,
        path: Option<Vec<u8>>,
        shown: Option<Vec<u8>>,
        position: Option<i64>,
        size: Size,
        no_file: bool,
    ) -> Rc<OpenDescription> {
        self.handles += 1;
        Rc::new(OpenDescription {
            path,
            shown: shown.into(),
            handle: self.handles,
            position: Cell::new(position),
            append: Cell::new(false),
            direct: Cell::new(false),
            size,
            no_file,
        })
    }

    pub(super) fn opened(
        &mut self,
        task: &TracedThread,
        call: &Call<'_>,
        path: Vec<u8>,
        flags: i64,
    ) -> Rc<OpenDescription> {
        let size = self.sizes.of(&path);
        let has = |flag: i32| flags & i64::from(flag) == i64::from(flag);
        if has(libc::O_TRUNC) || has(libc::O_CREAT | libc::O_EXCL) {
            size.set(Some(0));
        }
        let shown = call.result_path.map(syntax::unescape);
        let open = self.open(Some(path), shown, Some(0), size, false);
        open.set_flags(flags);
        let entry = Descriptor { open: Rc::clone(&open), close_on_exec: has(libc::O_CLOEXEC) };
        task.descriptors.borrow_mut().insert(call.result as i32, entry);
        open
    }

    pub(super) fn no_file(&mut self, task: &TracedThread, descriptor: i32) {
        let open = self.open(None, None, None, Size::default(), true);
        task.descriptors.borrow_mut().insert(descriptor, Descriptor { open, close_on_exec: false });
    }
}

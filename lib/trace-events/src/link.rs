//! Trees of requests: links each request to its parent.
//!
//! A request names its parent in the same thread by number. A file-system client serves requests of
//! other processes, and records the thread for which it served each of them. Such a request belongs
//! to the innermost request of that thread, on the same node, during which it ran. The thread may
//! do other things while a request that completes asynchronously is served. Therefore the byte
//! ranges of the file must overlap as well in that case.
//!
//! MPI carries out a request in any call that finds work to do, or in a thread of its own. Such a
//! request is recorded for the thread that opened the file, and belongs to the MPI-IO request of
//! the same process that requested its bytes.
//!
//! Requests arrive in order of completion, so children arrive before their parent. They wait for
//! the parent, or until their thread makes an outermost request that began after they had ended:
//! then their parent was not recorded. This conclusion does not hold in a program with MPI-IO,
//! where a non-blocking request ends after others that began later. There, children wait until
//! there are too many of them.

use crate::columns::{EventColumns, narrow};
use miot_proto::event::flag;
use miot_proto::op::Layer;
use miot_trace_store::{IdMap, IdSet};
use std::ops::Range;

/// Maximum depth of a tree. Deeper requests, which only a broken producer records, become separate
/// trees.
const MAX_DEPTH: u32 = 64;

/// Maximum number of waiting requests of a thread in a program with MPI-IO.
const MAX_WAITING_WITH_MPI: usize = 8192;

/// The properties of a request that link it to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the node, see [`crate::NodeNumbers`].
    pub node: u32,
    /// Process of the trace.
    pub process: u64,
    /// Thread id on the node.
    pub tid: u32,
    /// Number of the request in its thread.
    pub number: u32,
    /// Number of the parent request in the same thread.
    pub enclosing: Option<u32>,
    /// Thread on the same node that the request was served for.
    pub caller: Option<u32>,
    /// Begin and completion in nanoseconds.
    pub time: Range<i64>,
    /// True for a request that completed asynchronously.
    pub is_async: bool,
    /// True for a request of MPI-IO.
    pub is_mpi: bool,
    /// Requested bytes of the file, if known.
    pub bytes: Option<Range<i64>>,
}

/// Columns of events that [`Request::of`] requires, in addition to `node`.
pub const COLUMNS: &[&str] = &[
    "time",
    "duration",
    "process",
    "tid",
    "layer",
    "offset",
    "length",
    "flags",
    "request",
    "enclosing",
    "caller_tid",
];

impl Request {
    /// Returns the request of a row of a batch, on the node with this number.
    #[must_use]
    pub fn of(columns: &EventColumns<'_>, node: u32, row: usize) -> Request {
        let end = columns.time.value(row);
        let bytes = columns.offset.get(row).zip(columns.length.get(row));
        Request {
            node,
            process: columns.process.value(row),
            tid: columns.tid.value(row),
            number: narrow(columns.request.value(row)),
            enclosing: columns.enclosing.get(row).map(narrow),
            caller: columns.caller_tid.get(row),
            time: end.saturating_sub(columns.duration.value(row))..end,
            is_async: columns.flags.value(row) & i32::from(flag::ASYNC) != 0,
            is_mpi: columns.layer.get(row) == Some(Layer::MpiIo.name()),
            bytes: bytes.map(|(offset, length)| offset..offset.saturating_add(length)),
        }
    }

    fn is_outermost(&self) -> bool {
        self.enclosing.is_none()
    }

    /// Returns true if this request served the given request of its caller.
    fn served(&self, caller: &Request) -> bool {
        let within = caller.time.start <= self.time.start && self.time.end <= caller.time.end;
        within && (!caller.is_async || overlap(self.bytes.as_ref(), caller.bytes.as_ref()))
    }
}

fn overlap(one: Option<&Range<i64>>, other: Option<&Range<i64>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.start < other.end && other.start < one.end,
        (None, None) => true,
        _ => false,
    }
}

/// A request and its child requests, by begin.
#[derive(Debug)]
pub struct Tree<T> {
    /// The request.
    pub request: Request,
    /// Value that was given to [`Linker::push`].
    pub value: T,
    /// Child requests.
    pub children: Vec<Tree<T>>,
    depth: u32,
}

impl<T> Tree<T> {
    /// Returns a request without child requests.
    #[must_use]
    pub fn leaf(request: Request, value: T) -> Tree<T> {
        Tree { request, value, children: Vec::new(), depth: 0 }
    }

    /// Adds a child request, the last one by begin.
    ///
    /// # Errors
    /// Returns the child if the tree would be too deep.
    pub fn adopt(&mut self, child: Tree<T>) -> Result<(), Tree<T>> {
        if child.depth + 1 >= MAX_DEPTH {
            return Err(child);
        }
        self.depth = self.depth.max(child.depth + 1);
        self.children.push(child);
        Ok(())
    }
}

/// Requests that wait for their parent to complete.
#[derive(Debug)]
struct Waiting<T> {
    /// Requests of the thread itself.
    own: Vec<Tree<T>>,
    /// Requests of clients that served the thread.
    served: Vec<Tree<T>>,
}

/// Links requests to trees.
#[derive(Debug)]
pub struct Linker<T> {
    /// Waiting requests by node and thread.
    threads: IdMap<(u32, u32), Waiting<T>>,
    /// Nodes and processes with MPI-IO, and the threads for which they have made requests.
    mpi: IdMap<(u32, u64), IdSet<u32>>,
    waiting: usize,
    most: usize,
}

impl<T> Linker<T> {
    /// Returns a linker of at most `most` waiting requests. If there are more, all of them are
    /// returned without their parents.
    #[must_use]
    pub fn new(most: usize) -> Linker<T> {
        Linker { threads: IdMap::default(), mpi: IdMap::default(), waiting: 0, most }
    }

    /// Adds the next request in order of completion, and appends complete trees to `out`.
    pub fn push(&mut self, request: Request, value: T, out: &mut Vec<Tree<T>>) {
        let mut children = Vec::new();
        if request.is_mpi {
            self.of_other_threads(&request, &mut children);
        }
        let uses_mpi = self.mpi.contains_key(&(request.node, request.process));
        if let Some(thread) = self.threads.get_mut(&(request.node, request.tid)) {
            let within = |tree: &Tree<T>| tree.depth + 1 < MAX_DEPTH;
            take(&mut thread.own, &mut children, |own| {
                own.request.enclosing == Some(request.number)
                    && own.request.process == request.process
                    && within(own)
            });
            take(&mut thread.served, &mut children, |served| {
                // Requests of MPI itself are not children of the program's other requests.
                let may_match = !uses_mpi || request.is_mpi || served.request.process != request.process;
                may_match && served.request.served(&request) && within(served)
            });
            let before = out.len();
            for waiting in [&mut thread.own, &mut thread.served] {
                if !request.is_outermost() || request.is_async {
                    continue;
                }
                if uses_mpi {
                    // Release the older half.
                    let excess =
                        if waiting.len() > MAX_WAITING_WITH_MPI { MAX_WAITING_WITH_MPI / 2 } else { 0 };
                    out.extend(waiting.drain(..excess));
                } else {
                    take(waiting, out, |tree| tree.request.time.end <= request.time.start);
                }
            }
            self.waiting -= out.len() - before;
            if thread.own.is_empty() && thread.served.is_empty() {
                self.threads.remove(&(request.node, request.tid));
            }
        }
        self.waiting -= children.len();
        children.sort_by_key(|child| child.request.time.start);
        let depth = children.iter().map(|child| child.depth + 1).max().unwrap_or(0);
        let tree = Tree { request, value, children, depth };
        let Request { node, process, tid, enclosing, caller, .. } = tree.request;
        if let (Some(threads), None, Some(caller)) = (self.mpi.get_mut(&(node, process)), enclosing, caller) {
            threads.insert(caller);
        }
        match (enclosing, caller) {
            (Some(_), _) => self.thread(node, tid).own.push(tree),
            (None, Some(caller)) => self.thread(node, caller).served.push(tree),
            (None, None) => return out.push(tree),
        }
        self.waiting += 1;
        if self.waiting > self.most {
            self.release_all(out);
        }
    }

    /// Takes the requests that the process made for threads other than the thread of this MPI-IO
    /// request, which completed it: a thread may complete a request that another thread began.
    fn of_other_threads(&mut self, request: &Request, children: &mut Vec<Tree<T>>) {
        let threads = self.mpi.entry((request.node, request.process)).or_default();
        if request.is_async {
            for tid in threads.iter().filter(|tid| **tid != request.tid) {
                if let Some(thread) = self.threads.get_mut(&(request.node, *tid)) {
                    take(&mut thread.served, children, |served| {
                        served.request.process == request.process
                            && served.request.served(request)
                            && served.depth + 1 < MAX_DEPTH
                    });
                }
            }
        }
    }

    fn thread(&mut self, node: u32, tid: u32) -> &mut Waiting<T> {
        self.threads.entry((node, tid)).or_insert_with(|| Waiting { own: Vec::new(), served: Vec::new() })
    }

    /// Ends the input: appends all waiting requests to `out`, by completion.
    pub fn finish(mut self, out: &mut Vec<Tree<T>>) {
        self.release_all(out);
    }

    fn release_all(&mut self, out: &mut Vec<Tree<T>>) {
        let start = out.len();
        out.extend(self.threads.drain().flat_map(|(_, thread)| [thread.own, thread.served]).flatten());
        out[start..].sort_by_key(|tree| tree.request.time.end);
        self.waiting = 0;
    }
}

/// Moves the trees that match to the end of `to`.
fn take<T>(from: &mut Vec<T>, to: &mut Vec<T>, is_match: impl Fn(&T) -> bool) {
    to.extend(from.extract_if(.., |tree| is_match(tree)));
}

#[cfg(test)]
mod tests {
    use super::{Linker, MAX_DEPTH, Request, Tree};

    fn request(tid: u32, number: u32, enclosing: u32, time: (i64, i64)) -> Request {
        Request {
            node: 0,
            process: 1,
            tid,
            number,
            enclosing: Some(enclosing).filter(|number| *number != 0),
            caller: None,
            time: time.0..time.1,
            is_async: false,
            is_mpi: false,
            bytes: None,
        }
    }

    fn served(tid: u32, caller: u32, time: (i64, i64)) -> Request {
        Request { process: 2, caller: Some(caller), ..request(tid, 1, 0, time) }
    }

    /// Formats trees as `name(child child)`.
    fn shape(trees: &[Tree<&str>]) -> String {
        let one = |tree: &Tree<&str>| match tree.children.as_slice() {
            [] => tree.value.to_owned(),
            children => format!("{}({})", tree.value, shape(children)),
        };
        trees.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn linked(most: usize, requests: Vec<(&'static str, Request)>) -> String {
        let (mut linker, mut out) = (Linker::new(most), Vec::new());
        for (name, request) in requests {
            linker.push(request, name, &mut out);
        }
        linker.finish(&mut out);
        shape(&out)
    }

    #[test]
    fn parent_named_by_number_gets_its_children() {
        let requests = vec![
            ("a", request(1, 2, 1, (1, 2))),
            ("c", request(1, 4, 3, (4, 5))),
            ("b", request(1, 3, 1, (3, 6))),
            ("other", request(2, 7, 0, (0, 7))),
            ("root", request(1, 1, 0, (0, 8))),
        ];
        assert_eq!(linked(10, requests), "other root(a b(c))");
    }

    #[test]
    fn served_request_belongs_to_innermost_request_of_caller() {
        let requests = vec![
            ("served", served(9, 1, (2, 3))),
            ("posix", request(1, 2, 1, (1, 4))),
            ("mpi", request(1, 1, 0, (0, 5))),
            ("late", served(9, 1, (5, 6))),
        ];
        assert_eq!(linked(10, requests), "mpi(posix(served)) late");
    }

    #[test]
    fn a_client_of_a_client_is_two_levels_down() {
        let requests = vec![
            ("gluster", served(20, 10, (3, 4))),
            ("fuse", served(10, 1, (2, 5))),
            ("posix", request(1, 1, 0, (1, 6))),
        ];
        assert_eq!(linked(10, requests), "posix(fuse(gluster))");
    }

    #[test]
    fn concurrent_requests_get_children_by_byte_range() {
        let under_way = |number, time, bytes| Request {
            is_async: true,
            bytes: Some(bytes),
            ..request(1, number, 0, time)
        };
        let of = |bytes, time| Request { bytes: Some(bytes), ..served(9, 1, time) };
        let requests = vec![
            ("a", of(4096..8192, (2, 3))),
            ("b", of(0..4096, (2, 4))),
            ("first", under_way(1, (0, 5), 0..4096)),
            ("second", under_way(2, (1, 6), 4096..8192)),
        ];
        assert_eq!(linked(10, requests), "first(b) second(a)");
    }

    #[test]
    fn orphans_are_released_when_the_thread_continues() {
        let requests = vec![
            ("orphan", request(1, 2, 1, (1, 2))),
            ("unseen", served(9, 1, (1, 2))),
            ("next", request(1, 3, 0, (3, 4))),
            ("waits", request(1, 5, 4, (5, 6))),
        ];
        assert_eq!(linked(10, requests), "orphan unseen next waits");
    }

    fn mpi(tid: u32, number: u32, time: (i64, i64), bytes: std::ops::Range<i64>) -> Request {
        Request { is_async: true, is_mpi: true, bytes: Some(bytes), ..request(tid, number, 0, time) }
    }

    #[test]
    fn nonblocking_request_keeps_children_past_later_requests() {
        let open = Request { is_mpi: true, ..request(1, 1, 0, (0, 1)) };
        let requests = vec![
            ("open", open),
            ("pwrite", request(1, 3, 2, (2, 3))),
            ("other", request(1, 4, 0, (4, 5))),
            ("iwrite", mpi(1, 2, (2, 6), 0..1)),
        ];
        assert_eq!(linked(10, requests), "open other iwrite(pwrite)");
    }

    #[test]
    fn deferred_mpi_requests_belong_to_the_request_of_the_bytes() {
        let open = Request { is_mpi: true, ..request(1, 1, 0, (0, 1)) };
        let later =
            |tid, time, bytes| Request { caller: Some(1), bytes: Some(bytes), ..request(tid, 9, 0, time) };
        let requests = vec![
            ("open", open),
            // In a call that waits, in a thread of MPI, and in the thread that completes the third
            // request.
            ("a", later(1, (4, 5), 0..10)),
            ("own", request(1, 10, 0, (3, 6))),
            ("b", later(7, (5, 6), 10..20)),
            ("c", later(8, (6, 7), 20..30)),
            ("second", mpi(1, 3, (2, 8), 10..20)),
            ("third", mpi(8, 11, (2, 9), 20..30)),
            ("first", mpi(1, 2, (2, 10), 0..10)),
        ];
        assert_eq!(linked(20, requests), "open own second(b) third(c) first(a)");
    }

    #[test]
    fn orphans_in_a_program_with_mpi_are_bounded() {
        let (mut linker, mut out) = (Linker::new(1 << 20), Vec::new());
        linker.push(Request { is_mpi: true, ..request(1, 1, 0, (0, 1)) }, 0, &mut out);
        for i in 0..20_000 {
            linker.push(request(1, 3, 2, (i, i + 1)), i + 1, &mut out);
            linker.push(request(1, 4, 0, (i, i + 1)), 0, &mut out);
        }
        assert!(out.iter().filter(|tree| tree.value != 0).count() > 10_000);
        linker.finish(&mut out);
        let values: Vec<i64> = out.iter().map(|tree| tree.value).filter(|value| *value != 0).collect();
        assert_eq!(values, (1..=20_000).collect::<Vec<_>>(), "every request once and in order");
    }

    #[test]
    fn same_thread_id_of_another_process_is_not_a_parent() {
        let requests = vec![
            ("child", request(1, 2, 1, (1, 2))),
            ("stranger", Request { process: 5, ..request(1, 1, 0, (0, 3)) }),
        ];
        assert_eq!(linked(10, requests), "stranger child");
    }

    #[test]
    fn too_many_waiting_requests_are_released() {
        let requests = (0..5).map(|i| ("waits", request(1, 10 + i, 1, (0, 1)))).collect();
        assert_eq!(linked(3, requests), "waits waits waits waits waits");
    }

    #[test]
    fn depth_of_trees_is_bounded() {
        let (mut linker, mut out) = (Linker::new(1 << 20), Vec::new());
        for number in (2..100_000).rev() {
            linker.push(request(1, number, number - 1, (0, 1)), (), &mut out);
        }
        linker.finish(&mut out);
        assert!(out.iter().all(|tree| tree.depth < MAX_DEPTH), "trees are dropped recursively");
    }
}

//! Which request was made within which: the trees of calls of a trace.
//!
//! A request names the one of its thread that encloses it, by number. A file-system client serves requests of other
//! processes, and records for which thread: such a request belongs to the innermost request of that thread on the same
//! node during which it ran. A request that completes asynchronously is served while its thread does other things, so
//! there the part of the file must agree as well.
//!
//! MPI carries out a request in whichever call finds something to do, or in a thread of its own: such a request is recorded
//! for the thread that opened the file, and belongs to the request of MPI-IO of the same process that wanted its bytes.
//!
//! Requests come in order of completion, so those within a request come before it. They wait until it comes, or until
//! their thread makes a request of its own that began after they had ended: then what enclosed them was not recorded.
//! In a program with MPI-IO that does not follow, as a non-blocking request ends after others that began later: there
//! they wait as long as there are not too many.

use crate::columns::EventColumns;
use miot_proto::event::flag;
use miot_proto::op::Layer;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Levels of a tree. What a broken producer nests deeper stands for itself.
const DEEPEST: u32 = 64;

/// Requests of a thread that may wait in a program with MPI-IO.
const LASTING: usize = 8192;

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
    /// Begin and completion, nanoseconds.
    pub time: Range<i64>,
    /// True for a request that completed asynchronously.
    pub is_async: bool,
    /// True for a request of MPI-IO.
    pub is_mpi: bool,
    /// Requested bytes of the file, if known.
    pub bytes: Option<Range<i64>>,
}

/// The columns of events that [`Request::of`] requires, apart from `node`.
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
    /// The request of a row of a batch, on a node with this number.
    #[must_use]
    pub fn of(columns: &EventColumns<'_>, node: u32, row: usize) -> Request {
        let end = columns.time.value(row);
        let bytes = columns.offset.get(row).zip(columns.length.get(row));
        Request {
            node,
            process: columns.process.value(row),
            tid: columns.tid.value(row),
            number: columns.request.value(row),
            enclosing: columns.enclosing.get(row),
            caller: columns.caller_tid.get(row),
            time: end.saturating_sub(columns.duration.value(row))..end,
            is_async: columns.flags.value(row) & flag::ASYNC != 0,
            is_mpi: columns.layer.get(row) == Some(Layer::MpiIo.name()),
            bytes: bytes.map(|(offset, length)| offset..offset.saturating_add(length)),
        }
    }

    fn is_outermost(&self) -> bool {
        self.enclosing.is_none()
    }

    /// True if this request served that one of its caller.
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

/// A request and those made within it, by begin.
#[derive(Debug)]
pub struct Tree<T> {
    /// The request.
    pub request: Request,
    /// What the caller knows of it.
    pub value: T,
    /// Requests made within it.
    pub children: Vec<Tree<T>>,
    depth: u32,
}

/// Requests that wait for one to complete within which they were made.
#[derive(Debug)]
struct Waiting<T> {
    /// Of the thread itself.
    own: Vec<Tree<T>>,
    /// Of clients that served it.
    served: Vec<Tree<T>>,
}

/// See the module.
#[derive(Debug)]
pub struct Linker<T> {
    /// By node and thread.
    threads: HashMap<(u32, u32), Waiting<T>>,
    /// Nodes and processes with MPI-IO, and the threads for which they have made requests.
    mpi: HashMap<(u32, u64), HashSet<u32>>,
    waiting: usize,
    most: usize,
}

impl<T> Linker<T> {
    /// `most`: requests that may wait; if there are more, all that wait are given out as they are.
    #[must_use]
    pub fn new(most: usize) -> Linker<T> {
        Linker { threads: HashMap::new(), mpi: HashMap::new(), waiting: 0, most }
    }

    /// Takes in a request, the next in order of completion, and gives out the trees that are complete.
    pub fn push(&mut self, request: Request, value: T, out: &mut Vec<Tree<T>>) {
        let mut children = Vec::new();
        if request.is_mpi {
            self.of_other_threads(&request, &mut children);
        }
        let lasts = self.mpi.contains_key(&(request.node, request.process));
        if let Some(thread) = self.threads.get_mut(&(request.node, request.tid)) {
            let within = |tree: &Tree<T>| tree.depth + 1 < DEEPEST;
            take(&mut thread.own, &mut children, |own| {
                own.request.enclosing == Some(request.number)
                    && own.request.process == request.process
                    && within(own)
            });
            take(&mut thread.served, &mut children, |served| {
                // What MPI makes for itself is made for none of the program's other requests.
                let is_meant = !lasts || request.is_mpi || served.request.process != request.process;
                is_meant && served.request.served(&request) && within(served)
            });
            let before = out.len();
            for waiting in [&mut thread.own, &mut thread.served] {
                if !request.is_outermost() || request.is_async {
                    continue;
                }
                if lasts {
                    // The older half.
                    let excess = if waiting.len() > LASTING { LASTING / 2 } else { 0 };
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
            self.give_up(out);
        }
    }

    /// Requests that the process has made for other threads than the one of this request of MPI-IO, which it has ended:
    /// a thread may end what another one has begun.
    fn of_other_threads(&mut self, request: &Request, children: &mut Vec<Tree<T>>) {
        let threads = self.mpi.entry((request.node, request.process)).or_default();
        if request.is_async {
            for tid in threads.iter().filter(|tid| **tid != request.tid) {
                if let Some(thread) = self.threads.get_mut(&(request.node, *tid)) {
                    take(&mut thread.served, children, |served| {
                        served.request.process == request.process
                            && served.request.served(request)
                            && served.depth + 1 < DEEPEST
                    });
                }
            }
        }
    }

    fn thread(&mut self, node: u32, tid: u32) -> &mut Waiting<T> {
        self.threads.entry((node, tid)).or_insert_with(|| Waiting { own: Vec::new(), served: Vec::new() })
    }

    /// There is nothing more: gives out what still waits, by completion.
    pub fn finish(mut self, out: &mut Vec<Tree<T>>) {
        self.give_up(out);
    }

    fn give_up(&mut self, out: &mut Vec<Tree<T>>) {
        let start = out.len();
        out.extend(self.threads.drain().flat_map(|(_, thread)| [thread.own, thread.served]).flatten());
        out[start..].sort_by_key(|tree| tree.request.time.end);
        self.waiting = 0;
    }
}

/// Moves what is meant to the end of `to`.
fn take<T>(from: &mut Vec<T>, to: &mut Vec<T>, is_meant: impl Fn(&T) -> bool) {
    to.extend(from.extract_if(.., |tree| is_meant(tree)));
}

#[cfg(test)]
mod tests {
    use super::{DEEPEST, Linker, Request, Tree};

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

    /// Trees as `name(child child)`.
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
    fn a_request_has_those_that_name_it() {
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
    fn what_was_served_belongs_to_the_innermost_request_of_the_caller() {
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
    fn requests_under_way_at_once_have_what_served_their_bytes() {
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
    fn what_lost_its_parent_comes_when_the_thread_goes_on() {
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
    fn a_nonblocking_request_has_what_it_did_before_others_that_ended_first() {
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
    fn what_mpi_does_later_or_elsewhere_belongs_to_the_request_that_wants_the_bytes() {
        let open = Request { is_mpi: true, ..request(1, 1, 0, (0, 1)) };
        let later =
            |tid, time, bytes| Request { caller: Some(1), bytes: Some(bytes), ..request(tid, 9, 0, time) };
        let requests = vec![
            ("open", open),
            // In a call that waits, in a thread of MPI, and in the thread that ends the third.
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
    fn what_waits_in_vain_in_a_program_with_mpi_is_bounded() {
        let (mut linker, mut out) = (Linker::new(1 << 20), Vec::new());
        linker.push(Request { is_mpi: true, ..request(1, 1, 0, (0, 1)) }, 0, &mut out);
        for i in 0..20_000 {
            linker.push(request(1, 3, 2, (i, i + 1)), i + 1, &mut out);
            linker.push(request(1, 4, 0, (i, i + 1)), 0, &mut out);
        }
        assert!(out.iter().filter(|tree| tree.value != 0).count() > 10_000);
        linker.finish(&mut out);
        let values: Vec<i64> = out.iter().map(|tree| tree.value).filter(|value| *value != 0).collect();
        assert_eq!(values, (1..=20_000).collect::<Vec<_>>(), "each once, in order");
    }

    #[test]
    fn of_another_process_with_the_same_thread_id_it_is_no_parent() {
        let requests = vec![
            ("child", request(1, 2, 1, (1, 2))),
            ("stranger", Request { process: 5, ..request(1, 1, 0, (0, 3)) }),
        ];
        assert_eq!(linked(10, requests), "stranger child");
    }

    #[test]
    fn too_many_that_wait_are_given_out() {
        let requests = (0..5).map(|i| ("waits", request(1, 10 + i, 1, (0, 1)))).collect();
        assert_eq!(linked(3, requests), "waits waits waits waits waits");
    }

    #[test]
    fn no_tree_is_deeper_than_the_bound() {
        let (mut linker, mut out) = (Linker::new(1 << 20), Vec::new());
        for number in (2..100_000).rev() {
            linker.push(request(1, number, number - 1, (0, 1)), (), &mut out);
        }
        linker.finish(&mut out);
        assert!(out.iter().all(|tree| tree.depth < DEEPEST), "each is dropped by recursion");
    }
}

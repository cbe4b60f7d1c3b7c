//! Trees of requests within the regions of their thread.
//!
//! Requests are linked to regions by thread and time: a region is not their parent. A region
//! completes after the requests within it, perhaps hours later, so the regions of a trace must be
//! known before: only trees within a region wait for it.

use crate::columns::EventColumns;
use crate::link::{Request, Tree};
use miot_trace_store::IdMap;
use std::ops::Range;

/// Columns of events that [`RegionTrees::expect`] requires.
pub const COLUMNS: &[&str] = &["time", "duration", "process", "tid", "layer", "op", "caller_tid"];

/// A process and one of its threads.
type Thread = (u64, u32);

/// Puts trees of requests into the regions within which they ran.
#[derive(Debug)]
pub struct RegionTrees<T> {
    /// Times of the regions of each thread; after [`RegionTrees::ready`] disjoint, in order.
    expected: IdMap<Thread, Vec<Range<i64>>>,
    waiting: IdMap<Thread, Vec<Tree<T>>>,
    count: usize,
    most: usize,
}

/// Returns whether a row is a region.
#[must_use]
pub fn is_region(columns: &EventColumns<'_>, row: usize) -> bool {
    columns.layer.get(row) == Some("app") && columns.op.get(row) == Some("region")
}

/// Returns the thread that made a request; for a region, the one that began it.
fn thread(request: &Request, is_region: bool) -> Thread {
    (request.process, request.caller.filter(|_| is_region).unwrap_or(request.tid))
}

impl<T> RegionTrees<T> {
    /// Returns a value without regions. If more than `most` trees wait, all of them are returned
    /// without their regions.
    #[must_use]
    pub fn new(most: usize) -> RegionTrees<T> {
        RegionTrees { expected: IdMap::default(), waiting: IdMap::default(), count: 0, most }
    }

    /// Adds the region of a row, if it is one.
    pub fn expect(&mut self, columns: &EventColumns<'_>, row: usize) {
        if is_region(columns, row) {
            let end = columns.time.value(row);
            let tid = columns.caller_tid.get(row).unwrap_or(columns.tid.value(row));
            let times = self.expected.entry((columns.process.value(row), tid)).or_default();
            times.push(end.saturating_sub(columns.duration.value(row))..end);
        }
    }

    /// Ends the first pass, in which all regions were added.
    pub fn ready(&mut self) {
        for times in self.expected.values_mut() {
            times.sort_unstable_by_key(|time| (time.start, time.end));
            times.dedup_by(|later, earlier| {
                let joins = later.start <= earlier.end;
                if joins {
                    earlier.end = earlier.end.max(later.end);
                }
                joins
            });
        }
    }

    /// Adds the next complete tree in order of completion, and appends those that wait for no
    /// region to `out`. The root is a region if `is_region`.
    pub fn push(&mut self, mut tree: Tree<T>, is_region: bool, out: &mut Vec<Tree<T>>) {
        let (key, time) = (thread(&tree.request, is_region), tree.request.time.clone());
        let around = self.expected.get(&key).and_then(|times| {
            let at = times.partition_point(|around| around.end < time.end);
            times.get(at).filter(|around| around.start <= time.start)
        });
        let Some(around) = around else { return out.push(tree) };
        let is_last = is_region && time.end >= around.end;
        let waiting = self.waiting.entry(key).or_default();
        if is_region {
            let first = waiting.len();
            let within = |tree: &mut Tree<T>| time.start <= tree.request.time.start;
            let mut children: Vec<Tree<T>> = waiting.extract_if(..first, within).collect();
            children.sort_by_key(|child| child.request.time.start);
            self.count -= children.len();
            for child in children {
                if let Err(child) = tree.adopt(child) {
                    out.push(child);
                }
            }
        }
        waiting.push(tree);
        self.count += 1;
        if is_last {
            self.count -= waiting.len();
            out.append(waiting);
        }
        if self.count > self.most {
            self.release_all(out);
        }
    }

    /// Appends all waiting trees to `out`, by completion.
    pub fn finish(mut self, out: &mut Vec<Tree<T>>) {
        self.release_all(out);
    }

    fn release_all(&mut self, out: &mut Vec<Tree<T>>) {
        let start = out.len();
        out.extend(self.waiting.drain().flat_map(|(_, trees)| trees));
        out[start..].sort_by_key(|tree| tree.request.time.end);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tid: u32, time: Range<i64>) -> Request {
        Request {
            node: 0,
            process: 1,
            tid,
            number: 1,
            enclosing: None,
            caller: None,
            time,
            is_async: false,
            is_mpi: false,
            bytes: None,
        }
    }

    fn shape(trees: &[Tree<&str>]) -> String {
        let one = |tree: &Tree<&str>| match tree.children.as_slice() {
            [] => tree.value.to_owned(),
            children => format!("{}({})", tree.value, shape(children)),
        };
        trees.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// Regions have names in upper case.
    fn nested(most: usize, requests: &[(&'static str, Request)]) -> String {
        let is_region = |name: &str| name.starts_with(char::is_uppercase);
        let mut trees = RegionTrees::new(most);
        for (_, region) in requests.iter().filter(|(name, _)| is_region(name)) {
            trees.expected.entry(thread(region, true)).or_default().push(region.time.clone());
        }
        trees.ready();
        let mut out = Vec::new();
        for (name, request) in requests {
            trees.push(Tree::leaf(request.clone(), *name), is_region(name), &mut out);
        }
        trees.finish(&mut out);
        shape(&out)
    }

    #[test]
    fn requests_are_below_the_innermost_region() {
        let requests = [
            ("before", request(1, 0..1)),
            ("a", request(1, 3..4)),
            ("Step", request(1, 2..5)),
            ("b", request(1, 5..6)),
            ("other", request(2, 5..7)),
            ("Epoch", request(1, 2..8)),
            ("after", request(1, 8..9)),
        ];
        assert_eq!(nested(10, &requests), "before other Epoch(Step(a) b) after");
    }

    #[test]
    fn overlapping_regions_are_siblings() {
        let requests = [
            ("a", request(1, 1..2)),
            ("One", request(1, 0..4)),
            ("b", request(1, 4..5)),
            ("Two", request(1, 3..6)),
        ];
        assert_eq!(nested(10, &requests), "One(a) Two(b)");
    }

    #[test]
    fn region_belongs_to_the_thread_that_began_it() {
        let ended_elsewhere = Request { caller: Some(1), ..request(2, 0..5) };
        let requests = [("a", request(1, 1..2)), ("b", request(2, 1..3)), ("Region", ended_elsewhere)];
        assert_eq!(nested(10, &requests), "b Region(a)");
    }

    #[test]
    fn too_many_waiting_trees_are_released() {
        let mut requests: Vec<_> = (0..5).map(|at| ("a", request(1, at..at + 1))).collect();
        requests.push(("Region", request(1, 0..9)));
        assert_eq!(nested(3, &requests), "a a a a Region(a)");
    }
}

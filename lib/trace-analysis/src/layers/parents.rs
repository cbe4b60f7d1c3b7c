//! MPI-IO requests with child requests that name a parent that never arrives: the begin of a split
//! collective, which completes when the requests that it submitted end, and a request that another
//! thread completed under another number.

use miot_trace_events::{IdMap, Request};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of kept requests of a process.
const REMEMBERED: usize = 4096;

/// A request that a thread completed.
#[derive(Debug)]
struct Ended {
    tid: u32,
    time: Range<i64>,
    operation: usize,
}

#[derive(Debug, Default)]
struct Process {
    /// Operations of begins of split collectives, by thread and number.
    begins: IdMap<(u32, u32), usize>,
    order: VecDeque<(u32, u32)>,
    ended: VecDeque<Ended>,
    /// Any MPI-IO operation of the process.
    last: Option<usize>,
}

/// MPI-IO requests by node and process.
#[derive(Debug, Default)]
pub(super) struct Parents(IdMap<(u32, u64), Process>);

impl Parents {
    /// Adds an MPI-IO request.
    pub(super) fn add(&mut self, request: &Request, operation: usize, begins_split: bool) {
        let process = self.0.entry((request.node, request.process)).or_default();
        process.last = Some(operation);
        if begins_split {
            let key = (request.tid, request.number);
            process.begins.insert(key, operation);
            process.order.push_back(key);
            if process.order.len() > REMEMBERED
                && let Some(oldest) = process.order.pop_front()
            {
                process.begins.remove(&oldest);
            }
        }
        if request.is_async {
            let (tid, time) = (request.tid, request.time.clone());
            process.ended.push_back(Ended { tid, time, operation });
            if process.ended.len() > REMEMBERED {
                process.ended.pop_front();
            }
        }
    }

    /// Returns the operation for which a request without a recorded parent was made.
    pub(super) fn of(&self, request: &Request) -> Option<usize> {
        let process = self.0.get(&(request.node, request.process))?;
        let Some(enclosing) = request.enclosing else {
            // MPI made the request for another thread, or later.
            return process.last.filter(|_| request.caller.is_some() && !request.is_mpi);
        };
        let covers = |ended: &&Ended| {
            let time = &ended.time;
            ended.tid != request.tid && time.start <= request.time.start && request.time.end <= time.end
        };
        let begin = process.begins.get(&(request.tid, enclosing)).copied();
        begin.or_else(|| process.ended.iter().find(covers).map(|ended| ended.operation))
    }
}

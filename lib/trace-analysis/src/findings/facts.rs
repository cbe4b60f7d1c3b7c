//! Input of the rules.

use super::Rule;
use std::collections::HashMap;

/// When something was the case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) begin: i64,
    pub(super) end: i64,
}

impl Span {
    pub(super) fn join(before: &mut Option<Span>, begin: i64, end: i64) {
        let span = before.get_or_insert(Span { begin, end });
        (span.begin, span.end) = (span.begin.min(begin), span.end.max(end));
    }
}

/// Requests of a direction, and the small ones of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) requests: u64,
    pub(super) time: u64,
    pub(super) small: u64,
    pub(super) small_bytes: u64,
    pub(super) small_time: u64,
}

/// One member of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemberFacts {
    pub(super) bytes: u64,
    pub(super) time: u64,
    pub(super) requests: u64,
}

/// One program. Times are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct ProgramFacts {
    pub(super) span: Option<Span>,
    /// Those that go to the file system as they are: neither buffered by the C library nor collective.
    pub(super) reads: Sizes,
    pub(super) writes: Sizes,
    /// The largest block of the file systems, bytes.
    pub(super) block: u64,
    /// Of at least a block, and those that begin within one.
    pub(super) blocks: u64,
    pub(super) misaligned: u64,
    pub(super) data_requests: u64,
    pub(super) data_time: u64,
    pub(super) metadata_requests: u64,
    pub(super) metadata_time: u64,
    pub(super) seeks: u64,
    pub(super) opens: u64,
    pub(super) redundant_opens: u64,
    pub(super) stats: u64,
    pub(super) redundant_stats: u64,
    pub(super) write_requests: u64,
    pub(super) syncs: u64,
    pub(super) sync_time: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    /// Read by a process that had read them before.
    pub(super) reread: u64,
    /// Read by a process after another one had.
    pub(super) read_by_others: u64,
    pub(super) overwritten: u64,
    pub(super) mpi_requests: u64,
    pub(super) members: HashMap<u64, MemberFacts>,
    /// When each rule's case was.
    pub(super) when: HashMap<Rule, Span>,
}

impl ProgramFacts {
    pub(super) fn io_time(&self) -> u64 {
        self.data_time.saturating_add(self.metadata_time).saturating_add(self.sync_time)
    }
}

/// What a program did with a file.
#[derive(Debug, Default)]
pub(super) struct FileFacts {
    /// Block size of its file system, bytes.
    pub(super) block: u32,
    pub(super) bytes: u64,
    /// The first member that moved data.
    pub(super) member: Option<u64>,
    pub(super) is_shared: bool,
    /// How often each rule's case is, or how many bytes.
    pub(super) cases: Vec<(Rule, u64)>,
}

impl FileFacts {
    pub(super) fn case(&self, rule: Rule) -> u64 {
        self.cases.iter().find(|(of, _)| *of == rule).map_or(0, |(_, count)| *count)
    }

    pub(super) fn add(&mut self, rule: Rule, count: u64) {
        match self.cases.iter_mut().find(|(of, _)| *of == rule) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => self.cases.push((rule, count)),
        }
    }
}

//! Input of the rules.

use super::Rule;
use std::collections::HashMap;

/// Time of a case.
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

/// Requests in one direction, and the small ones of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) requests: u64,
    pub(super) time: u64,
    pub(super) small: u64,
    pub(super) small_bytes: u64,
    pub(super) small_time: u64,
}

/// Facts of one member of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemberFacts {
    pub(super) bytes: u64,
    pub(super) time: u64,
    pub(super) requests: u64,
}

impl MemberFacts {
    /// Adds the facts of a process of the member.
    pub(super) fn add(&mut self, other: &MemberFacts) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.time = self.time.saturating_add(other.time);
        self.requests += other.requests;
    }
}

/// Facts of one program. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct ProgramFacts {
    pub(super) span: Option<Span>,
    /// Requests that reach the file system unchanged: neither buffered by the C library nor
    /// collective.
    pub(super) reads: Sizes,
    pub(super) writes: Sizes,
    /// Largest block size of the file systems in bytes.
    pub(super) block: u64,
    /// Requests of at least a block, and those that begin within a block.
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
    /// Bytes read by a process that had read them before.
    pub(super) reread: u64,
    /// Bytes read by a process after another one had read them.
    pub(super) read_by_others: u64,
    pub(super) overwritten: u64,
    pub(super) mpi_requests: u64,
    pub(super) members: HashMap<u64, MemberFacts>,
    /// Time of the cases of each rule.
    when: [Option<Span>; Rule::ALL.len()],
}

impl ProgramFacts {
    /// Adds a case of a rule.
    pub(super) fn case(&mut self, rule: Rule, begin: i64, end: i64) {
        Span::join(&mut self.when[rule as usize], begin, end);
    }

    /// Returns the time of the cases of a rule.
    pub(super) fn when(&self, rule: Rule) -> Option<Span> {
        self.when[rule as usize]
    }

    pub(super) fn io_time(&self) -> u64 {
        self.data_time.saturating_add(self.metadata_time).saturating_add(self.sync_time)
    }
}

/// Accesses of a program to a file.
#[derive(Debug, Default)]
pub(super) struct FileFacts {
    /// Block size of the file system in bytes.
    pub(super) block: u32,
    pub(super) bytes: u64,
    /// First member that moved data.
    pub(super) member: Option<u64>,
    pub(super) is_shared: bool,
    /// Number of cases of each rule, or their bytes.
    pub(super) cases: [u64; Rule::ALL.len()],
}

impl FileFacts {
    pub(super) fn case(&self, rule: Rule) -> u64 {
        self.cases[rule as usize]
    }

    pub(super) fn add(&mut self, rule: Rule, count: u64) {
        let sum = &mut self.cases[rule as usize];
        *sum = sum.saturating_add(count);
    }
}

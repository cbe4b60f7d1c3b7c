//! Report of a check.

use crate::carried::RemovedParts;
use crate::recover::TornTail;
use crate::schema::Table;
use serde::Serialize;
use std::fmt;

/// Problems of one kind that are listed; further ones are only counted. One damaged part can cause
/// millions.
const MAX_LISTED: u64 = 20;
const KINDS: usize = 10;

/// Kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// A file cannot be read to its end, or the directory is not a trace.
    Unreadable,
    /// One part or several consecutive parts are missing.
    MissingPart,
    /// Events are not in order of time.
    Disorder,
    /// An event or an id exists twice, or an event comes before one of its stream with a lower
    /// number.
    Duplicate,
    /// Events are missing without rows of `losses` or records.
    Gap,
    /// The count of a loss does not match its range, or events in the range exist.
    Loss,
    /// A row refers to an id that is not defined.
    Dangling,
    /// A part has fewer rows than the ledger counts.
    Incomplete,
    /// A sealed file is not the one that was sealed.
    Altered,
    /// The ledger is damaged or missing, so completeness cannot be proven.
    Ledger,
}

impl ProblemKind {
    const ALL: [ProblemKind; KINDS] = [
        ProblemKind::Unreadable,
        ProblemKind::MissingPart,
        ProblemKind::Disorder,
        ProblemKind::Duplicate,
        ProblemKind::Gap,
        ProblemKind::Loss,
        ProblemKind::Dangling,
        ProblemKind::Incomplete,
        ProblemKind::Altered,
        ProblemKind::Ledger,
    ];

    fn name(self) -> &'static str {
        match self {
            ProblemKind::Unreadable => "unreadable",
            ProblemKind::MissingPart => "missing part",
            ProblemKind::Disorder => "disorder",
            ProblemKind::Duplicate => "duplicate",
            ProblemKind::Gap => "gap",
            ProblemKind::Loss => "loss",
            ProblemKind::Dangling => "dangling",
            ProblemKind::Incomplete => "incomplete",
            ProblemKind::Altered => "altered",
            ProblemKind::Ledger => "ledger",
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Kind of the problem.
    pub kind: ProblemKind,
    /// Part with the problem, if it is in one.
    pub part: Option<u64>,
    /// Description for people.
    pub text: String,
}

/// Rows of a part that are lost and that a repair or a restarted writer has recorded as such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedRows {
    /// The part.
    pub part: u64,
    /// The table.
    pub table: Table,
    /// Number of rows.
    pub rows: u64,
}

/// Report of a check. `Display` is for people, `Serialize` for programs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Events read.
    pub events: u64,
    /// Parts, live and sealed.
    pub parts: u64,
    /// Sealed parts.
    pub sealed_parts: u64,
    /// Streams that have events or losses.
    pub streams: u64,
    /// Lost events, by `losses`.
    pub lost: u64,
    /// Of these, events that were in the trace and were lost by damage.
    pub damaged: u64,
    /// Rows of side tables that were lost by damage.
    pub gone: Vec<DamagedRows>,
    /// Why completeness is unknown; `None` if it is known.
    pub unproven: Option<String>,
    /// Requests that a filter left out, by duration or sampling.
    pub filtered: u64,
    /// Requests whose numbers another log-server of the set has.
    pub elsewhere: u64,
    /// Events marked late.
    pub late: u64,
    /// What retention has removed.
    pub removed: RemovedParts,
    /// Live streams with an incomplete last message; normal while they are written, and after a
    /// crash.
    pub unfinished: Vec<TornTail>,
    /// The first problems of each kind.
    pub problems: Vec<Problem>,
    /// Stream, first and last number of each gap without rows of `losses` or records.
    #[serde(skip)]
    pub(crate) gaps: Vec<(u64, u64, u64)>,
    /// True if the ledger has numbers of some of these gaps.
    #[serde(skip)]
    pub(crate) known_gaps: bool,
    /// Number of problems by kind.
    counts: [u64; KINDS],
}

impl CheckReport {
    /// Returns true if there is no problem.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the number of problems of a kind, listed or not.
    #[must_use]
    pub fn count(&self, kind: ProblemKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(crate) fn add(&mut self, kind: ProblemKind, part: Option<u64>, text: String) {
        self.counts[kind as usize] += 1;
        if self.counts[kind as usize] <= MAX_LISTED {
            self.problems.push(Problem { kind, part, text });
        }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} in {} ({} sealed); {} lost, {} late",
            counted(self.events, "event"),
            counted(self.streams, "stream"),
            counted(self.parts, "part"),
            self.sealed_parts,
            self.lost,
            self.late
        )?;
        if self.elsewhere > 0 {
            write!(f, ", {} at other log-servers", self.elsewhere)?;
        }
        if self.filtered > 0 {
            write!(f, ", {} filtered out", self.filtered)?;
        }
        writeln!(f)?;
        if self.removed.parts > 0 {
            writeln!(f, "note: {}", self.removed)?;
        }
        for cut in &self.unfinished {
            writeln!(f, "note: {}: {} bytes of an incomplete message", cut.path.display(), cut.bytes)?;
        }
        if self.damaged > 0 {
            let events = counted(self.damaged, "event");
            writeln!(f, "note: {events} of these were in the trace and were lost by damage")?;
        }
        for DamagedRows { part, table, rows } in &self.gone {
            let rows = counted(*rows, "row");
            writeln!(f, "note: part {part}: {rows} of {table} lost by damage")?;
        }
        for problem in &self.problems {
            match problem.part {
                Some(part) => writeln!(f, "{}: part {part}: {}", problem.kind.name(), problem.text)?,
                None => writeln!(f, "{}: {}", problem.kind.name(), problem.text)?,
            }
        }
        for kind in ProblemKind::ALL {
            if self.count(kind) > MAX_LISTED {
                writeln!(f, "{}: {} more", kind.name(), self.count(kind) - MAX_LISTED)?;
            }
        }
        match self.counts.iter().sum::<u64>() {
            0 => {
                let complete = match &self.unproven {
                    Some(unproven) => unproven,
                    None if self.lost > 0 || !self.gone.is_empty() => "complete except for recorded losses",
                    None => "complete",
                };
                write!(f, "good: ordered, {complete}, every reference resolves")
            }
            1 => write!(f, "1 problem"),
            n => write!(f, "{n} problems"),
        }
    }
}

/// Returns e.g. `1 part`, `2 parts`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

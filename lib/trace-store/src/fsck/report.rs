//! What a check found.

use crate::carried::Removed;
use crate::recover::Cut;
use crate::schema::Table;
use serde::Serialize;
use std::fmt;

/// Problems told of one kind; the others are counted. One damaged part can make millions.
const TOLD: u64 = 20;
const KINDS: usize = 10;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A file cannot be read to its end, or the directory is no trace.
    Unreadable,
    /// A part's number is missing, or several in a row.
    MissingPart,
    /// Events are not in order of time.
    Disorder,
    /// An event, or an id, is there twice; or an event stands before one of its stream with a lower number.
    Duplicate,
    /// Events are missing that nothing accounts for.
    Gap,
    /// A loss that does not add up, or events that are told as lost and are there.
    Loss,
    /// Something refers to what is not there.
    Dangling,
    /// Rows that a part had are not in it, as the ledger tells.
    Incomplete,
    /// A sealed file is not the one that was sealed.
    Altered,
    /// The ledger is damaged or missing, so that it cannot be proven that nothing else is.
    Ledger,
}

impl Kind {
    const ALL: [Kind; KINDS] = [
        Kind::Unreadable,
        Kind::MissingPart,
        Kind::Disorder,
        Kind::Duplicate,
        Kind::Gap,
        Kind::Loss,
        Kind::Dangling,
        Kind::Incomplete,
        Kind::Altered,
        Kind::Ledger,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Unreadable => "unreadable",
            Kind::MissingPart => "missing part",
            Kind::Disorder => "disorder",
            Kind::Duplicate => "duplicate",
            Kind::Gap => "gap",
            Kind::Loss => "loss",
            Kind::Dangling => "dangling",
            Kind::Incomplete => "incomplete",
            Kind::Altered => "altered",
            Kind::Ledger => "ledger",
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What is wrong.
    pub kind: Kind,
    /// In which part, if in one.
    pub part: Option<u64>,
    /// For people.
    pub text: String,
}

/// Rows that a part had once, of which a repair, or a writer that went on, has noted that they are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gone {
    /// The part.
    pub part: u64,
    /// The table.
    pub table: Table,
    /// How many rows.
    pub rows: u64,
}

/// What a check found. `Display` is for people, `Serialize` for programs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Events read.
    pub events: u64,
    /// Parts, live and sealed.
    pub parts: u64,
    /// Sealed parts.
    pub sealed_parts: u64,
    /// Streams that have events or losses.
    pub streams: u64,
    /// Events told as lost.
    pub lost: u64,
    /// Of these, events that were in the trace and that damage cost.
    pub damaged: u64,
    /// Rows of side tables that damage cost.
    pub gone: Vec<Gone>,
    /// Why it cannot be known whether the trace is complete, if so.
    pub unproven: Option<String>,
    /// Requests that were left out on purpose, by duration or sampling.
    pub filtered: u64,
    /// Events marked late.
    pub late: u64,
    /// What retention had removed.
    pub removed: Removed,
    /// Live streams whose last message is not all there; normal while they are written, or after a crash.
    pub unfinished: Vec<Cut>,
    /// The first problems of each kind.
    pub problems: Vec<Problem>,
    /// Stream, first and last number of each gap that nothing accounts for.
    #[serde(skip)]
    pub(crate) gaps: Vec<(u64, u64, u64)>,
    /// The ledger knows of some of these.
    #[serde(skip)]
    pub(crate) known_gaps: bool,
    /// How many problems there are, by kind.
    counts: [u64; KINDS],
}

impl Report {
    /// True if there is no problem.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// How many problems of a kind there are, told or not.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    pub(crate) fn add(&mut self, kind: Kind, part: Option<u64>, text: String) {
        self.counts[kind as usize] += 1;
        if self.counts[kind as usize] <= TOLD {
            self.problems.push(Problem { kind, part, text });
        }
    }
}

impl fmt::Display for Report {
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
        if self.filtered > 0 {
            write!(f, ", {} filtered out", self.filtered)?;
        }
        writeln!(f)?;
        if self.removed.parts > 0 {
            writeln!(f, "note: {}", self.removed)?;
        }
        for cut in &self.unfinished {
            writeln!(
                f,
                "note: {}: {} bytes of a message that is not all there",
                cut.path.display(),
                cut.bytes
            )?;
        }
        if self.damaged > 0 {
            let events = counted(self.damaged, "event");
            writeln!(f, "note: {events} of these were in the trace and are lost by damage")?;
        }
        for Gone { part, table, rows } in &self.gone {
            let rows = counted(*rows, "row");
            writeln!(f, "note: part {part}: {rows} of {table} lost by damage")?;
        }
        for problem in &self.problems {
            match problem.part {
                Some(part) => writeln!(f, "{}: part {part}: {}", problem.kind.name(), problem.text)?,
                None => writeln!(f, "{}: {}", problem.kind.name(), problem.text)?,
            }
        }
        for kind in Kind::ALL {
            if self.count(kind) > TOLD {
                writeln!(f, "{}: {} more", kind.name(), self.count(kind) - TOLD)?;
            }
        }
        match self.counts.iter().sum::<u64>() {
            0 => {
                let complete = match &self.unproven {
                    Some(unproven) => unproven,
                    None if self.damaged > 0 || !self.gone.is_empty() => {
                        "complete but for what is told as lost"
                    }
                    None => "complete",
                };
                write!(f, "good: ordered, {complete}, every reference resolves")
            }
            1 => write!(f, "1 problem"),
            n => write!(f, "{n} problems"),
        }
    }
}

/// `1 part`, `2 parts`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

//! Which program, and which of its ranks, a process is: what ran together and may share files.
//!
//! A program is one executable of one job and job step; without a job, of the trace if it has MPI ranks, else of its node. Its
//! members are its ranks, and where there are none its processes. Children of a rank that run the same executable are the
//! rank as well. Two runs of one executable in the same job step cannot be told apart and are one program.

use crate::{column, text};
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use serde::Serialize;
use std::collections::HashMap;

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Job.
    pub job: Option<String>,
    /// Step of the job.
    pub step: Option<String>,
    /// Node, if it is known to have run on one alone because it belongs to nothing else.
    pub node: Option<String>,
    /// Executable; empty if the trace does not say.
    pub exe: String,
    /// Ranks, or processes: those that made traced requests, and those below the highest rank.
    pub members: u64,
    /// Its members are MPI ranks.
    pub ranks: bool,
}

/// Where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Number of the program, see [`Programs::get`].
    pub program: usize,
    /// MPI rank, or the process in the trace.
    pub member: u64,
}

/// What identifies a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    job: Option<String>,
    step: Option<String>,
    node: Option<String>,
    exe: String,
    ranks: bool,
}

/// The programs of a trace.
#[derive(Debug, Default)]
pub struct Programs {
    numbers: HashMap<Key, usize>,
    programs: Vec<Program>,
    members: HashMap<u64, Member>,
}

impl Programs {
    /// From the rows of the table `processes`.
    #[must_use]
    pub fn of(processes: &[RecordBatch]) -> Programs {
        let mut programs = Programs::default();
        for batch in processes {
            let _ = programs.add(batch);
        }
        programs
    }

    fn add(&mut self, batch: &RecordBatch) -> Option<()> {
        let (ids, ranks) = (column::<UInt64Type>(batch, "process")?, column::<UInt32Type>(batch, "rank")?);
        let [job, step, node, exe] = ["job", "job_step", "node", "exe"].map(|name| text(batch, name));
        let (node, exe) = (node?, exe?);
        for row in 0..batch.num_rows() {
            let said = |column: Option<&arrow_array::StringArray>| {
                column.filter(|column| column.is_valid(row)).map(|column| column.value(row).to_owned())
            };
            let rank = ranks.is_valid(row).then(|| ranks.value(row));
            let job = said(job);
            let key = Key {
                node: (job.is_none() && rank.is_none()).then(|| node.value(row).to_owned()),
                step: said(step),
                exe: exe.value(row).to_owned(),
                ranks: rank.is_some(),
                job,
            };
            self.put(ids.value(row), rank, key);
        }
        Some(())
    }

    fn put(&mut self, process: u64, rank: Option<u32>, key: Key) -> Member {
        let number = *self.numbers.entry(key.clone()).or_insert_with(|| {
            let Key { job, step, node, exe, ranks } = key;
            self.programs.push(Program { job, step, node, exe, members: 0, ranks });
            self.programs.len() - 1
        });
        let member = Member { program: number, member: rank.map_or(process, u64::from) };
        if self.members.insert(process, member).is_none() {
            let members = &mut self.programs[number].members;
            // Ranks count from 0, and each of them takes part whether it made requests or not.
            *members = rank.map_or(*members + 1, |rank| (*members).max(u64::from(rank) + 1));
        }
        member
    }

    /// Where a process belongs; one that the trace does not describe belongs to a program without a name.
    pub fn member(&mut self, process: u64) -> Member {
        match self.members.get(&process) {
            Some(member) => *member,
            None => self.put(process, None, Key::default()),
        }
    }

    /// A program by its number.
    ///
    /// # Panics
    /// If there is none of this number.
    #[must_use]
    pub fn get(&self, number: usize) -> &Program {
        &self.programs[number]
    }
}

/// Folders of the system: what programs read there says nothing of how they do their I/O. Darshan leaves out the same
/// (`darshan-core.c`, `darshan_path_exclusions`).
const SYSTEM: [&str; 11] =
    ["/etc/", "/dev/", "/usr/", "/bin/", "/boot/", "/lib/", "/opt/", "/sbin/", "/sys/", "/proc/", "/var/"];

/// True for files of the operating system and its installed programs.
#[must_use]
pub fn is_system(path: &str) -> bool {
    SYSTEM.iter().any(|folder| path.starts_with(folder)) || path.starts_with("/lib64/")
}

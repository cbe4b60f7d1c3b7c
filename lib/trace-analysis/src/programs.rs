//! Groups processes into programs and ranks: processes that ran together and may share files.
//!
//! A program is one executable of one job and job step; without a job, of the trace if it has MPI
//! ranks, else of its node. Its members are its ranks, or its processes if there are no ranks.
//! Children of a rank that run the same executable belong to the rank. Two runs of one executable
//! in the same job step cannot be distinguished and are one program.

use crate::{column, text};
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use miot_trace_events::ById;
use miot_trace_store::FileNames;
use serde::Serialize;
use std::collections::HashMap;

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Job.
    pub job: Option<String>,
    /// Step of the job.
    pub step: Option<String>,
    /// Node, if the program is identified by its node because it has neither job nor ranks.
    pub node: Option<String>,
    /// Executable; empty if the trace does not contain it.
    pub exe: String,
    /// Number of ranks or processes: those that made traced requests, and all ranks below the
    /// highest.
    pub members: u64,
    /// True if its members are MPI ranks.
    pub ranks: bool,
}

/// Program and member of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Number of the program, see [`Programs::get`].
    pub program: usize,
    /// MPI rank, or the process in the trace.
    pub member: u64,
}

/// Identity of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    job: Option<String>,
    step: Option<String>,
    node: Option<String>,
    exe: String,
    ranks: bool,
}

/// Programs of a trace.
#[derive(Debug, Default)]
pub struct Programs {
    numbers: HashMap<Key, usize>,
    programs: Vec<Program>,
    members: ById<Option<Member>>,
}

impl Programs {
    /// Returns the programs from the rows of the table `processes`.
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
            let owned = |column: Option<&arrow_array::StringArray>| {
                column.filter(|column| column.is_valid(row)).map(|column| column.value(row).to_owned())
            };
            let rank = ranks.is_valid(row).then(|| ranks.value(row));
            let job = owned(job);
            let key = Key {
                node: (job.is_none() && rank.is_none()).then(|| node.value(row).to_owned()),
                step: owned(step),
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
        if self.members.get(process).replace(member).is_none() {
            let members = &mut self.programs[number].members;
            // Ranks count from 0, and each of them takes part even without requests.
            *members = rank.map_or(*members + 1, |rank| (*members).max(u64::from(rank) + 1));
        }
        member
    }

    /// Returns the member of a process. A process that the trace does not describe belongs to a
    /// program without a name.
    pub fn member(&mut self, process: u64) -> Member {
        match *self.members.get(process) {
            Some(member) => member,
            None => self.put(process, None, Key::default()),
        }
    }

    /// Returns a program by its number.
    ///
    /// # Panics
    /// If no program has this number.
    #[must_use]
    pub fn get(&self, number: usize) -> &Program {
        &self.programs[number]
    }
}

/// Directories of the operating system and its programs. Darshan excludes these, /opt and /var
/// (`darshan-core.c`, `darshan_path_exclusions`). MIOT includes /opt and /var, which contain data
/// of databases and services, and /dev/shm, which contains data of programs.
const SYSTEM: [&str; 12] = [
    "/etc/", "/dev/", "/usr/", "/bin/", "/boot/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/sbin/",
    "/sys/", "/proc/",
];

/// Names in /dev/shm of memory for communication between MPI processes: UCX, Open MPI, MPICH, PSM.
const COMMUNICATION: [&str; 6] = ["ucx_shm_", "vader_segment.", "sm_segment.", "open_mpi.", "mpich_", "psm"];

/// Returns true for files of the operating system, its installed programs and MPI.
#[must_use]
pub fn is_system(path: &str) -> bool {
    match path.strip_prefix("/dev/shm/") {
        Some(name) => COMMUNICATION.iter().any(|prefix| name.starts_with(prefix)),
        None => SYSTEM.iter().any(|folder| path.starts_with(folder)),
    }
}

/// Outermost requests to files of the system, which an analysis of programs excludes unless
/// requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Number of requests.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Distinguishes files of the system from others, and counts the excluded requests.
#[derive(Debug, Default)]
pub(crate) struct SystemFiles {
    are_included: bool,
    /// Result by file, after the first look-up.
    known: ById<Option<bool>>,
    pub(crate) left_out: LeftOut,
}

impl SystemFiles {
    /// Returns a filter. With `are_included` it excludes no request.
    pub(crate) fn new(are_included: bool) -> SystemFiles {
        SystemFiles { are_included, ..SystemFiles::default() }
    }

    /// Returns true if a request to this file is excluded, and counts it.
    pub(crate) fn leave_out(&mut self, file: u64, moved: u64, paths: &FileNames) -> bool {
        let is_system = *self.known.get(file).get_or_insert_with(|| paths.get(file).is_some_and(is_system));
        let is_left_out = is_system && !self.are_included;
        if is_left_out {
            self.left_out.requests += 1;
            self.left_out.bytes = self.left_out.bytes.saturating_add(moved);
        }
        is_left_out
    }
}

#[cfg(test)]
mod tests {
    use super::{Member, Programs, is_system};
    use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
    use std::sync::Arc;

    /// Process, node, job, rank and executable.
    type ProcessRow = (u64, &'static str, Option<&'static str>, Option<u32>, &'static str);

    fn processes(rows: &[ProcessRow]) -> RecordBatch {
        let columns: [(&str, ArrayRef); 6] = [
            ("process", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0)))),
            ("node", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1)))),
            ("job", Arc::new(StringArray::from_iter(rows.iter().map(|row| row.2)))),
            ("job_step", Arc::new(StringArray::from_iter(rows.iter().map(|_| None::<&str>)))),
            ("rank", Arc::new(UInt32Array::from_iter(rows.iter().map(|row| row.3)))),
            ("exe", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.4)))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn ranks_of_an_executable_in_a_job_are_one_program() {
        let mut programs = Programs::of(&[
            processes(&[(1, "a", Some("7"), Some(0), "/app"), (2, "b", Some("7"), Some(5), "/app")]),
            // The launcher, another job, a child of rank 5.
            processes(&[(3, "a", Some("7"), None, "/mpirun"), (4, "a", Some("8"), Some(0), "/app")]),
            processes(&[(5, "b", Some("7"), Some(5), "/app")]),
        ]);
        let of = |programs: &mut Programs, process| programs.member(process);
        let first = of(&mut programs, 1);
        assert_eq!(of(&mut programs, 2), Member { member: 5, ..first });
        assert_eq!(of(&mut programs, 5), Member { member: 5, ..first });
        // Ranks 1 to 4 made no request, and are members.
        let program = programs.get(first.program);
        assert_eq!((program.members, program.ranks, program.job.as_deref()), (6, true, Some("7")));
        assert_eq!(program.node, None);
        let others: Vec<usize> = [3, 4].map(|process| of(&mut programs, process).program).to_vec();
        assert!(others[0] != others[1] && !others.contains(&first.program));
    }

    #[test]
    fn without_a_job_a_node_s_processes_are_one_program() {
        let mut programs = Programs::of(&[processes(&[
            (1, "a", None, None, "/cp"),
            (2, "a", None, None, "/cp"),
            (3, "b", None, None, "/cp"),
        ])]);
        let [one, two, other, unknown, stranger] = [1, 2, 3, 77, 78].map(|process| programs.member(process));
        assert_eq!((one.program, one.member), (two.program, 1));
        assert!(other.program != one.program && unknown.program == stranger.program);
        let members = |member: Member| programs.get(member.program).members;
        assert_eq!((members(one), members(other), members(unknown)), (2, 1, 2));
        assert_eq!(programs.get(one.program).node.as_deref(), Some("a"));
    }

    #[test]
    fn system_directories_are_recognized() {
        let system = [
            "/usr/lib/x.so",
            "/etc/passwd",
            "/lib64/ld.so",
            "/proc/self/maps",
            "/dev/null",
            "/dev/shm/ucx_shm_posix_1",
        ];
        assert!(system.into_iter().all(is_system));
        let others = [
            "/home/u/etc/x",
            "/tmp/usr",
            "",
            "usr/x",
            "/dev/shm/x",
            "/var/lib/db/base",
            "/opt/app/data",
            "/library/x",
        ];
        assert!(!others.into_iter().any(is_system));
    }
}

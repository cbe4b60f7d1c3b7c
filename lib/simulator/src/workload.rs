//! The workload: programs as sequences of requests and computation.

use std::sync::Arc;

/// One request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Processor time in nanoseconds between the start of the previous request (or of the program)
    /// and the start of this one. Miller calls it process time.
    pub cpu: u64,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Number of the file in [`Workload::files`].
    pub file: u32,
    /// True for a write.
    pub write: bool,
    /// True if the program does not wait for the request.
    pub is_async: bool,
    /// True if the request begins where the previous request of this program on this file in the
    /// same direction ended.
    pub sequential: bool,
}

impl Request {
    /// Returns the offset of the first byte behind the request.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// One simulated process.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name in results.
    pub name: String,
    /// Time at which the process is first ready, in nanoseconds from the begin of the simulation.
    pub start: u64,
    /// Requests in order of their start.
    pub requests: Arc<[Request]>,
    /// Processor time after the start of the last request, nanoseconds.
    pub rest: u64,
    /// Number that is added to the file numbers of `requests`, so that copies of a program have
    /// separate files.
    pub first_file: u32,
}

impl Program {
    /// Returns the total processor time in nanoseconds.
    #[must_use]
    pub fn cpu(&self) -> u64 {
        self.requests.iter().fold(self.rest, |sum, request| sum.saturating_add(request.cpu))
    }
}

/// Programs and their files.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Programs, one per process.
    pub programs: Vec<Program>,
    /// Size of each file in bytes. No program reads or writes beyond it.
    pub files: Vec<u64>,
}

impl Workload {
    /// Returns a workload of one program. Sizes of files and the `sequential` mark are derived from
    /// the requests.
    #[must_use]
    pub fn of(name: &str, mut requests: Vec<Request>, rest: u64) -> Workload {
        let mut ends: Vec<[Option<u64>; 2]> = Vec::new();
        let mut files = Vec::new();
        for request in &mut requests {
            let file = request.file as usize;
            if file >= ends.len() {
                ends.resize(file + 1, [None; 2]);
                files.resize(file + 1, 0);
            }
            let end = &mut ends[file][usize::from(request.write)];
            request.sequential = end.replace(request.end()) == Some(request.offset);
            files[file] = request.end().max(files[file]);
        }
        let program =
            Program { name: name.to_owned(), start: 0, requests: requests.into(), rest, first_file: 0 };
        Workload { programs: vec![program], files }
    }

    /// Adds the programs of another workload, with separate files.
    pub fn add(&mut self, other: Workload) {
        let first = self.files.len() as u32;
        self.files.extend(other.files);
        self.programs.extend(other.programs.into_iter().map(|mut program| {
            program.first_file += first;
            program
        }));
    }

    /// Returns `count` copies of the programs, each with separate files, and numbered if there are
    /// several.
    #[must_use]
    pub fn copies(&self, count: u32) -> Workload {
        let mut all = Workload::default();
        for copy in 1..=count {
            let mut one = self.clone();
            if count > 1 {
                one.programs.iter_mut().for_each(|program| program.name = format!("{} {copy}", program.name));
            }
            all.add(one);
        }
        all
    }

    /// Returns the number of all requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.programs.iter().map(|program| program.requests.len() as u64).sum()
    }
}

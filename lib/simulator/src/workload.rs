//! The workload: programs as sequences of requests with computing in between.

use std::sync::Arc;

/// One request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Processor time between the start of the request before this one (or of the program) and the start of this one,
    /// nanoseconds: what Miller calls process time.
    pub cpu: u64,
    /// Byte offset in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Number of the file in [`Workload::files`].
    pub file: u32,
    /// Data goes to the file.
    pub write: bool,
    /// The program does not wait for it.
    pub is_async: bool,
    /// It begins where this program's request before it on this file, of those that move data the same way, ended.
    pub sequential: bool,
}

impl Request {
    /// First byte behind the request.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// One simulated process.
#[derive(Clone, Debug)]
pub struct Program {
    /// What it is called in results.
    pub name: String,
    /// When it is ready to run for the first time, nanoseconds from the begin of the simulation.
    pub start: u64,
    /// In order of their start.
    pub requests: Arc<[Request]>,
    /// Processor time after the start of the last request, nanoseconds.
    pub rest: u64,
    /// Added to the file numbers of `requests`: copies of a program have files of their own.
    pub first_file: u32,
}

impl Program {
    /// All its processor time, nanoseconds.
    #[must_use]
    pub fn cpu(&self) -> u64 {
        self.requests.iter().fold(self.rest, |sum, request| sum.saturating_add(request.cpu))
    }
}

/// Programs and the files they use.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// One per process.
    pub programs: Vec<Program>,
    /// Bytes of each file: no program reads or writes beyond.
    pub files: Vec<u64>,
}

impl Workload {
    /// One program; sizes of files and the `sequential` mark follow from the requests.
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

    /// Adds the programs of another workload, with files of their own.
    pub fn add(&mut self, other: Workload) {
        let first = self.files.len() as u32;
        self.files.extend(other.files);
        self.programs.extend(other.programs.into_iter().map(|mut program| {
            program.first_file += first;
            program
        }));
    }

    /// The same programs so many times, each with files of its own; numbered if there are several.
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

    /// All requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.programs.iter().map(|program| program.requests.len() as u64).sum()
    }
}

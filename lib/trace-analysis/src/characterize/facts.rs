//! Properties of processes and files from the side tables.

use crate::{column, text};
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch, StringArray};
use miot_trace_events::columns::narrow;
use miot_trace_store::FileNames;
use std::collections::HashMap;

/// Assigns a number from 1 to each text; 0 represents no text.
#[derive(Debug, Default)]
pub(super) struct Texts {
    numbers: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
}

impl Texts {
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.texts.push(text.into());
        let number = self.texts.len() as u32;
        self.numbers.insert(text.into(), number);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&str> {
        Some(self.texts.get((number as usize).checked_sub(1)?)?)
    }
}

/// A process. Numbers are those of [`Texts`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) rank: Option<u32>,
    pub(super) node: u32,
    pub(super) system: u32,
    pub(super) job: u32,
    pub(super) step: u32,
    pub(super) user: u32,
    /// File name of the executable.
    pub(super) command: u32,
    /// Path of the executable.
    pub(super) program: u32,
}

/// The table `processes`.
#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) texts: Texts,
    pub(super) all: HashMap<u64, Process>,
}

impl Processes {
    pub(super) fn of(batches: &[RecordBatch]) -> Processes {
        let mut processes = Processes::default();
        batches.iter().for_each(|batch| _ = processes.add(batch));
        processes
    }

    fn add(&mut self, batch: &RecordBatch) -> Option<()> {
        let ids = column::<UInt64Type>(batch, "process")?;
        let [pid, rank] = ["pid", "rank"].map(|name| column::<UInt32Type>(batch, name));
        let uid = column::<UInt64Type>(batch, "uid");
        let [node, exe, job, system, step, user] =
            ["node", "exe", "job", "job_system", "job_step", "user"].map(|name| text(batch, name));
        let texts = &mut self.texts;
        for row in 0..batch.num_rows() {
            let value = |of: Option<&StringArray>, texts: &mut Texts| match of {
                Some(of) if of.is_valid(row) => texts.number(of.value(row)),
                _ => 0,
            };
            let command = exe.map_or("", |exe| exe.value(row));
            let process = Process {
                pid: pid.as_ref().map_or(0, |pid| pid.value(row)),
                uid: uid.as_ref().map_or(0, |uid| narrow(uid.value(row))),
                rank: rank.as_ref().filter(|rank| rank.is_valid(row)).map(|rank| rank.value(row)),
                node: value(node, texts),
                system: value(system, texts),
                job: value(job, texts),
                step: value(step, texts),
                user: value(user, texts),
                command: texts.number(command.rsplit('/').next().unwrap_or_default()),
                program: texts.number(command),
            };
            self.all.insert(ids.value(row), process);
        }
        Some(())
    }

    /// Returns the data of a process; empty data for a process that is not in the table.
    pub(super) fn get(&self, process: u64) -> Process {
        self.all.get(&process).copied().unwrap_or_default()
    }
}

/// The table `files`.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) names: FileNames,
    /// For a file, the first file with the same path if it is a different one: a file of another
    /// node.
    same: HashMap<u64, u64>,
}

impl Files {
    pub(super) fn of(names: FileNames) -> Files {
        let mut first = HashMap::new();
        let mut same = HashMap::new();
        for (file, path) in names.iter() {
            let first = *first.entry(path).or_insert(file);
            if first != file {
                same.insert(file, first);
            }
        }
        Files { names, same }
    }

    /// Returns the file that represents all files with its path.
    pub(super) fn same(&self, file: u64) -> u64 {
        if self.same.is_empty() { file } else { self.same.get(&file).copied().unwrap_or(file) }
    }
}

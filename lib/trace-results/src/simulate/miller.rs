//! Programs from a trace in Miller's ASCII format, which already has what a simulation needs.

use super::programs::Part;
use crate::Error;
use miot_simulator::{Request, Workload};
use miot_trace_exchange::miller::{Base, Data, Item, Mode, Reader, TICK};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Longest plausible request, and largest plausible offset, as for traces of MIOT. Larger values
/// are treated as damage.
const LONGEST: u64 = 1 << 36;
const FARTHEST: u64 = 1 << 61;

/// Reads a trace. Each process becomes a program with its own files; all start together, as in the
/// paper. Each file number is a separate file: the format assigns a new number at each open.
pub(super) fn read(path: &Path) -> Result<Part, Error> {
    let file = File::open(path)
        .map_err(|error| Error::because(&format!("cannot open {}", path.display()), &error))?;
    let mut reader = Reader::new(BufReader::new(file), Base::Hexadecimal, Mode::Strict);
    let mut programs: BTreeMap<u64, (Vec<Request>, HashMap<u64, u32>)> = BTreeMap::new();
    let (mut other, mut absurd) = (0u64, 0u64);
    while let Some(item) = reader.next() {
        let item = item.map_err(|error| {
            let text = format!(
                "{} is neither a trace directory nor in Miller's format: error in line {}",
                path.display(),
                reader.line()
            );
            Error::because(&text, &error)
        })?;
        let Item::Record(record) = item else { continue };
        if !record.kind.is_logical() || record.kind.data() != Data::File {
            other += 1;
            continue;
        }
        let (requests, files) = programs.entry(record.process).or_default();
        let next = files.len() as u32;
        let file = *files.entry(record.file).or_insert(next);
        let possible = record.length <= LONGEST && record.offset <= FARTHEST;
        absurd += u64::from(!possible);
        requests.push(Request {
            cpu: record.process_time.saturating_mul(TICK),
            offset: if possible { record.offset } else { 0 },
            length: if possible { record.length } else { 0 },
            file,
            write: record.kind.is_write(),
            is_async: record.kind.is_async(),
            sequential: false,
        });
    }
    let mut workload = Workload::default();
    for (process, (requests, _)) in programs {
        workload.add(Workload::of(&format!("process {process}"), requests, 0));
    }
    if workload.programs.is_empty() {
        return Err(Error::Failed(format!(
            "{}: no logical records of file data, so there is nothing to simulate",
            path.display()
        )));
    }
    let mut notes = Vec::new();
    if other > 0 {
        notes.push(format!(
            "{}: {other} records that are physical or not of file data are left out",
            path.display()
        ));
    }
    if absurd > 0 {
        notes.push(format!(
            "{}: {absurd} requests have an impossible size or offset: taken as empty",
            path.display()
        ));
    }
    Ok((workload, notes, Vec::new()))
}

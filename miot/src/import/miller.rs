//! Miller's trace format.

use super::Arguments;
use crate::filter::nanoseconds;
use miot_trace_exchange::TraceBuilder;
use miot_trace_exchange::import::{BadLine, Error, OnError, Report};
use miot_trace_exchange::miller::import::{Options, import as import_into};
use miot_trace_exchange::miller::{Base, ImportError, Mode, ReadError, Reader};
use std::fs::File;
use std::io::{self, BufReader, Read};

/// Imports a file. `progress` is called with the number of bytes read.
pub(super) fn import(
    arguments: &Arguments,
    builder: &mut TraceBuilder,
    on_error: OnError,
    progress: impl Fn(u64),
) -> anyhow::Result<Report> {
    let [path] = arguments.files.as_slice() else {
        anyhow::bail!("--format miller: each file is a separate trace; import one file");
    };
    let base = if arguments.decimal { Base::Decimal } else { Base::Hexadecimal };
    let mode = if arguments.lenient { Mode::Lenient } else { Mode::Strict };
    let options = Options { epoch: nanoseconds(arguments.epoch), node: arguments.node.clone(), base };
    let unreadable = |source| Error::Read { path: path.clone(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mut reader =
        Reader::new(BufReader::with_capacity(256 << 10, CountingReader { file, progress }), base, mode);
    let mut report = Report::default();
    let mut stopped = None;
    let imported = import_into(&mut reader, builder, options, |line, damage| {
        let bad =
            || BadLine { file: path.display().to_string(), line, why: "damaged", text: damage.to_string() };
        stopped = report.bad(on_error, bad).err();
        stopped.is_none()
    });
    match (imported, stopped) {
        (Ok(()), _) => {}
        (Err(_), Some(line)) => return Err(line.into()),
        (Err(ImportError::Read(ReadError::Io(source))), None) => return Err(unreadable(source).into()),
        (Err(error), None) => return Err(error.into()),
    }
    report.lines = reader.line();
    if report.skipped > 0 {
        report.note(
            "times: times and omitted fields of later lines that depend on damaged lines are missing too",
        );
    }
    if reader.oddities() > 0 {
        report.notes.insert("lines with ignored bits", reader.oddities());
    }
    Ok(report)
}

/// Reader that reports the number of bytes read.
struct CountingReader<P> {
    file: File,
    progress: P,
}

impl<P: Fn(u64)> Read for CountingReader<P> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(to)?;
        (self.progress)(bytes as u64);
        Ok(bytes)
    }
}

//! The tables and views of `miot query`, as SQL for other engines.

use super::target::Target;
use super::{Arguments, SqlDialect};
use anyhow::Context as _;
use miot_trace_exchange::views::{self, Dialect};
use miot_trace_store::{Reader, Table};
use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let dialect =
        match arguments.dialect.context("--format views needs --dialect, the engine that reads them")? {
            SqlDialect::Duckdb => Dialect::DuckDb,
            SqlDialect::Spark => Dialect::Spark,
            SqlDialect::Clickhouse => Dialect::ClickHouse,
        };
    anyhow::ensure!(
        arguments.filter.is_empty() && arguments.job.is_empty() && arguments.columns.is_empty(),
        "views are of all events and columns: choose them in SQL"
    );
    let mut target = Target::new(&arguments.output, false)?;
    let (mut files, mut live) = (Vec::new(), 0);
    let mut partitions: HashMap<u16, &Path> = HashMap::new();
    for dir in std::iter::once(&arguments.dir).chain(&arguments.with) {
        let absolute = dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?;
        let reader = Reader::open(&absolute)?;
        let partition = reader.manifest().partition;
        if let Some(other) = partitions.insert(partition, dir) {
            anyhow::bail!(
                "{} and {} are both partition {partition}, so that their ids are the same: write the views of each alone",
                other.display(),
                dir.display()
            );
        }
        files.extend(reader.sealed_files()?);
        let sealed: HashMap<u64, bool> = reader.parts().collect();
        let events = reader.count(Table::Events)?;
        live +=
            events.iter().filter(|(part, _)| sealed.get(part) != Some(&true)).map(|(_, n)| n).sum::<u64>();
    }
    let script = views::script(dialect, &files)?;
    let mut to = target.file()?;
    to.write_all(script.as_bytes())?;
    to.flush()?;
    drop(to);
    target.finish()?;
    if live > 0 {
        eprintln!("miot: {live} events are in a live part, and in the views only when it is sealed");
    }
    Ok(ExitCode::SUCCESS)
}

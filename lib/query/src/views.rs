//! Views over the tables, as SQL; see `docs/guide/query.md`.

use miot_proto::op::{self, OpClass};
use std::collections::BTreeSet;

/// Names of the views.
pub(crate) const NAMES: [&str; 4] = ["io", "file_stats", "job_stats", "paths"];

/// Columns of `io` that are not in the table of events.
pub(crate) const JOINED: [&str; 12] =
    ["path", "path2", "job", "job_system", "rank", "user", "uid", "exe", "comm", "class", "begin", "bytes"];

/// Returns the SQL of a view.
pub(crate) fn sql(name: &str) -> Option<String> {
    match name {
        "paths" => Some(PATHS.to_owned()),
        "io" => Some(io()),
        "file_stats" => Some(stats("path, layer", &[("process", "processes")])),
        "job_stats" => {
            let distinct = [("process", "processes"), ("node", "nodes"), ("file", "files")];
            Some(stats("job, job_system, layer", &distinct))
        }
        _ => None,
    }
}

/// Distinct files: `files` may have several rows per file.
const PATHS: &str =
    "SELECT trace, file, max(node) AS node, max(path) AS path FROM files GROUP BY trace, file";

/// Returns SQL that groups `io` by trace and `by`, and counts distinct values of the columns
/// `distinct`.
fn stats(by: &str, distinct: &[(&str, &str)]) -> String {
    let distinct: String =
        distinct.iter().map(|(column, many)| format!("    count(DISTINCT {column}) AS {many},\n")).collect();
    format!(
        "\
SELECT trace, {by},
{distinct}    count(*) AS requests,
    count(*) FILTER (WHERE class = 'read') AS reads,
    count(*) FILTER (WHERE class = 'write') AS writes,
    count(*) FILTER (WHERE class = 'copy') AS copies,
    sum(bytes) FILTER (WHERE class = 'read') AS read_bytes,
    sum(bytes) FILTER (WHERE class = 'write') AS write_bytes,
    sum(bytes) FILTER (WHERE class = 'copy') AS copy_bytes,
    sum(duration) AS duration,
    max(duration) AS longest,
    count(*) FILTER (WHERE result < 0) AS failed,
    min(\"begin\") AS \"begin\",
    max(time) AS \"end\"
FROM io GROUP BY trace, {by}"
    )
}

/// Returns SQL for data operations, joined with their file and process.
fn io() -> String {
    let (reads, writes, copies) = (list(OpClass::Read), list(OpClass::Write), list(OpClass::Copy));
    format!(
        "\
SELECT e.time,
    arrow_cast(CAST(e.time AS BIGINT) - greatest(e.duration, 0), 'Timestamp(Nanosecond, Some(\"UTC\"))') AS \"begin\",
    e.duration, e.node, e.process, e.pid, e.tid, e.layer, e.op,
    CASE WHEN e.op IN ({reads}) THEN 'read' WHEN e.op IN ({writes}) THEN 'write' ELSE 'copy' END AS class,
    p.job, p.job_system, p.rank, p.user, p.uid, p.exe, t.comm,
    e.file, f.path, e.file2, f2.path AS path2, e.handle,
    e.offset, e.offset2, e.length, e.result, greatest(e.result, 0) AS bytes,
    e.flags, e.stream, e.request, e.enclosing, e.cpu_time, e.mpi_rank, e.trace
FROM events e
LEFT JOIN processes p ON e.process = p.process AND e.trace = p.trace
LEFT JOIN threads t ON e.stream = t.stream AND e.trace = t.trace
LEFT JOIN paths f ON e.file = f.file AND e.trace = f.trace
LEFT JOIN paths f2 ON e.file2 = f2.file AND e.trace = f2.trace
WHERE e.op IN ({reads}, {writes}, {copies})"
    )
}

/// Returns the names of the operations of a class. A name has the same class in all layers.
fn names(class: OpClass) -> BTreeSet<&'static str> {
    op::all_operations().filter(|info| info.class == class).map(|info| info.name).collect()
}

fn list(class: OpClass) -> String {
    let quoted: Vec<String> = names(class).into_iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::names;
    use miot_proto::op::{self, OpClass, ResultMeaning};

    #[test]
    fn name_determines_class_and_data_ops_have_bytes() {
        for info in op::all_operations() {
            let data = [OpClass::Read, OpClass::Write, OpClass::Copy]
                .into_iter()
                .filter(|c| names(*c).contains(info.name));
            let expected = Some(info.class).filter(|class| class.is_data());
            assert_eq!(data.collect::<Vec<_>>(), Vec::from_iter(expected), "{info:?}");
            assert_eq!(info.class.is_data(), info.result == ResultMeaning::Bytes, "{info:?}");
        }
    }
}

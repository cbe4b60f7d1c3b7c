//! SQL views over the tables of a trace, for `miot query` and for other engines; see
//! `docs/guide/query.md` and `docs/guide/export.md`.
//!
//! `io`, `file_stats`, `job_stats` and `paths` are defined once; a [`Dialect`] has what differs
//! between engines. For another engine, [`script`] also defines the tables, from the sealed files.

use arrow_schema::{DataType, Field, Fields};
use miot_proto::op::{self, OpClass};
use miot_trace_store::{SealedFile, Table, schema};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Names of the views, each after those that it reads.
pub const NAMES: [&str; 4] = ["paths", "io", "file_stats", "job_stats"];

/// Columns of `io` that are not in the table of events.
pub const JOINED: [&str; 12] =
    ["path", "path2", "job", "job_system", "rank", "user", "uid", "exe", "comm", "class", "begin", "bytes"];

/// Characters that some engine treats as a pattern, or as the end of a statement, in the path of a
/// file.
const UNUSABLE: [char; 9] = ['*', '?', '[', ']', '{', '}', ';', '`', '\\'];

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `miot query`. Its tables have a column `trace`, because they may be of several traces.
    DataFusion,
    /// DuckDB. Times have microseconds.
    DuckDb,
    /// Apache Spark. Times have microseconds; each has a column with nanoseconds, `time_ns`.
    Spark,
    /// ClickHouse: the server, `clickhouse-local`, chDB.
    ClickHouse,
}

/// The views cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path of a directory cannot be used in SQL.
    #[error(
        "{0} contains `{1}`, which some engines do not take as a character of a path: use a symbolic link"
    )]
    Path(String, char),
}

/// Returns the SQL of a view; `None` if there is none of this name.
#[must_use]
pub fn view(dialect: Dialect, name: &str) -> Option<String> {
    match name {
        "paths" => Some(dialect.paths()),
        "io" => Some(dialect.io()),
        "file_stats" => Some(dialect.stats(&["path", "layer"], &[("process", "processes")])),
        "job_stats" => {
            let distinct = [("process", "processes"), ("node", "nodes"), ("file", "files")];
            Some(dialect.stats(&["job", "job_system", "layer"], &distinct))
        }
        _ => None,
    }
}

/// Returns the statements that define the tables and views over these files. Files of several
/// partitions are one table.
///
/// # Errors
/// [`Error::Path`].
pub fn script(dialect: Dialect, files: &[SealedFile]) -> Result<String, Error> {
    let mut out = String::new();
    for line in dialect.preface() {
        line_of(&mut out, line);
    }
    for table in Table::ALL {
        let select = dialect.table(table, files)?;
        dialect.create(&mut out, table.name(), &select);
    }
    for name in NAMES {
        if let Some(select) = view(dialect, name) {
            dialect.create(&mut out, name, &select);
        }
    }
    Ok(out)
}

fn line_of(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

impl Dialect {
    /// Statements before the first view.
    fn preface(self) -> &'static [&'static str] {
        match self {
            // Spark has no type for nanoseconds.
            Dialect::Spark => &["SET spark.sql.legacy.parquet.nanosAsLong = true;"],
            Dialect::DataFusion | Dialect::DuckDb | Dialect::ClickHouse => &[],
        }
    }

    fn create(self, out: &mut String, name: &str, select: &str) {
        let create = match self {
            Dialect::DataFusion | Dialect::DuckDb => format!("CREATE OR REPLACE VIEW {name} AS"),
            Dialect::Spark => format!("CREATE OR REPLACE TEMPORARY VIEW {name} AS"),
            // Not all of its databases can replace.
            Dialect::ClickHouse => format!("DROP VIEW IF EXISTS {name};\nCREATE VIEW {name} AS"),
        };
        let _ = write!(out, "{create}\n{select};\n");
    }

    /// Quotes a name: some are keywords of some engine.
    fn name(self, name: &str) -> String {
        match self {
            Dialect::DataFusion | Dialect::DuckDb => format!("\"{name}\""),
            Dialect::Spark | Dialect::ClickHouse => format!("`{name}`"),
        }
    }

    fn text(self, text: &str) -> String {
        match self {
            Dialect::DataFusion | Dialect::DuckDb => format!("'{}'", text.replace('\'', "''")),
            Dialect::Spark | Dialect::ClickHouse => {
                format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
            }
        }
    }

    /// Columns that all rows have, after which they are grouped and joined.
    fn common(self) -> &'static [&'static str] {
        match self {
            Dialect::DataFusion => &["trace"],
            Dialect::DuckDb | Dialect::Spark | Dialect::ClickHouse => &[],
        }
    }

    /// Returns the rows of a table.
    fn table(self, table: Table, files: &[SealedFile]) -> Result<String, Error> {
        let now = schema::of(table);
        let mut folders: BTreeMap<&Path, Vec<&SealedFile>> = BTreeMap::new();
        for file in files.iter().filter(|file| file.table == table) {
            let path = file.path.to_string_lossy();
            if let Some(unusable) = path.chars().find(|c| UNUSABLE.contains(c)) {
                return Err(Error::Path(path.into_owned(), unusable));
            }
            folders.entry(file.path.parent().unwrap_or(&file.path)).or_default().push(file);
        }
        let mut groups: Vec<(&Fields, Vec<String>)> = Vec::new();
        let mut add = |columns, path| match groups.iter_mut().find(|(found, _)| *found == columns) {
            Some((_, paths)) => paths.push(path),
            None => groups.push((columns, vec![path])),
        };
        for (folder, files) in folders {
            // Then parts that are sealed later belong to the view, too.
            if files.iter().all(|file| !file.is_removed && file.columns == *now.fields()) {
                add(now.fields(), format!("{}/*.parquet", folder.display()));
                continue;
            }
            for file in files.into_iter().filter(|file| !file.is_removed) {
                add(&file.columns, file.path.to_string_lossy().into_owned());
            }
        }
        if groups.is_empty() {
            let columns = now.fields().iter().flat_map(|field| self.columns(field, None));
            let columns: Vec<String> = columns.collect();
            return Ok(format!("SELECT {} WHERE 1 = 0", columns.join(", ")));
        }
        let mut selects = Vec::new();
        for (found, paths) in groups {
            let columns: Vec<String> = now
                .fields()
                .iter()
                .enumerate()
                .flat_map(|(at, field)| self.columns(field, found.get(at)))
                .collect();
            for source in self.sources(table, found, &paths) {
                selects.push(format!("SELECT {}\nFROM {source}", columns.join(", ")));
            }
        }
        Ok(selects.join("\nUNION ALL\n"))
    }

    /// Returns what stands after FROM for these files, which have the columns `found`.
    fn sources(self, table: Table, found: &Fields, paths: &[String]) -> Vec<String> {
        match self {
            Dialect::DataFusion | Dialect::DuckDb => {
                let paths: Vec<String> = paths.iter().map(|path| self.text(path)).collect();
                vec![format!("read_parquet([{}])", paths.join(", "))]
            }
            Dialect::Spark => paths.iter().map(|path| format!("parquet.`{path}`")).collect(),
            Dialect::ClickHouse => {
                let columns: Vec<String> = found
                    .iter()
                    .map(|field| {
                        let kind = self.type_of(field.data_type());
                        // Rows of events without a row in a side table have nulls there.
                        let is_nullable = field.is_nullable() || table != Table::Events;
                        let kind = if is_nullable { format!("Nullable({kind})") } else { kind.to_owned() };
                        format!("{} {kind}", self.name(field.name()))
                    })
                    .collect();
                let columns = self.text(&columns.join(", "));
                paths.iter().map(|path| format!("file({}, 'Parquet', {columns})", self.text(path))).collect()
            }
        }
    }

    /// Returns the columns of a view for a column of a table that the file has as `found`.
    fn columns(self, now: &Field, found: Option<&Arc<Field>>) -> Vec<String> {
        let name = self.name(now.name());
        let kind = self.type_of(now.data_type());
        let is_time = matches!(now.data_type(), DataType::Timestamp(..));
        if let (Dialect::Spark, true) = (self, is_time) {
            let nanoseconds = self.name(&format!("{}_ns", now.name()));
            return match found {
                Some(_) => vec![
                    format!("timestamp_micros({name} DIV 1000) AS {name}"),
                    format!("{name} AS {nanoseconds}"),
                ],
                None => vec![
                    format!("CAST(NULL AS TIMESTAMP) AS {name}"),
                    format!("CAST(NULL AS BIGINT) AS {nanoseconds}"),
                ],
            };
        }
        let is_same = |found: &Field| self.type_of(found.data_type()) == kind;
        vec![match found {
            Some(found) if is_same(found) => name,
            // Numbers of an earlier version that do not fit are null.
            Some(_) => match self {
                Dialect::ClickHouse => format!("accurateCastOrNull({name}, '{kind}') AS {name}"),
                _ => format!("TRY_CAST({name} AS {kind}) AS {name}"),
            },
            None if self == Dialect::ClickHouse => format!("CAST(NULL AS Nullable({kind})) AS {name}"),
            None => format!("CAST(NULL AS {kind}) AS {name}"),
        }]
    }

    fn type_of(self, data_type: &DataType) -> &'static str {
        let names = match data_type {
            DataType::Int32 => ["INTEGER", "INT", "Int32"],
            DataType::Int64 => ["BIGINT", "BIGINT", "Int64"],
            // Earlier versions.
            DataType::UInt16 => ["USMALLINT", "UNSIGNED 16", "UInt16"],
            DataType::UInt32 => ["UINTEGER", "UNSIGNED 32", "UInt32"],
            DataType::UInt64 => ["UBIGINT", "UNSIGNED 64", "UInt64"],
            DataType::Binary => ["BLOB", "BINARY", "String"],
            DataType::Timestamp(..) => ["TIMESTAMP WITH TIME ZONE", "TIMESTAMP", "DateTime64(9, 'UTC')"],
            _ => ["VARCHAR", "STRING", "String"],
        };
        match self {
            Dialect::DataFusion | Dialect::DuckDb => names[0],
            Dialect::Spark => names[1],
            Dialect::ClickHouse => names[2],
        }
    }

    /// Distinct files: `files` may have several rows per file.
    fn paths(self) -> String {
        let keys: Vec<String> = self.common().iter().chain(&["file"]).map(|key| format!("f.{key}")).collect();
        let keys = keys.join(", ");
        format!("SELECT {keys}, max(f.node) AS node, max(f.path) AS path\nFROM files f GROUP BY {keys}")
    }

    /// Returns SQL that groups `io` by `by`, and counts distinct values of the columns `distinct`.
    fn stats(self, by: &[&str], distinct: &[(&str, &str)]) -> String {
        let keys: Vec<String> = self.common().iter().chain(by).map(|key| format!("i.{key}")).collect();
        let keys = keys.join(", ");
        let mut columns: Vec<String> =
            distinct.iter().map(|(column, many)| format!("count(DISTINCT i.{column}) AS {many}")).collect();
        columns.push("count(*) AS requests".to_owned());
        let classes = [("read", "reads"), ("write", "writes"), ("copy", "copies")];
        columns.extend(classes.map(|(class, many)| format!("{} AS {many}", self.count_of(class))));
        columns.extend(classes.map(|(class, _)| format!("{} AS {class}_bytes", self.bytes_of(class))));
        columns.push("sum(i.duration) AS duration".to_owned());
        columns.push("max(i.duration) AS longest".to_owned());
        columns.push(match self {
            Dialect::ClickHouse => "countIf(i.result < 0) AS failed".to_owned(),
            _ => "count(*) FILTER (WHERE i.result < 0) AS failed".to_owned(),
        });
        let (begin, end) = (self.name("begin"), self.name("end"));
        columns.push(format!("min(i.{begin}) AS {begin}"));
        columns.push(format!("max(i.time) AS {end}"));
        format!("SELECT {keys},\n    {}\nFROM io i GROUP BY {keys}", columns.join(",\n    "))
    }

    fn count_of(self, class: &str) -> String {
        match self {
            Dialect::ClickHouse => format!("countIf(i.class = '{class}')"),
            _ => format!("count(*) FILTER (WHERE i.class = '{class}')"),
        }
    }

    /// Bytes of a class; null if there is no such request.
    fn bytes_of(self, class: &str) -> String {
        match self {
            Dialect::ClickHouse => format!("sumOrNullIf(i.bytes, i.class = '{class}')"),
            _ => format!("sum(i.bytes) FILTER (WHERE i.class = '{class}')"),
        }
    }

    /// Returns the start of an event.
    fn begin(self) -> &'static str {
        match self {
            Dialect::DataFusion => {
                "arrow_cast(CAST(e.time AS BIGINT) - greatest(e.duration, 0), 'Timestamp(Nanosecond, Some(\"UTC\"))')"
            }
            Dialect::DuckDb => "e.time - to_microseconds(greatest(e.duration, 0) // 1000)",
            Dialect::Spark => "timestamp_micros((e.time_ns - greatest(e.duration, 0)) DIV 1000)",
            Dialect::ClickHouse => {
                "fromUnixTimestamp64Nano(toUnixTimestamp64Nano(e.time) - greatest(e.duration, 0), 'UTC')"
            }
        }
    }

    /// Returns columns of a table under their own names: otherwise some engines name them after
    /// their table as well.
    fn named(self, table: &str, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("{table}.{0} AS {0}", self.name(name))).collect()
    }

    /// Returns SQL for data operations, joined with their file and process.
    fn io(self) -> String {
        let of = |class| {
            let quoted: Vec<String> = names(class).into_iter().map(|name| format!("'{name}'")).collect();
            quoted.join(", ")
        };
        let (reads, writes, copies) = (of(OpClass::Read), of(OpClass::Write), of(OpClass::Copy));
        let class = format!(
            "CASE WHEN e.op IN ({reads}) THEN 'read'\n        WHEN e.op IN ({writes}) THEN 'write' ELSE 'copy' END AS class"
        );
        let time_ns: &[&str] = if self == Dialect::Spark { &["time_ns"] } else { &[] };
        let columns = [
            self.named("e", &["time"]),
            self.named("e", time_ns),
            vec![format!("{} AS {}", self.begin(), self.name("begin"))],
            self.named("e", &["duration", "node", "process", "pid", "tid", "layer", "op"]),
            vec![class],
            self.named("p", &["job", "job_system", "rank", "user", "uid", "exe"]),
            self.named("t", &["comm"]),
            self.named("e", &["file"]),
            self.named("f", &["path"]),
            self.named("e", &["file2"]),
            vec!["f2.path AS path2".to_owned()],
            self.named("e", &["handle", "offset", "offset2", "length", "result"]),
            vec!["greatest(e.result, 0) AS bytes".to_owned()],
            self.named("e", &["flags", "stream", "request", "enclosing", "cpu_time", "mpi_rank"]),
            self.named("e", self.common()),
        ];
        let join = |table: &str, alias: &str, column: &str, of: &str| {
            let common = self.common().iter().map(|key| format!(" AND e.{key} = {alias}.{key}"));
            format!("LEFT JOIN {table} {alias} ON e.{column} = {alias}.{of}{}\n", common.collect::<String>())
        };
        let joins = [
            join("processes", "p", "process", "process"),
            join("threads", "t", "stream", "stream"),
            join("paths", "f", "file", "file"),
            join("paths", "f2", "file2", "file"),
        ];
        format!(
            "SELECT {}\nFROM events e\n{}WHERE e.op IN ({reads}, {writes}, {copies})",
            columns.concat().join(",\n    "),
            joins.concat()
        )
    }
}

/// Returns the names of the operations of a class. A name has the same class in all layers.
fn names(class: OpClass) -> BTreeSet<&'static str> {
    op::all_operations().filter(|info| info.class == class).map(|info| info.name).collect()
}

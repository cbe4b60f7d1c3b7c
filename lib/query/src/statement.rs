//! Runs statements, and prints notes beside their rows.

use crate::catalog::Tables;
use crate::explain::{Explained, explain};
use crate::output::{Out, Output};
use crate::session::{Session, statements};
use crate::{report, temporary};
use datafusion::arrow::array::{AsArray as _, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::sql::parser::Statement;
use futures_util::TryStreamExt as _;
use miot_proto::text::{EscapeStyle, EscapingWriter};
use miot_query::cli::Format;
use miot_trace_store::schema::{ELSEWHERE, FILTERED};
use std::io::{BufWriter, IsTerminal as _, Write, stdout};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

/// Exit code for wrong usage or invalid SQL.
const EXIT_USAGE: u8 = 2;
const EXIT_FAILED: u8 = 1;
/// Exit code if some rows could not be read.
const EXIT_INCOMPLETE: u8 = 4;
/// Exit code for a closed pipe, that of SIGPIPE. The signal itself would leave temporary files.
const EXIT_UNREAD: u8 = 141;
/// Maximum number of attempts of a statement whose parts are removed before it reads them.
const ATTEMPTS: usize = 20;

/// Reason for a failure, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) code: u8,
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), code: EXIT_USAGE }
    }

    /// A result that lacks data.
    pub(crate) fn incomplete(text: String) -> Failure {
        Failure { text, code: EXIT_INCOMPLETE }
    }

    pub(crate) fn other(error: impl Into<anyhow::Error>) -> Failure {
        Failure { text: format!("{:#}", error.into()), code: EXIT_FAILED }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        match error.downcast::<DataFusionError>() {
            Ok(error) => error.into(),
            Err(error) => Failure::other(error),
        }
    }
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Failure {
        let Explained { text, is_sql } = explain(&error);
        Failure { text, code: if is_sql { EXIT_USAGE } else { EXIT_FAILED } }
    }
}

/// Runs all statements of a text.
pub(crate) async fn all(session: &Session, sql: &str) -> Result<(), Failure> {
    let options = &session.options;
    let statements = statements(sql)?;
    match statements.len() {
        0 => return Err(Failure::usage("there is no SQL: miot query TRACE 'SELECT …'")),
        1 => {}
        _ if options.format.is_binary() || options.output.is_some() => {
            return Err(Failure::usage("a file can hold the rows of one statement, but there are several"));
        }
        _ => {}
    }
    let mut last = None;
    for statement in statements {
        last = Some(one(session, statement).await?);
    }
    let Some(tables) = last else { return Ok(()) };
    match notes(session, &tables).await? {
        true => Ok(()),
        false => Err(Failure { text: String::new(), code: EXIT_INCOMPLETE }),
    }
}

/// Runs a statement. If retention removes its parts before the first row, the statement restarts
/// with the remaining parts.
async fn one(session: &Session, statement: Statement) -> Result<Arc<Tables>, Failure> {
    let options = &session.options;
    let mut attempt = 1;
    let (tables, first, rest) = loop {
        let tables = session.open().await?;
        match begin(session, statement.clone()).await {
            Ok((first, rest)) if !tables.missed() => break (tables, first, rest),
            Err(error) if !tables.overtaken() => return Err(error.into()),
            _ => {
                attempt += 1;
                if attempt > ATTEMPTS {
                    return Err(overtaken());
                }
            }
        }
    };
    let written = match &options.output {
        None if stdout().is_terminal() => {
            let escape = if options.format == Format::Json { EscapeStyle::Json } else { EscapeStyle::Braces };
            write(options.format, BufWriter::new(EscapingWriter::new(Out, escape)), first, rest).await
        }
        None => write(options.format, BufWriter::new(Out), first, rest).await,
        Some(path) => to_file(options.format, path, first, rest).await,
    };
    match written {
        Err(_) if Out::is_unread() => Err(Failure { text: String::new(), code: EXIT_UNREAD }),
        Err(_) if tables.overtaken() => Err(overtaken()),
        Ok(()) if tables.missed() => Err(overtaken()),
        written => written.map(|()| tables),
    }
}

fn overtaken() -> Failure {
    Failure {
        text: "retention removed parts before the query could read them: run it again".to_owned(),
        code: EXIT_FAILED,
    }
}

/// Returns the first batch and the stream of the others.
async fn begin(
    session: &Session,
    statement: Statement,
) -> datafusion::error::Result<(Option<RecordBatch>, SendableRecordBatchStream)> {
    let mut rows = session.rows(statement).await?;
    Ok((rows.try_next().await?, rows))
}

async fn write(
    format: Format,
    out: impl Write + Send,
    mut next: Option<RecordBatch>,
    mut rest: SendableRecordBatchStream,
) -> Result<(), Failure> {
    let mut output = Output::new(format, out, rest.schema())?;
    while let Some(batch) = next {
        output.write(&batch)?;
        next = rest.try_next().await?;
    }
    Ok(output.finish()?)
}

/// Writes to a file that is renamed to `path` when it is complete.
async fn to_file(
    format: Format,
    path: &Path,
    first: Option<RecordBatch>,
    rest: SendableRecordBatchStream,
) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure {
        text: format!("cannot write {}: {error}", path.display()),
        code: EXIT_FAILED,
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = std::fs::Permissions::from_mode(0o666);
    let file = temporary::file(tempfile::Builder::new().permissions(permissions), folder).map_err(cannot)?;
    write(format, BufWriter::new(file.as_file()), first, rest).await?;
    file.persist(path).map_err(|error| cannot(error.error))?;
    Ok(())
}

/// Reports lost events and unreadable files. Returns true if everything could be read.
async fn notes(session: &Session, tables: &Tables) -> Result<bool, Failure> {
    let several = tables.traces().len() > 1;
    let of = |name: &str| if several { format!("{name}: ") } else { String::new() };
    let mut is_whole = true;
    for trace in tables.traces() {
        for unread in trace.unread() {
            is_whole = false;
            report(&format!("{}{unread}: figures are lower bounds; see miot fsck", of(&trace.name)));
        }
    }
    let sql = format!(
        "SELECT trace, sum(count) FROM losses WHERE place <> '{FILTERED}' AND NOT starts_with(place, '{ELSEWHERE}') \
         GROUP BY trace HAVING sum(count) > 0"
    );
    for statement in statements(&sql)? {
        let mut rows = session.rows(statement).await?;
        while let Some(batch) = rows.try_next().await? {
            let (names, counts) =
                (batch.column(0).as_string_opt::<i32>(), batch.column(1).as_primitive_opt::<Int64Type>());
            let (Some(names), Some(counts)) = (names, counts) else { continue };
            for (name, lost) in names.iter().zip(counts.values()) {
                let of = of(name.unwrap_or_default());
                report(&format!(
                    "{of}events lost: {lost}; figures are lower bounds, see docs/reference/losses.md"
                ));
            }
        }
    }
    Ok(is_whole)
}

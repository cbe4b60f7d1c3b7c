//! The interactive shell. Each statement runs in a separate process, which Ctrl-C ends at any time.

use crate::catalog;
use anyhow::Context as _;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};
use signal_hook::consts::SIGINT;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

const HELP: &str = "\
SELECT …;       a query; may span lines, ends with a semicolon
\\d              tables and views
\\d NAME         columns of a table or view
\\h              this help
\\q              quit, like Ctrl-D
Ctrl-C          discards the input, or ends the running query
Each query reads the state of the trace at its start. Examples: docs/guide/query.md";

struct Statements;

impl Helper for Statements {}
impl Hinter for Statements {
    type Hint = String;
}
impl Highlighter for Statements {}

impl Completer for Statements {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let begin = line[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        let names = catalog::names().filter(|name| name.starts_with(&line[begin..at]));
        Ok((begin, names.map(str::to_owned).collect()))
    }
}

impl Validator for Statements {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let complete = is_complete(context.input());
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

fn is_complete(input: &str) -> bool {
    let input = input.trim();
    input.is_empty()
        || input.starts_with('\\')
        || input.ends_with(';')
        || matches!(input, "quit" | "exit" | "help")
}

/// Returns the file of the input history.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    let folder = state.join("miot");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("query-history"))
}

/// Reads statements and runs them until there are no more.
pub(crate) fn run() -> anyhow::Result<()> {
    // SIGINT is meant for the running statement.
    signal_hook::flag::register(SIGINT, Arc::default())?;
    let mut editor: Editor<Statements, FileHistory> = Editor::new()?;
    editor.set_helper(Some(Statements));
    let history = history();
    if let Some(history) = &history {
        let _ = editor.load_history(history);
    }
    println!("\\h for help");
    loop {
        let line = match editor.readline("miot> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line);
        if let Some(history) = &history {
            let _ = editor.append_history(history);
        }
        let sql = match line
            .trim_end_matches(';')
            .split_once(char::is_whitespace)
            .unwrap_or((line.trim_end_matches(';'), ""))
        {
            ("\\q" | "quit" | "exit", _) => break,
            ("\\h" | "\\?" | "help", "") => {
                println!("{HELP}");
                continue;
            }
            ("\\d", "") => {
                "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'trace'"
                    .to_owned()
            }
            ("\\d", name) => format!(
                "SELECT column_name AS \"column\", data_type AS type, is_nullable AS \"null\" FROM information_schema.columns WHERE table_name = '{}'",
                name.trim().replace('\'', "''")
            ),
            (other, _) if other.starts_with('\\') => {
                println!("no such command: {other}\n{HELP}");
                continue;
            }
            _ => line.to_owned(),
        };
        ask(&sql).context("the statement cannot be run")?;
    }
    Ok(())
}

/// Runs this program again with the same arguments and the statement as its input. The child
/// process reports its errors.
fn ask(sql: &str) -> io::Result<()> {
    let mut this = Command::new(std::env::current_exe()?);
    let mut running = this.args(std::env::args_os().skip(1)).stdin(Stdio::piped()).spawn()?;
    // A child process that has already ended has reported the reason.
    let _ = running.stdin.take().map(|mut input| input.write_all(sql.as_bytes()));
    running.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_complete;

    #[test]
    fn statement_ends_with_semicolon() {
        assert!(
            is_complete("SELECT 1\n;") && is_complete("\\d io") && is_complete("  ") && is_complete("quit")
        );
        assert!(!is_complete("SELECT 1") && !is_complete("SELECT ';'\n"));
    }
}

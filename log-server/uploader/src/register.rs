//! Registers a part in a table catalog, by a program of the site's choice.
//!
//! The program gets one line of JSON on its standard input:
//!
//! ```json
//! {"store":"s3://b/c","part":3,
//!  "files":[{"table":"events","url":"s3://b/c/events/part-000003.parquet"}]}
//! ```
//!
//! Exit code 0: the part is registered. After any other the program is run again later, and also
//! after a crash in between, so it must accept a part that it has registered before.

use crate::error::Error;
use miot_trace_store::upload::PartToUpload;
use serde::Serialize;
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Bytes of the program's messages in an error.
const MAX_MESSAGE: usize = 1000;

#[derive(Serialize)]
struct Part<'a> {
    store: &'a str,
    part: u64,
    files: Vec<File<'a>>,
}

#[derive(Serialize)]
struct File<'a> {
    table: &'a str,
    url: String,
}

/// Runs the program for a part of the store at this address, and waits for its end.
///
/// # Errors
/// [`Error::Register`].
pub async fn register(command: &[String], store: &str, part: &PartToUpload) -> Result<(), Error> {
    let Some((program, words)) = command.split_first() else { return Ok(()) };
    let fail = |reason: String| Error::Register { program: program.clone(), part: part.part, reason };
    let files = part.files.iter().filter_map(|file| {
        let (table, _) = file.name.split_once('/')?;
        Some(File { table, url: format!("{store}/{}", file.name) })
    });
    let text = serde_json::to_string(&Part { store, part: part.part, files: files.collect() })
        .map_err(|error| fail(error.to_string()))?;
    let mut running = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| fail(format!("cannot be started: {error}")))?;
    if let Some(mut input) = running.stdin.take() {
        // A program that does not read it says by its exit code whether that is an error.
        let _ = input.write_all(format!("{text}\n").as_bytes()).await;
    }
    let ended = running.wait_with_output().await.map_err(|error| fail(error.to_string()))?;
    if ended.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&ended.stderr);
    let message = message.trim();
    let start = message.len().saturating_sub(MAX_MESSAGE);
    let start = (start..message.len()).find(|at| message.is_char_boundary(*at)).unwrap_or(start);
    Err(fail(format!("{}: {}", ended.status, &message[start..])))
}

//! Recovery of the spool of an earlier log-client.

use super::format::{self, HEADER, Header};
use super::ledger::LedgerContents;
use super::scan::{FrameScanner, ScanResult};
use super::{FileInfo, RecoveredSpool, Spool, condense, random};
use crate::error::Error;
use miot_proto::wire::Message;
use rustix::fs::{AtFlags, Dir, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// Content of one file.
struct RecoveredFile {
    info: FileInfo,
    boot: u128,
    session: u64,
    node: String,
    next_stream: u32,
    watermark: Option<i64>,
}

/// Content of all files.
struct RecoveredFiles {
    files: Vec<FileInfo>,
    /// No file is damaged, and no messages are missing between them.
    intact: bool,
    /// Boot and session of the newest file with a valid head.
    newest: Option<(u128, u64)>,
    next_stream: u32,
    watermark: Option<i64>,
    /// A value above every [`FileInfo::generation`] assigned here.
    generation: u64,
}

/// Reads all files and takes them over.
pub(super) fn recover(spool: &Spool) -> Result<RecoveredSpool, Error> {
    let (numbers, ledgers) = file_numbers(spool)?;
    let mut found = read_files(spool, &numbers)?;
    let (contents, orphans) = read_ledgers(spool, &ledgers, &mut found.files)?;
    // A ledger entry is written after its message, so a ledger must not be ahead of the files.
    let last = found.files.last().map_or(0, |info| info.last);
    let intact = found.intact && orphans.is_empty() && contents.last <= last;
    if !intact {
        tracing::error!(
            dir = %spool.path.display(),
            "files of the spool are damaged: messages to the log-server are lost"
        );
    }
    let RecoveredFiles { files, newest, next_stream, watermark, generation, .. } = found;
    let mut state = spool.state();
    state.generation = generation;
    state.last_file = numbers.last().max(ledgers.last()).copied().unwrap_or(0);
    (state.replay_needed, state.orphans) = (!intact, orphans);
    if let (Some(oldest), Some(newest)) = (files.first(), files.last()) {
        state.acknowledged = oldest.first - 1;
        state.last = newest.last;
    }
    state.session = match newest {
        Some((boot, session)) if boot == spool.boot && intact && !files.is_empty() => session,
        _ => random()?,
    };
    spool.held.store(files.iter().map(|info| info.end + info.ledger).sum(), Relaxed);
    let messages = files.iter().map(|info| info.last - info.first + 1).sum();
    state.files = files.into();
    let next_stream = next_stream.max(contents.next_stream());
    Ok(RecoveredSpool { messages, intact, next_stream, watermark })
}

/// Reads the files with these numbers, and removes those that are not needed.
fn read_files(spool: &Spool, numbers: &[u64]) -> Result<RecoveredFiles, Error> {
    let mut found = RecoveredFiles {
        files: Vec::new(),
        intact: true,
        newest: None,
        next_stream: 0,
        watermark: None,
        generation: 1,
    };
    for &number in numbers {
        let name = format::name(number);
        let path = || spool.path.join(&name);
        let file = spool
            .open_file(&name, OFlags::RDWR)
            .map_err(|error| Error::path("cannot open", path(), error))?;
        let (content, is_intact) =
            read_file(&file, number).map_err(|error| Error::path("cannot read", path(), error))?;
        found.intact &= is_intact;
        let Some(content) = content else {
            spool.unlink(&name);
            continue;
        };
        check_node(spool, &content.node)?;
        found.next_stream = found.next_stream.max(content.next_stream);
        found.watermark = found.watermark.max(content.watermark);
        found.newest = Some((content.boot, content.session));
        let mut info = content.info;
        if info.last < info.first {
            // Created for messages that were never written.
            spool.unlink(&name);
            continue;
        }
        // The predecessors of a condensed file that were not removed in time.
        while let Some(before) = found.files.pop_if(|before| before.first >= info.first) {
            spool.unlink(&format::ledger_name(before.number));
            spool.unlink(&format::name(before.number));
        }
        info.generation = found.generation;
        found.generation += 1;
        let expected = found.files.last().map_or(info.first, |info| info.last + 1);
        found.intact &= info.first == expected;
        // Removes a torn end, and space that was claimed and is no longer needed.
        if let Err(error) = file.set_len(info.end) {
            tracing::warn!(%error, path = %path().display(), "cannot truncate a file of the spool");
        }
        found.files.push(info);
    }
    Ok(found)
}

fn check_node(spool: &Spool, node: &str) -> Result<(), Error> {
    if node == spool.node {
        return Ok(());
    }
    let reason = format!(
        "{} contains undelivered messages of node `{node}`: start a log-client with that name once, or remove the directory",
        spool.path.display()
    );
    Err(Error::Setting { key: "node", reason })
}

/// Reads the ledgers with these numbers. Returns their content, and the numbers of those whose file
/// is missing.
fn read_ledgers(
    spool: &Spool,
    ledgers: &[u64],
    files: &mut [FileInfo],
) -> Result<(LedgerContents, Vec<u64>), Error> {
    let (mut all, mut orphans) = (LedgerContents::default(), Vec::new());
    for &number in ledgers {
        let name = format::ledger_name(number);
        let mut own = LedgerContents::default();
        let read = spool.read_ledger(number, &mut own);
        read.map_err(|error| Error::path("cannot read", spool.path.join(&name), error))?;
        match files.iter_mut().find(|info| info.number == number) {
            Some(info) => {
                let stat = rustix::fs::statat(&spool.dir, &name, AtFlags::SYMLINK_NOFOLLOW);
                info.ledger = stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
            }
            // The ledger of a file for messages that were never written.
            None if own.last == 0 => {
                spool.unlink(&name);
                continue;
            }
            None => orphans.push(number),
        }
        spool.read_ledger(number, &mut all).unwrap_or_default();
    }
    Ok((all, orphans))
}

/// Numbers of the spool files and of the ledgers, in ascending order.
fn file_numbers(spool: &Spool) -> Result<(Vec<u64>, Vec<u64>), Error> {
    let fail = |error| Error::path("cannot read the spool's directory", &spool.path, error);
    let (mut files, mut ledgers) = (Vec::new(), Vec::new());
    for entry in Dir::read_from(&spool.dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        files.extend(format::parse_name(name.to_bytes()).filter(|first| *first > 0));
        ledgers.extend(format::parse_ledger_name(name.to_bytes()));
        if [condense::UNFINISHED, condense::UNFINISHED_LEDGER].contains(&name.to_str().unwrap_or("")) {
            let _ = rustix::fs::unlinkat(&spool.dir, name, AtFlags::empty());
        }
    }
    files.sort_unstable();
    ledgers.sort_unstable();
    Ok((files, ledgers))
}

/// Reads a file up to its end or its first irrecoverable damage. The content is `None` if the file
/// has no valid header and `Hello`. The second value is false if something in it is damaged.
fn read_file(file: &File, number: u64) -> io::Result<(Option<RecoveredFile>, bool)> {
    let metadata = file.metadata()?;
    let mut head = [0; HEADER as usize];
    if !metadata.is_file() || metadata.len() < HEADER {
        return Ok((None, metadata.is_file()));
    }
    file.read_exact_at(&mut head, 0)?;
    let Some(header) = Header::read(&head).filter(|header| header.first > 0) else {
        return Ok((None, false));
    };
    let mut scanner = FrameScanner::new(file.try_clone()?, HEADER);
    let hello = match scanner.next(metadata.len())? {
        ScanResult::Frame(frame) => Message::from_payload(frame.payload, frame.crc).ok(),
        ScanResult::End | ScanResult::Torn => return Ok((None, true)),
        ScanResult::Damage => None,
    };
    let Some(Message::Hello { node, session, .. }) = hello else { return Ok((None, false)) };
    let mut content = RecoveredFile {
        info: FileInfo {
            number,
            generation: 0,
            salt: header.salt,
            first: header.first,
            last: header.first - 1,
            end: scanner.at(),
            condensed: false,
            ledger: 0,
            replayed: false,
        },
        boot: header.boot,
        session,
        node,
        next_stream: 0,
        watermark: format::read_watermark(&head),
    };
    let mut intact = true;
    loop {
        let frame = match scanner.next(metadata.len())? {
            ScanResult::Frame(frame) => frame,
            ScanResult::End => break,
            result @ (ScanResult::Torn | ScanResult::Damage) => {
                // A frame that was being written when the log-client was killed has no mark after
                // it.
                let is_torn = matches!(result, ScanResult::Torn);
                let continues = scanner.skip_to_mark(&format::mark(header.salt), metadata.len())?;
                intact &= is_torn && !continues;
                if continues {
                    continue;
                }
                break;
            }
        };
        if !frame.is_batch() {
            match Message::from_payload(frame.payload, frame.crc) {
                Ok(Message::Stream { stream, .. }) => {
                    content.next_stream = content.next_stream.max(stream.number.wrapping_add(1));
                }
                Ok(Message::Heartbeat { watermark }) => {
                    content.watermark = content.watermark.max(Some(watermark))
                }
                _ => {}
            }
        }
        content.info.last = content.info.last.max(frame.number().unwrap_or(0));
        content.info.end = scanner.at();
    }
    Ok((Some(content), intact))
}

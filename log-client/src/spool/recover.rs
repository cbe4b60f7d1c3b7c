//! What an earlier log-client left.

use super::format::{self, HEADER, Header};
use super::ledger::Tale;
use super::scan::{Found, Scan};
use super::{Heritage, Part, Spool, condense, random};
use crate::error::Error;
use miot_proto::wire::Message;
use rustix::fs::AtFlags;
use rustix::fs::{Dir, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// What one file says.
struct Read {
    part: Part,
    boot: u128,
    session: u64,
    node: String,
    next_stream: u32,
    promised: Option<i64>,
}

/// Reads all files and takes them up.
pub(super) fn recover(spool: &Spool) -> Result<Heritage, Error> {
    let mut heritage = Heritage::default();
    let mut parts: Vec<Part> = Vec::new();
    let mut newest = None;
    let (mut sound, mut made) = (true, 1);
    let (files, ledgers) = files(spool)?;
    for &number in &files {
        let name = format::name(number);
        let path = || spool.path.join(&name);
        let file = spool
            .open_file(&name, OFlags::RDWR)
            .map_err(|error| Error::path("cannot open", path(), error))?;
        let (read, is_sound) =
            read(&file, number).map_err(|error| Error::path("cannot read", path(), error))?;
        sound &= is_sound;
        let Some(read) = read else {
            spool.unlink(&name);
            continue;
        };
        if read.node != spool.node {
            let reason = format!(
                "{} holds what node `{}` could not deliver: start a log-client of that name once, or remove it",
                spool.path.display(),
                read.node
            );
            return Err(Error::Setting { key: "node", reason });
        }
        heritage.next_stream = heritage.next_stream.max(read.next_stream);
        heritage.promised = heritage.promised.max(read.promised);
        newest = Some((read.boot, read.session));
        let mut part = read.part;
        if part.last < part.first {
            // Made for messages that never came.
            spool.unlink(&name);
            continue;
        }
        // A file that was condensed together with those before it, which were not yet removed.
        while let Some(before) = parts.pop_if(|before| before.first >= part.first) {
            spool.unlink(&format::ledger_name(before.file));
            spool.unlink(&format::name(before.file));
        }
        part.made = made;
        made += 1;
        let expected = parts.last().map_or(part.first, |part| part.last + 1);
        sound &= part.first == expected;
        // A torn end, and space that was claimed and is not needed any more.
        if let Err(error) = file.set_len(part.end) {
            tracing::warn!(%error, path = %path().display(), "cannot cut a file of the spool");
        }
        parts.push(part);
    }
    let (tale, orphans) = ledgers_of(spool, &ledgers, &mut parts)?;
    // What a ledger tells was in a file: it is written after that.
    sound &= orphans.is_empty() && tale.last <= parts.last().map_or(0, |part| part.last);
    heritage.next_stream = heritage.next_stream.max(tale.next_stream());
    if !sound {
        tracing::error!(
            dir = %spool.path.display(),
            "files of the spool are damaged: messages to the log-server are lost"
        );
    }
    let mut state = spool.state();
    state.made = made;
    state.last_file = files.last().max(ledgers.last()).copied().unwrap_or(0);
    (state.retell, state.orphans) = (!sound, orphans);
    if let (Some(oldest), Some(newest)) = (parts.first(), parts.last()) {
        state.acknowledged = oldest.first - 1;
        state.last = newest.last;
        heritage.messages = parts.iter().map(|part| part.last - part.first + 1).sum();
    }
    heritage.sound = sound;
    state.session = match newest {
        Some((boot, session)) if boot == spool.boot && sound && !parts.is_empty() => session,
        _ => random()?,
    };
    spool.held.store(parts.iter().map(|part| part.end + part.ledger).sum(), Relaxed);
    state.parts = parts.into();
    Ok(heritage)
}

/// Reads the ledgers of these numbers. What they tell, and those that tell of a file that is gone.
fn ledgers_of(spool: &Spool, ledgers: &[u64], parts: &mut [Part]) -> Result<(Tale, Vec<u64>), Error> {
    let (mut all, mut orphans) = (Tale::default(), Vec::new());
    for &number in ledgers {
        let name = format::ledger_name(number);
        let mut own = Tale::default();
        let read = spool.read_ledger(number, &mut own);
        read.map_err(|error| Error::path("cannot read", spool.path.join(&name), error))?;
        match parts.iter_mut().find(|part| part.file == number) {
            Some(part) => {
                let stat = rustix::fs::statat(&spool.dir, &name, AtFlags::SYMLINK_NOFOLLOW);
                part.ledger = stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
            }
            // Of a file for messages that never came.
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

/// Numbers in the names of the files, and of the ledgers, in order.
fn files(spool: &Spool) -> Result<(Vec<u64>, Vec<u64>), Error> {
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

/// Reads a file as far as it goes: `None` if it is hardly begun. False if something in it is damaged.
fn read(file: &File, number: u64) -> io::Result<(Option<Read>, bool)> {
    let metadata = file.metadata()?;
    let mut head = [0; HEADER as usize];
    if !metadata.is_file() || metadata.len() < HEADER {
        return Ok((None, metadata.is_file()));
    }
    file.read_exact_at(&mut head, 0)?;
    let Some(header) = Header::read(&head).filter(|header| header.first > 0) else {
        return Ok((None, false));
    };
    let mut scan = Scan::new(file.try_clone()?, HEADER);
    let hello = match scan.next(metadata.len())? {
        Found::Frame(frame) => Message::from_payload(frame.payload, frame.crc).ok(),
        Found::End | Found::Torn => return Ok((None, true)),
        Found::Damage => None,
    };
    let Some(Message::Hello { node, session, .. }) = hello else { return Ok((None, false)) };
    let mut read = Read {
        part: Part {
            file: number,
            made: 0,
            salt: header.salt,
            first: header.first,
            last: header.first - 1,
            end: scan.at(),
            condensed: false,
            ledger: 0,
            retold: false,
        },
        boot: header.boot,
        session,
        node,
        next_stream: 0,
        promised: format::promised(&head),
    };
    let mut sound = true;
    loop {
        let frame = match scan.next(metadata.len())? {
            Found::Frame(frame) => frame,
            Found::End => break,
            found @ (Found::Torn | Found::Damage) => {
                // What a log-client was writing when it was killed has no mark after it.
                let is_torn = matches!(found, Found::Torn);
                let goes_on = scan.find(&format::mark(header.salt), metadata.len())?;
                sound &= is_torn && !goes_on;
                if goes_on {
                    continue;
                }
                break;
            }
        };
        if !frame.is_batch() {
            match Message::from_payload(frame.payload, frame.crc) {
                Ok(Message::Stream { stream, .. }) => {
                    read.next_stream = read.next_stream.max(stream.number.wrapping_add(1));
                }
                Ok(Message::Heartbeat { watermark }) => read.promised = read.promised.max(Some(watermark)),
                _ => {}
            }
        }
        read.part.last = read.part.last.max(frame.number().unwrap_or(0));
        read.part.end = scan.at();
    }
    Ok((Some(read), sound))
}

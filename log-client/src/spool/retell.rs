//! What damage took is told again, from the ledgers: so the log-server counts what has not come.
//!
//! Once the reader of a running log-client, or [`recover`](super::recover), has noticed that a file is damaged or gone, all that
//! the [`ledger`](super::ledger)s tell is written again: which streams there are, up to which attempt number they were taken from
//! their lanes, their ends and those of their processes. The server has nearly all of that and ignores it; what is missing
//! below such a number is in `losses` then, place `spool_damaged`. Until it is written no file is removed, and with the
//! file its ledger: what is told again comes from the same ledgers however often a log-client is killed here.

use super::ledger::{Tale, ToldStream};
use super::{Spool, Writer, format};
use miot_proto::wire::Message;
use rustix::fs::OFlags;
use std::io::{self, Read as _};
use std::sync::atomic::Ordering::Relaxed;

/// Ledgers are some kilobytes long, and where everything ends in one as long as the file beside them.
const LONGEST: u64 = 1 << 30;

impl Spool {
    /// Adds what the ledger of a file tells; nothing if it has none.
    pub(super) fn read_ledger(&self, file: u64, tale: &mut Tale) -> io::Result<()> {
        let mut bytes = Vec::new();
        match self.open_file(&format::ledger_name(file), OFlags::RDONLY) {
            Ok(file) if file.metadata()?.is_file() => file.take(LONGEST).read_to_end(&mut bytes)?,
            Ok(_) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        tale.read(&bytes);
        Ok(())
    }

    /// What is damaged is to be told again, if that was not done since this file was made.
    pub(super) fn want_retold(&self, file: u64, made: u64) {
        let mut state = self.state();
        let known = state.parts.iter().find(|part| (part.file, part.made) == (file, made));
        if known.is_some_and(|part| !part.retold) {
            state.retell = true;
        }
    }
}

impl Writer {
    /// See the module.
    pub(super) fn retell(&mut self) {
        let files: Vec<u64> = {
            let state = self.spool.state();
            if !state.retell {
                return;
            }
            let mut files: Vec<u64> = state.parts.iter().map(|part| part.file).collect();
            files.extend(&state.orphans);
            files.sort_unstable();
            files
        };
        let mut tale = Tale::default();
        for file in files {
            if let Err(error) = self.spool.read_ledger(file, &mut tale) {
                tracing::error!(%error, file, "the ledger of a file of the spool cannot be read: losses are counted too low");
            }
        }
        // A file of its own defines what is in force, which may have been lost as well.
        self.spool.roll.store(true, Relaxed);
        let streams = self.write_tale(tale);
        let is_written = self.is_written();
        let orphans = {
            let mut state = self.spool.state();
            state.retell = false;
            state.parts.iter_mut().for_each(|part| part.retold = true);
            if is_written { std::mem::take(&mut state.orphans) } else { Vec::new() }
        };
        orphans.into_iter().for_each(|file| self.spool.unlink(&format::ledger_name(file)));
        tracing::error!(
            streams,
            dir = %self.spool.path().display(),
            "the spool is damaged: what is gone of these streams is counted in the trace (spool_damaged)"
        );
    }

    /// Writes it; how many streams it tells of.
    fn write_tale(&mut self, tale: Tale) -> usize {
        let mut count = 0;
        for (key, told) in tale.processes {
            let is_known = self.definitions.has_process(key);
            match told.process {
                Some(process) if !is_known => _ = self.write(&mut Message::Process { seq: 0, process }),
                None if !is_known => continue,
                _ => {}
            }
            for (number, ToldStream { stream, taken, end }) in told.streams {
                count += 1;
                let is_open = self.definitions.has_stream(&stream);
                if !is_open {
                    self.write(&mut Message::Stream { seq: 0, stream });
                }
                if let Some((taken, _)) = taken {
                    let (after, ranges, time) = (taken.next, Vec::new(), taken.time);
                    self.write(&mut Message::GivenUp { seq: 0, stream: number, after, ranges, time });
                }
                match end {
                    Some((end, _)) => _ = self.write(&mut Message::StreamEnd { seq: 0, end }),
                    // Whoever reads its lane defines it again.
                    None if !is_open => self.definitions.forget_stream(number),
                    None => {}
                }
            }
            match told.gone {
                Some((time, lost, _)) if !is_known => {
                    self.write(&mut Message::ProcessEnd { seq: 0, key, time, lost });
                }
                None if !is_known => self.definitions.forget_process(key),
                _ => {}
            }
        }
        count
    }
}

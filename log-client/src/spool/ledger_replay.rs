//! Replay of the ledgers after damage, so that the log-server counts the missing events.
//!
//! When the reader of a running log-client, or [`recover`](super::recover), has detected that a
//! file is damaged or missing, the whole content of the [`ledger`](super::ledger)s is written
//! again: the streams, the attempt number up to which each was taken from its lane, their ends and
//! those of their processes. The server has nearly all of that and ignores it; events missing below
//! such a number are counted in `losses`, place `spool_damaged`. Until the replay is written, no
//! ledger is removed, not even with its file. So a log-client that is killed here replays the same
//! ledgers again. The ledgers of the files with the replay repeat it, for damage of these.

use super::ledger::{LedgerContents, StreamEntries};
use super::{Spool, Writer, format};
use miot_proto::wire::Message;
use rustix::fs::OFlags;
use std::io::{self, Read as _};
use std::sync::atomic::Ordering::Relaxed;

/// Maximum bytes read of a ledger. Ledgers are some kilobytes long; if all streams end in one, as
/// long as the spool file.
const MAX_LEDGER_BYTES: u64 = 1 << 30;

impl Spool {
    /// Adds the content of the ledger of a file; nothing if it has none.
    pub(super) fn read_ledger(&self, file: u64, contents: &mut LedgerContents) -> io::Result<()> {
        let mut bytes = Vec::new();
        match self.open_file(&format::ledger_name(file), OFlags::RDONLY) {
            Ok(file) if file.metadata()?.is_file() => file.take(MAX_LEDGER_BYTES).read_to_end(&mut bytes)?,
            Ok(_) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        contents.read(&bytes);
        Ok(())
    }

    /// Requests a replay because this file is damaged, unless one was done since the file was
    /// created.
    pub(super) fn request_replay(&self, file: u64, generation: u64) {
        let mut state = self.state();
        let known = state.files.iter().find(|info| (info.number, info.generation) == (file, generation));
        if known.is_some_and(|info| !info.replayed) {
            state.replay_needed = true;
        }
    }
}

impl Writer {
    /// Replays the ledgers if that was requested, see the module.
    pub(super) fn replay_ledgers(&mut self) {
        if let Some(files) = self.replaying.take().or_else(|| self.begin_replay()) {
            if self.is_written() {
                self.end_replay(&files);
            } else {
                self.replaying = Some(files);
            }
        }
    }

    /// Writes a replay if one was requested. Returns the numbers of the files whose ledgers it
    /// repeats.
    fn begin_replay(&mut self) -> Option<Vec<u64>> {
        let files = {
            let state = self.spool.state();
            if !state.replay_needed {
                return None;
            }
            let mut files: Vec<u64> = state.files.iter().map(|info| info.number).collect();
            files.extend(&state.orphans);
            files.sort_unstable();
            files
        };
        let mut contents = LedgerContents::default();
        for file in &files {
            if let Err(error) = self.spool.read_ledger(*file, &mut contents) {
                tracing::error!(%error, file, "cannot read a ledger of the spool: losses are counted too low");
            }
        }
        // A new file repeats the definitions in force, which may have been lost as well.
        self.spool.roll.store(true, Relaxed);
        let streams = self.write_ledger_contents(contents);
        tracing::error!(
            streams,
            dir = %self.spool.path().display(),
            "the spool is damaged: missing events of these streams are counted in the trace (spool_damaged)"
        );
        Some(files)
    }

    /// The replay of the ledgers of these files is in files.
    fn end_replay(&self, files: &[u64]) {
        let mut state = self.spool.state();
        state.replay_needed = false;
        for info in &mut state.files {
            info.replayed |= files.contains(&info.number);
        }
        let orphans = std::mem::take(&mut state.orphans);
        self.spool.drop_acknowledged(&mut state);
        drop(state);
        orphans.into_iter().for_each(|file| self.spool.unlink(&format::ledger_name(file)));
    }

    /// Writes the content as messages; returns the number of streams.
    fn write_ledger_contents(&mut self, contents: LedgerContents) -> usize {
        let mut count = 0;
        for (key, entries) in contents.processes {
            let is_known = self.definitions.has_process(key);
            match entries.process {
                Some(process) if !is_known => _ = self.write(&mut Message::Process { seq: 0, process }),
                None if !is_known => continue,
                _ => {}
            }
            for (number, StreamEntries { stream, drained, end }) in entries.streams {
                count += 1;
                let is_open = self.definitions.has_stream(&stream);
                if !is_open {
                    self.write(&mut Message::Stream { seq: 0, stream });
                }
                if let Some((position, _)) = drained {
                    let (after, ranges, time) = (position.next, Vec::new(), position.time);
                    self.write(&mut Message::GivenUp { seq: 0, stream: number, after, ranges, time });
                }
                match end {
                    Some((end, _)) => _ = self.write(&mut Message::StreamEnd { seq: 0, end }),
                    // The sweeper defines the stream again when it opens its lane.
                    None if !is_open => self.definitions.forget_stream(number),
                    None => {}
                }
            }
            match entries.end {
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

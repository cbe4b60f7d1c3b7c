//! Following a trace while it is written: new rows as they come.

use crate::error::Error;
use crate::layout::Layout;
use crate::live::LiveReader;
use crate::manifest::Manifest;
use crate::parquet_file::Batches;
use crate::rows::Joiner;
use crate::schema::Table;
use arrow_array::RecordBatch;
use std::path::Path;

/// Where a [`Follow`] begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// With the first event of the trace.
    Start,
    /// With the first event after those that are there now.
    End,
}

/// Gives the rows of a trace from some point on, each once, across sealing. Poll it.
#[derive(Debug)]
pub struct Follow {
    layout: Layout,
    joiner: Joiner,
    /// The part that is being read.
    part: u64,
    /// Its live streams that exist so far, by table; kept open across sealing.
    live: [Option<LiveReader>; 6],
    /// Sealed parts before the live one are read one batch at a time.
    sealed: Option<Batches>,
}

/// Rows of a poll at most, so that a follower who is far behind does not fill the memory.
const MAX_ROWS: usize = 1 << 18;

impl Follow {
    /// Opens a trace.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`], [`Error::Damaged`], [`Error::Io`].
    pub fn open(dir: impl AsRef<Path>, from: From) -> Result<Follow, Error> {
        Manifest::read(dir.as_ref())?;
        let layout = Layout::new(dir.as_ref());
        let parts = layout.parts()?.all();
        let first = match from {
            From::Start => parts.first(),
            From::End => parts.last(),
        };
        let mut follow = Follow {
            layout,
            joiner: Joiner::default(),
            part: first.copied().unwrap_or(0),
            live: Table::ALL.map(|_| None),
            sealed: None,
        };
        for part in parts.range(..follow.part) {
            for table in [Table::Threads, Table::Files] {
                follow.names_of_sealed(table, *part)?;
            }
        }
        if from == From::End {
            while follow.events()?.is_some() {}
        }
        Ok(follow)
    }

    /// Rows (see [`crate::schema::rows`]) since the last poll, in order; empty if there are none yet.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`].
    pub fn poll(&mut self) -> Result<Vec<RecordBatch>, Error> {
        let mut batches = Vec::new();
        let mut rows = 0;
        while rows < MAX_ROWS
            && let Some(batch) = self.events()?
        {
            rows += batch.num_rows();
            batches.push(batch);
        }
        if !batches.is_empty() {
            // After the events: what they refer to is there by now.
            self.names()?;
        }
        let joined = batches.iter().map(|batch| self.joiner.join(batch));
        joined.map(|b| b.map_err(|e| Error::damaged(self.layout.root(), e))).collect()
    }

    fn events(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            if let Some(sealed) = &mut self.sealed {
                match sealed.next() {
                    Some(batch) => return batch.map(Some),
                    None => self.next_part(),
                }
                continue;
            }
            if let Some(batch) = self.next_live()? {
                return Ok(Some(batch));
            }
            let later = self.layout.parts()?.all().last().is_some_and(|last| *last > self.part);
            let sealed = self.layout.sealed(Table::Events, self.part);
            if !later && !sealed.exists() {
                return Ok(None);
            }
            // The part had all its rows before it was sealed or a later one begun, so this is the rest.
            if let Some(batch) = self.next_live()? {
                return Ok(Some(batch));
            }
            self.names()?;
            // Asked again: live files are removed only when this one is there.
            if self.live[Table::Events as usize].is_none() && sealed.exists() {
                self.sealed = Some(Batches::all(Table::Events, &sealed)?);
            } else {
                self.next_part();
            }
        }
    }

    fn next_live(&mut self) -> Result<Option<RecordBatch>, Error> {
        self.open_live(Table::Events)?;
        self.live[Table::Events as usize].as_mut().map_or(Ok(None), LiveReader::next_batch)
    }

    fn next_part(&mut self) {
        self.part += 1;
        self.live = Table::ALL.map(|_| None);
        self.sealed = None;
    }

    fn open_live(&mut self, table: Table) -> Result<(), Error> {
        if self.live[table as usize].is_none() {
            self.live[table as usize] = LiveReader::open(table, &self.layout.live(table, self.part))?;
        }
        Ok(())
    }

    /// Takes in the names of the present part that are new.
    fn names(&mut self) -> Result<(), Error> {
        for table in [Table::Threads, Table::Files] {
            self.open_live(table)?;
            match &mut self.live[table as usize] {
                Some(reader) => {
                    while let Some(batch) = reader.next_batch()? {
                        self.joiner.see(table, &batch);
                    }
                }
                None => self.names_of_sealed(table, self.part)?,
            }
        }
        Ok(())
    }

    fn names_of_sealed(&mut self, table: Table, part: u64) -> Result<(), Error> {
        let path = self.layout.sealed(table, part);
        if path.exists() {
            for batch in Batches::all(table, &path)? {
                self.joiner.see(table, &batch?);
            }
        } else if let Some(mut live) = LiveReader::open(table, &self.layout.live(table, part))? {
            while let Some(batch) = live.next_batch()? {
                self.joiner.see(table, &batch);
            }
        }
        Ok(())
    }
}

//! The rows of a live stream, for those who read a trace: as far as it is whole.

use crate::defined::Used;
use crate::error::Error;
use crate::layout::Layout;
use crate::live::{LiveReader, Stop};
use crate::schema::Table;
use crate::unread::{OnDamage, Unread};
use arrow_array::RecordBatch;

/// Batches of a live stream; ends after an error. Where a message is damaged, the stream ends and that is noted, if it is to be: what
/// comes after may mean something else without it. A last message that is not all there is no damage: its writer is at work, or died.
#[derive(Debug)]
pub(crate) struct LiveRows {
    reader: LiveReader,
    layout: Layout,
    on_damage: OnDamage,
    used: Used,
    ended: bool,
}

impl LiveRows {
    pub(crate) fn new(reader: LiveReader, layout: &Layout, on_damage: &OnDamage) -> LiveRows {
        LiveRows {
            reader,
            layout: layout.clone(),
            on_damage: on_damage.clone(),
            used: Used::default(),
            ended: false,
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(notes) = self.on_damage.notes() else { return Ok(()) };
        let is_damaged = match self.reader.stop() {
            Stop::End => false,
            Stop::Bad => true,
            Stop::Partial => self.reader.goes_on()?,
        };
        if is_damaged {
            let reason = format!("the message at byte {} is damaged", self.reader.position());
            let unread = Unread::new(&self.layout, self.reader.path(), reason);
            notes.add(unread.bytes(self.reader.left()?));
        }
        self.used.check(&self.layout, self.reader.path(), notes)
    }
}

impl Iterator for LiveRows {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.reader.next_batch() {
            Ok(Some(batch)) => {
                if self.reader.table() == Table::Events && self.on_damage.notes().is_some() {
                    self.used.see(&batch);
                }
                Some(Ok(batch))
            }
            Ok(None) => {
                self.ended = true;
                self.end().err().map(Err)
            }
            Err(error) => {
                self.ended = true;
                let left = self.reader.left().unwrap_or(0);
                let path = self.reader.path();
                self.on_damage
                    .pass_over_with(&self.layout, path, error, |unread| unread.bytes(left))
                    .err()
                    .map(Err)
            }
        }
    }
}

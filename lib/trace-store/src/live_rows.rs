//! The rows of a live stream for readers of a trace, up to the last whole message.

use crate::error::Error;
use crate::layout::Layout;
use crate::live::{LiveReader, StopReason};
use crate::schema::Table;
use crate::unread_log::{OnDamage, UnreadItem};
use crate::used_ids::UsedIds;
use arrow_array::RecordBatch;

/// Batches of a live stream; ends after an error. At a damaged message the stream ends, and the
/// damage is logged if the reader is tolerant: later messages may depend on the damaged one. An
/// incomplete last message is not damage: its writer is running, or was killed.
#[derive(Debug)]
pub(crate) struct LiveRows {
    reader: LiveReader,
    layout: Layout,
    on_damage: OnDamage,
    used: UsedIds,
    ended: bool,
}

impl LiveRows {
    pub(crate) fn new(reader: LiveReader, layout: &Layout, on_damage: &OnDamage) -> LiveRows {
        LiveRows {
            reader,
            layout: layout.clone(),
            on_damage: on_damage.clone(),
            used: UsedIds::default(),
            ended: false,
        }
    }

    /// Logs damage at the end of the stream.
    fn end(&mut self) -> Result<(), Error> {
        let Some(unread) = self.on_damage.unread_log() else { return Ok(()) };
        let is_damaged = match self.reader.stop() {
            StopReason::End => false,
            StopReason::Damaged => true,
            StopReason::Partial => self.reader.has_later_message()?,
        };
        if is_damaged {
            let reason = format!("the message at byte {} is damaged", self.reader.position());
            let item = UnreadItem::new(&self.layout, self.reader.path(), reason);
            unread.add(item.with_bytes(self.reader.remaining()?));
        }
        self.used.check(&self.layout, self.reader.path(), unread)
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
                if self.reader.table() == Table::Events && self.on_damage.unread_log().is_some() {
                    self.used.add_batch(&batch);
                }
                Some(Ok(batch))
            }
            Ok(None) => {
                self.ended = true;
                self.end().err().map(Err)
            }
            Err(error) => {
                self.ended = true;
                let remaining = self.reader.remaining().unwrap_or(0);
                let path = self.reader.path();
                self.on_damage
                    .skip_with(&self.layout, path, error, |item| item.with_bytes(remaining))
                    .err()
                    .map(Err)
            }
        }
    }
}

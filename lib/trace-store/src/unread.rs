//! What a reader could not read. A reader that is [tolerant](crate::Reader::tolerant) goes on without it and notes it here,
//! so that every command says the same at its end.

use crate::error::Error;
use crate::layout::Layout;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Something that is damaged or missing and was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unread {
    /// The file, as seen from the trace directory.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
    /// Rows of it that were not read, if that is known.
    pub rows: Option<u64>,
    /// Bytes of it that were not read, if that is known.
    pub bytes: Option<u64>,
}

impl Unread {
    pub(crate) fn new(layout: &Layout, path: &Path, reason: impl fmt::Display) -> Unread {
        let file = path.strip_prefix(layout.root()).unwrap_or(path);
        Unread { file: file.display().to_string(), reason: reason.to_string(), rows: None, bytes: None }
    }

    pub(crate) fn rows(self, rows: u64) -> Unread {
        Unread { rows: Some(rows), ..self }
    }

    pub(crate) fn bytes(self, bytes: u64) -> Unread {
        Unread { bytes: Some(bytes), ..self }
    }

    fn of(layout: &Layout, path: &Path, error: &Error) -> Unread {
        match error {
            Error::Damaged { path, reason } => Unread::new(layout, path, reason),
            Error::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => {
                Unread::new(layout, path, "it is missing")
            }
            Error::Io { action, source, path } => {
                Unread::new(layout, path, format!("cannot {action} it: {source}"))
            }
            other => Unread::new(layout, path, other),
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.reason)?;
        match (self.rows, self.bytes) {
            (Some(1), _) => write!(f, "; 1 row is not read"),
            (Some(rows), _) => write!(f, "; {rows} rows are not read"),
            (None, Some(bytes)) => write!(f, "; {bytes} bytes are not read"),
            (None, None) => Ok(()),
        }
    }
}

/// What was noted so far, by file and reason; shared between those who read and those who tell.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<BTreeMap<(String, String), Unread>>>);

impl Notes {
    /// All of it, by file.
    #[must_use]
    pub fn all(&self) -> Vec<Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Everything could be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Rows that are known to be missing.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.all().iter().filter_map(|unread| unread.rows).fold(0, u64::saturating_add)
    }

    pub(crate) fn add(&self, unread: Unread) {
        let key = (unread.file.clone(), unread.reason.clone());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, unread);
    }
}

/// What is done about something that is damaged.
#[derive(Clone, Debug, Default)]
pub(crate) enum OnDamage {
    /// Reading ends with the error.
    #[default]
    Fail,
    /// It is noted, and reading goes on behind it.
    Note(Notes),
}

impl OnDamage {
    pub(crate) fn notes(&self) -> Option<&Notes> {
        match self {
            OnDamage::Fail => None,
            OnDamage::Note(notes) => Some(notes),
        }
    }

    /// The error that nothing could be read of the events, for who got none of them; none if nothing of them is damaged.
    pub(crate) fn nothing_read(&self, layout: &Layout) -> Option<Error> {
        let is_events = |unread: &Unread| {
            unread.file.starts_with("events/")
                || (unread.file.starts_with("live/") && unread.file.ends_with(".events.arrows"))
        };
        let first = self.notes()?.all().into_iter().find(is_events)?;
        Some(Error::damaged(&layout.root().join(&first.file), first.reason))
    }

    /// Notes an error that says that something is damaged, and gives back any other.
    pub(crate) fn pass_over(&self, layout: &Layout, path: &Path, error: Error) -> Result<(), Error> {
        self.pass_over_with(layout, path, error, |unread| unread)
    }

    /// The same, with what else is known.
    pub(crate) fn pass_over_with(
        &self,
        layout: &Layout,
        path: &Path,
        error: Error,
        more: impl FnOnce(Unread) -> Unread,
    ) -> Result<(), Error> {
        let is_damage = match &error {
            Error::Damaged { .. } => true,
            // A bad sector, or a file that is gone.
            Error::Io { action, source, .. } => *action == "read" || source.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        match self {
            OnDamage::Note(notes) if is_damage => {
                notes.add(more(Unread::of(layout, path, &error)));
                Ok(())
            }
            _ => Err(error),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn what_is_damaged_is_noted_once_and_other_errors_are_errors() {
        let layout = Layout::new(Path::new("/trace"));
        let path = PathBuf::from("/trace/events/part-000002.parquet");
        let (notes, damaged) = (Notes::default(), || Error::damaged(&path, "no Parquet file"));
        let note = OnDamage::Note(notes.clone());
        for _ in 0..2 {
            note.pass_over_with(&layout, &path, damaged(), |unread| unread.rows(7)).unwrap();
        }
        let said: Vec<String> = notes.all().iter().map(Unread::to_string).collect();
        assert_eq!(said, ["events/part-000002.parquet: no Parquet file; 7 rows are not read"]);
        assert_eq!(notes.rows(), 7);
        let denied = Error::io("open", &path)(io::ErrorKind::PermissionDenied.into());
        assert!(note.pass_over(&layout, &path, denied).is_err());
        assert!(OnDamage::Fail.pass_over(&layout, &path, damaged()).is_err());
    }
}

//! Log of data that a reader could not read. A [tolerant](crate::Reader::tolerant) reader skips the
//! data and logs it here, so that all commands report it in the same way.

use crate::error::Error;
use crate::layout::Layout;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Damaged or missing data that a reader skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnreadItem {
    /// Path of the file, relative to the trace directory.
    pub file: String,
    /// What is wrong with the file.
    pub reason: String,
    /// Number of rows that were not read, if it is known.
    pub rows: Option<u64>,
    /// Number of bytes that were not read, if it is known.
    pub bytes: Option<u64>,
}

impl UnreadItem {
    pub(crate) fn new(layout: &Layout, path: &Path, reason: impl fmt::Display) -> UnreadItem {
        let file = path.strip_prefix(layout.root()).unwrap_or(path);
        UnreadItem { file: file.display().to_string(), reason: reason.to_string(), rows: None, bytes: None }
    }

    pub(crate) fn with_rows(self, rows: u64) -> UnreadItem {
        UnreadItem { rows: Some(rows), ..self }
    }

    pub(crate) fn with_bytes(self, bytes: u64) -> UnreadItem {
        UnreadItem { bytes: Some(bytes), ..self }
    }

    fn from_error(layout: &Layout, path: &Path, error: &Error) -> UnreadItem {
        match error {
            Error::Damaged { path, reason } => UnreadItem::new(layout, path, reason),
            Error::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => {
                UnreadItem::new(layout, path, "it is missing")
            }
            Error::Io { action, source, path } => {
                UnreadItem::new(layout, path, format!("cannot {action} it: {source}"))
            }
            other => UnreadItem::new(layout, path, other),
        }
    }
}

impl fmt::Display for UnreadItem {
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

/// The skipped data so far, by file and reason. Clones share the log.
#[derive(Clone, Debug, Default)]
pub struct UnreadLog {
    items: Arc<Mutex<BTreeMap<(String, String), UnreadItem>>>,
    /// Directories and logs of the traces of a set.
    members: Vec<(PathBuf, UnreadLog)>,
}

impl UnreadLog {
    /// Returns the log of a set: the missing traces, with the reasons, and the logs of the others,
    /// whose paths begin with the directories.
    pub(crate) fn of_set(missing: &[(PathBuf, String)], members: Vec<(PathBuf, UnreadLog)>) -> UnreadLog {
        let log = UnreadLog { members, ..UnreadLog::default() };
        for (dir, reason) in missing {
            let file = dir.display().to_string();
            log.add(UnreadItem { file, reason: reason.clone(), ..UnreadItem::default() });
        }
        log
    }

    /// Returns all items, by file.
    #[must_use]
    pub fn all(&self) -> Vec<UnreadItem> {
        let mut all: Vec<UnreadItem> =
            self.items.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for (dir, log) in &self.members {
            let within =
                |item: UnreadItem| UnreadItem { file: dir.join(&item.file).display().to_string(), ..item };
            all.extend(log.all().into_iter().map(within));
        }
        all
    }

    /// Returns true if nothing was skipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            && self.members.iter().all(|(_, log)| log.is_empty())
    }

    /// Returns the known number of rows that were not read.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.all().iter().filter_map(|unread| unread.rows).fold(0, u64::saturating_add)
    }

    pub(crate) fn add(&self, unread: UnreadItem) {
        let key = (unread.file.clone(), unread.reason.clone());
        self.items.lock().unwrap_or_else(PoisonError::into_inner).insert(key, unread);
    }
}

/// What a reader does at damage.
#[derive(Clone, Debug, Default)]
pub(crate) enum OnDamage {
    /// It ends with the error.
    #[default]
    Fail,
    /// It logs the damage and continues after it.
    Log(UnreadLog),
}

impl OnDamage {
    pub(crate) fn unread_log(&self) -> Option<&UnreadLog> {
        match self {
            OnDamage::Fail => None,
            OnDamage::Log(log) => Some(log),
        }
    }

    /// Returns the error for a caller that got no event although events are damaged; `None` if none
    /// are.
    pub(crate) fn nothing_read(&self, layout: &Layout) -> Option<Error> {
        let is_events = |unread: &UnreadItem| {
            unread.file.starts_with("events/")
                || (unread.file.starts_with("live/") && unread.file.ends_with(".events.arrows"))
        };
        let first = self.unread_log()?.all().into_iter().find(is_events)?;
        Some(Error::damaged(&layout.root().join(&first.file), first.reason))
    }

    /// Logs an error that reports damage, if the reader is tolerant. Returns any other error.
    pub(crate) fn skip(&self, layout: &Layout, path: &Path, error: Error) -> Result<(), Error> {
        self.skip_with(layout, path, error, |item| item)
    }

    /// As [`skip`](Self::skip); `more` adds details to the item.
    pub(crate) fn skip_with(
        &self,
        layout: &Layout,
        path: &Path,
        error: Error,
        more: impl FnOnce(UnreadItem) -> UnreadItem,
    ) -> Result<(), Error> {
        let is_damage = match &error {
            Error::Damaged { .. } => true,
            // A bad sector, or a missing file.
            Error::Io { action, source, .. } => *action == "read" || source.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        match self {
            OnDamage::Log(log) if is_damage => {
                log.add(more(UnreadItem::from_error(layout, path, &error)));
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
    fn damage_is_logged_once_and_other_errors_are_returned() {
        let layout = Layout::new(Path::new("/trace"));
        let path = PathBuf::from("/trace/events/part-000002.parquet");
        let (log, damaged) = (UnreadLog::default(), || Error::damaged(&path, "no Parquet file"));
        let tolerant = OnDamage::Log(log.clone());
        for _ in 0..2 {
            tolerant.skip_with(&layout, &path, damaged(), |item| item.with_rows(7)).unwrap();
        }
        let texts: Vec<String> = log.all().iter().map(UnreadItem::to_string).collect();
        assert_eq!(texts, ["events/part-000002.parquet: no Parquet file; 7 rows are not read"]);
        assert_eq!(log.rows(), 7);
        let denied = Error::io("open", &path)(io::ErrorKind::PermissionDenied.into());
        assert!(tolerant.skip(&layout, &path, denied).is_err());
        assert!(OnDamage::Fail.skip(&layout, &path, damaged()).is_err());
    }
}

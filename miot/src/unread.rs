//! Records which files of a trace could not be read. Every command opens traces here, so that all
//! commands report unreadable files in the same way, with the same exit code.

use miot_trace_store::{Follow, Reader, UnreadLog, follow};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Exit code of a command that succeeded, but could not read all of its trace.
pub(crate) const EXIT_INCOMPLETE: u8 = 4;
/// Maximum number of files that are named. Beyond it, only the number is printed.
const MOST: usize = 20;

/// Traces that were opened, and the reports printed for them.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

struct Opened {
    dir: PathBuf,
    notes: UnreadLog,
    reported: BTreeSet<String>,
}

/// Opens a trace. Damaged or missing files are skipped and reported by [`report_unread`].
pub(crate) fn open(dir: &Path) -> anyhow::Result<Reader> {
    let reader = Reader::tolerant(dir)?;
    watch(dir, reader.unread());
    Ok(reader)
}

/// Follows a trace; like [`open`].
pub(crate) fn follow(dir: &Path, from: follow::FollowFrom) -> anyhow::Result<Follow> {
    let follow = Follow::tolerant(dir, from)?;
    watch(dir, follow.unread());
    Ok(follow)
}

fn watch(dir: &Path, notes: UnreadLog) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.push(Opened { dir: dir.to_owned(), notes, reported: BTreeSet::new() });
}

/// Reports on standard error unreadable files that were not reported yet. Returns true if there are
/// any, old or new.
pub(crate) fn report_unread() -> bool {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let dirs: BTreeSet<PathBuf> = opened.iter().map(|opened| opened.dir.clone()).collect();
    let mut is_any = false;
    for dir in dirs {
        // A command may open a trace several times.
        let of_dir = || opened.iter().filter(|opened| opened.dir == dir);
        let reported: BTreeSet<String> =
            of_dir().flat_map(|opened| opened.reported.iter().cloned()).collect();
        let notes = of_dir().flat_map(|opened| opened.notes.all()).map(|unread| unread.to_string());
        let all: BTreeSet<String> = notes.collect();
        is_any |= !all.is_empty();
        let new: Vec<&String> = all.difference(&reported).collect();
        print(&dir, &new);
        for opened in opened.iter_mut().filter(|opened| opened.dir == dir) {
            opened.reported.extend(all.iter().cloned());
        }
    }
    is_any
}

fn print(dir: &Path, unread: &[&String]) {
    let Some((last, others)) = unread.split_last() else { return };
    let mut text = String::new();
    for unread in others.iter().take(MOST) {
        text += &format!("miot: {unread}\n");
    }
    if others.len() > MOST {
        text += &format!("miot: … and {} more\n", others.len() - MOST);
    }
    text += &format!(
        "miot: {last}: figures are lower bounds; miot fsck {} reports further damage, --repair accounts for it\n",
        dir.display()
    );
    // The terminal may be gone.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

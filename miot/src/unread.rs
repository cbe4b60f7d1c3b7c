//! What could not be read of the traces that a command reads. Every command opens traces here, so that all say the same at
//! their end, with the same exit code.

use miot_trace_store::{Follow, Reader, UnreadLog, follow};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Everything was done, with a trace of which something could not be read.
pub(crate) const EXIT_INCOMPLETE: u8 = 4;
/// Files that are named; of more there is the number.
const MOST: usize = 20;

/// Traces that were opened, and what was said of them.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

struct Opened {
    dir: PathBuf,
    notes: UnreadLog,
    told: BTreeSet<String>,
}

/// Opens a trace: what is damaged or missing is passed over, and said by [`tell`].
pub(crate) fn open(dir: &Path) -> anyhow::Result<Reader> {
    let reader = Reader::tolerant(dir)?;
    watch(dir, reader.unread());
    Ok(reader)
}

/// Follows a trace in the same way.
pub(crate) fn follow(dir: &Path, from: follow::FollowFrom) -> anyhow::Result<Follow> {
    let follow = Follow::tolerant(dir, from)?;
    watch(dir, follow.unread());
    Ok(follow)
}

fn watch(dir: &Path, notes: UnreadLog) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.push(Opened { dir: dir.to_owned(), notes, told: BTreeSet::new() });
}

/// Says on standard error what could not be read and was not said yet. True if there is anything, said before or now.
pub(crate) fn tell() -> bool {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let dirs: BTreeSet<PathBuf> = opened.iter().map(|opened| opened.dir.clone()).collect();
    let mut is_any = false;
    for dir in dirs {
        // A command may open a trace several times.
        let of_dir = || opened.iter().filter(|opened| opened.dir == dir);
        let told: BTreeSet<String> = of_dir().flat_map(|opened| opened.told.iter().cloned()).collect();
        let notes = of_dir().flat_map(|opened| opened.notes.all()).map(|unread| unread.to_string());
        let all: BTreeSet<String> = notes.collect();
        is_any |= !all.is_empty();
        let new: Vec<&String> = all.difference(&told).collect();
        say(&dir, &new);
        for opened in opened.iter_mut().filter(|opened| opened.dir == dir) {
            opened.told.extend(all.iter().cloned());
        }
    }
    is_any
}

fn say(dir: &Path, unread: &[&String]) {
    let Some((last, others)) = unread.split_last() else { return };
    let mut text = String::new();
    for unread in others.iter().take(MOST) {
        text += &format!("miot: {unread}\n");
    }
    if others.len() > MOST {
        text += &format!("miot: … and {} more\n", others.len() - MOST);
    }
    text += &format!(
        "miot: {last}: figures are lower bounds; miot fsck {} tells what else is wrong, --repair accounts for it\n",
        dir.display()
    );
    // The terminal may be gone.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

//! Records which files of a trace could not be read. Every command opens traces here, so that all
//! commands report unreadable files in the same way, with the same exit code.

use crate::sets;
use miot_trace_store::set::SetState;
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
static OPENED: Mutex<OpenedTraces> =
    Mutex::new(OpenedTraces { traces: Vec::new(), set_notes: BTreeSet::new(), is_incomplete: false });

struct OpenedTraces {
    traces: Vec<Opened>,
    /// Reports about sets that were printed.
    set_notes: BTreeSet<String>,
    /// A trace of a set is missing.
    is_incomplete: bool,
}

struct Opened {
    dir: PathBuf,
    notes: UnreadLog,
    reported: BTreeSet<String>,
}

/// Opens a trace, or the traces of a set as one (see [`crate::sets`]). Damaged or missing files are
/// skipped and reported by [`report_unread`].
pub(crate) fn open(dir: &Path) -> anyhow::Result<Reader> {
    let dirs = sets::traces(dir)?;
    let [dir] = dirs.as_slice() else {
        let state = SetState::examine(&dirs)?;
        report_set(&state);
        return Ok(Reader::of_set(&state, |dir| {
            let reader = Reader::tolerant(dir)?;
            watch(dir, reader.unread());
            Ok(reader)
        })?);
    };
    let reader = Reader::tolerant(dir)?;
    watch(dir, reader.unread());
    Ok(reader)
}

/// Reports what the result of a set lacks, once.
fn report_set(state: &SetState) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    for note in state.notes() {
        if opened.set_notes.insert(note.clone()) {
            eprintln!("miot: {note}");
        }
    }
    opened.is_incomplete |= state.is_incomplete();
}

/// Returns the directories of a trace or set that can be read; the others are reported.
pub(crate) fn members(source: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let dirs = sets::traces(source)?;
    if dirs.len() == 1 {
        return Ok(dirs);
    }
    let state = SetState::examine(&dirs)?;
    report_set(&state);
    Ok(state.readable().into_iter().map(Path::to_owned).collect())
}

/// Follows a trace; like [`open`].
pub(crate) fn follow(dir: &Path, from: follow::FollowFrom) -> anyhow::Result<Follow> {
    let follow = Follow::tolerant(dir, from)?;
    watch(dir, follow.unread());
    Ok(follow)
}

fn watch(dir: &Path, notes: UnreadLog) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.traces.push(Opened { dir: dir.to_owned(), notes, reported: BTreeSet::new() });
}

/// Reports on standard error unreadable files that were not reported yet. Returns true if there are
/// any, old or new.
pub(crate) fn report_unread() -> bool {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut is_any = opened.is_incomplete;
    let opened = &mut opened.traces;
    let dirs: BTreeSet<PathBuf> = opened.iter().map(|opened| opened.dir.clone()).collect();
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

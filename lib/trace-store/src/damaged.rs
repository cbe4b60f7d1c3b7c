//! What is damaged is moved to `DIR/damaged/`: it may be worth more to somebody than to us.

use crate::error::Error;
use crate::layout::{make_folder, sync_folder};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the folder.
pub(crate) const FOLDER: &str = "damaged";

/// A free name for a file of the trace: `damaged/events-part-000001.parquet`, with a number if there is one already.
pub(crate) fn aside(path: &Path) -> Result<PathBuf, Error> {
    // The manifest is in the trace's own folder, all others one below.
    let parent = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (root, name) = if name == crate::MANIFEST {
        (parent, name.into_owned())
    } else {
        let table = parent.file_name().unwrap_or_default().to_string_lossy();
        (parent.parent().unwrap_or(Path::new("")), format!("{table}-{name}"))
    };
    let folder = root.join(FOLDER);
    make_folder(&folder)?;
    let names = (0..u32::MAX).map(|n| match n {
        0 => folder.join(&name),
        n => folder.join(format!("{name}.{n}")),
    });
    let mut free = names.filter(|path| !path.exists());
    free.next().ok_or_else(|| {
        Error::io("find a free name in", &folder)(io::Error::from(io::ErrorKind::AlreadyExists))
    })
}

/// Makes durable that a file has a new name aside, and that `path` has another one or none.
pub(crate) fn sync(aside: &Path, path: &Path) -> Result<(), Error> {
    aside.parent().map_or(Ok(()), sync_folder)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Copies what stands in a file from some byte on.
pub(crate) fn keep_tail(path: &Path, from: u64, aside: &Path) -> Result<(), Error> {
    let source = File::open(path).map_err(Error::io("open", path))?;
    let copy = File::create_new(aside).map_err(Error::io("create", aside))?;
    let (mut buffer, mut at) = (vec![0; 1 << 20], from);
    loop {
        let read = source.read_at(&mut buffer, at).map_err(Error::io("read", path))?;
        if read == 0 {
            break;
        }
        copy.write_all_at(&buffer[..read], at - from).map_err(Error::io("write to", aside))?;
        at += read as u64;
    }
    copy.sync_all().map_err(Error::io("sync", aside))?;
    sync(aside, path)
}

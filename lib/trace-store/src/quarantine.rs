//! The folder `DIR/damaged/`: damaged files are moved there, because a person or another program
//! may still recover data from them.

use crate::error::Error;
use crate::layout::{make_folder, sync_folder};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the folder.
pub(crate) const FOLDER: &str = "damaged";

/// Returns an unused path for a damaged file of the trace: `damaged/events-part-000001.parquet`,
/// with a number if that exists. Creates the folder.
pub(crate) fn unused_path(path: &Path) -> Result<PathBuf, Error> {
    // The manifest is in the trace directory, all other files are in a folder of it.
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

/// Makes the names of a file in the folder and of its original `path` durable.
pub(crate) fn sync(kept: &Path, path: &Path) -> Result<(), Error> {
    kept.parent().map_or(Ok(()), sync_folder)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Copies the bytes of a file from an offset on.
pub(crate) fn keep_tail(path: &Path, from: u64, kept: &Path) -> Result<(), Error> {
    let source = File::open(path).map_err(Error::io("open", path))?;
    let copy = File::create_new(kept).map_err(Error::io("create", kept))?;
    let (mut buffer, mut at) = (vec![0; 1 << 20], from);
    loop {
        let read = source.read_at(&mut buffer, at).map_err(Error::io("read", path))?;
        if read == 0 {
            break;
        }
        copy.write_all_at(&buffer[..read], at - from).map_err(Error::io("write to", kept))?;
        at += read as u64;
    }
    copy.sync_all().map_err(Error::io("sync", kept))?;
    sync(kept, path)
}

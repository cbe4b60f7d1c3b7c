//! Writes the seeds of all targets to a directory, one folder per target.

use std::io::{Error, Result};

fn main() -> Result<()> {
    let usage = || Error::other("usage: seeds DIRECTORY");
    let directory = std::path::PathBuf::from(std::env::args_os().nth(1).ok_or_else(usage)?);
    for (target, seeds, _) in miot_fuzz::TARGETS {
        let folder = directory.join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds() {
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}

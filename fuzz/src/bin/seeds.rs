//! Writes the seeds of all targets below a directory, one folder per target.

use std::io::{Error, Result};

fn main() -> Result<()> {
    let usage = || Error::other("usage: seeds DIRECTORY");
    let below = std::path::PathBuf::from(std::env::args_os().nth(1).ok_or_else(usage)?);
    for (target, seeds, _) in miot_fuzz::TARGETS {
        let folder = below.join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds() {
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}

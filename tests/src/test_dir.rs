//! A separate directory for each test.

use std::fs;
use std::path::{Path, PathBuf};

/// Creates an empty folder below the target directory, at the same path in every run. The files of
/// a run stay there for inspection until the next run.
///
/// # Panics
/// If it cannot be created.
#[must_use]
pub fn fresh(name: &str) -> PathBuf {
    // target/<profile>/deps/<test>
    let test = std::env::current_exe().unwrap_or_default();
    let place = test.ancestors().nth(3).unwrap_or(Path::new("/")).join("tmp").join(name);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
    place
}

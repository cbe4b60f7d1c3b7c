//! A separate directory for each test.

use std::fs;
use std::path::{Path, PathBuf};

/// An empty folder below the target directory, the same in every run: what an earlier one left is
/// there to be looked at until then.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn fresh(name: &str) -> PathBuf {
    // target/<profile>/deps/<test>
    let test = std::env::current_exe().unwrap_or_default();
    let place = test.ancestors().nth(3).unwrap_or(Path::new("/")).join("tmp").join(name);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
    place
}

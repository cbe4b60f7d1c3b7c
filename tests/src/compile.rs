//! Compiles the C programs of the tests.

use crate::built::root;
use crate::process::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles files of `tests/programs` into one program in `into`.
///
/// # Panics
/// With the compiler's output if it fails.
#[must_use]
pub fn compile(into: &Path, name: &str, sources: &[&str], flags: &[&str]) -> PathBuf {
    let program = into.join(name);
    let folder = root().join("tests/programs");
    let mut cc = Command::new("cc");
    // Without optimization, glibc's headers inline nothing, so every call is a library call.
    cc.args(["-O0", "-g", "-w", "-U_FORTIFY_SOURCE", "-o"]).arg(&program);
    cc.args(sources.iter().map(|s| folder.join(s))).args(flags).arg("-pthread");
    let _ = run(&mut cc).success();
    program
}

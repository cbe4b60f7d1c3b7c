//! MPI programs of the tests, in C and Fortran, with MPICH.

use crate::built::{built, root};
use crate::process::{Ended, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's names, which stay MPICH's beside another MPI.
const MPICC: &str = "mpicc.mpich";
const MPIF90: &str = "mpif90.mpich";
const MPIEXEC: &str = "mpiexec.mpich";

/// Compiles a program of `tests/programs/mpi`; Fortran by its suffix.
///
/// # Panics
/// With the compiler's words if it cannot; `tests/setup.sh` installs what it takes.
#[must_use]
pub fn compile(into: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let program = into.join(name);
    let mut compiler = Command::new(if source.ends_with(".F90") { MPIF90 } else { MPICC });
    compiler
        .args(["-O0", "-g", "-w", "-o"])
        .arg(&program)
        .arg(root().join("tests/programs/mpi").join(source));
    let _ = run(compiler.args(flags).arg("-pthread").current_dir(into)).success();
    program
}

/// `miot run -o TRACE -- mpiexec -n RANKS PROGRAM…`, run to its end.
#[must_use]
pub fn traced<S: AsRef<OsStr>>(trace: &Path, ranks: u32, options: &[&str], words: &[S]) -> Ended {
    let mut miot = Command::new(&built().miot);
    miot.args(["run", "--quiet"]).args(options).arg("-o").arg(trace);
    miot.args(["--", MPIEXEC, "-n", &ranks.to_string()]).args(words);
    run(&mut miot)
}

//! Compiles and runs MPI programs in C and Fortran: with MPICH, and some with Open MPI.

use crate::built::{built, root};
use crate::process::{Ended, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// MPI implementation whose compilers and launcher are used. They have Debian's names, which are
/// unique when both are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// MPICH.
    Mpich,
    /// Open MPI with its own MPI-IO (OMPIO), which has no atomic mode. Its ROMIO does not work: in
    /// Debian 12's version 4.1.4, the calls of `every.c` end with a segmentation fault, with and
    /// without a hook.
    OpenMpi,
}

impl Mpi {
    fn suffix(self) -> &'static str {
        match self {
            Mpi::Mpich => "mpich",
            Mpi::OpenMpi => "openmpi",
        }
    }

    /// Command line that starts `ranks` processes of the program appended to it.
    #[must_use]
    pub fn launcher(self, ranks: u32) -> Vec<String> {
        let mut words = vec![format!("mpiexec.{}", self.suffix())];
        let mut add = |more: &str| words.extend(more.split(' ').map(str::to_owned));
        if self == Mpi::OpenMpi {
            // Use only this machine.
            add("--allow-run-as-root --oversubscribe --mca plm isolated");
        }
        add(&format!("-n {ranks}"));
        words
    }

    /// Compiles a program of `tests/programs/mpi`, in the language of its suffix.
    ///
    /// # Panics
    /// With the compiler's output if it fails. `tests/setup.sh` installs the compilers.
    #[must_use]
    pub fn compile(self, into: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let program = into.join(name);
        let language = if source.ends_with(".F90") { "mpif90" } else { "mpicc" };
        let mut compiler = Command::new(format!("{language}.{}", self.suffix()));
        compiler
            .args(["-O0", "-g", "-w", "-o"])
            .arg(&program)
            .arg(root().join("tests/programs/mpi").join(source));
        let _ = run(compiler.args(flags).arg("-pthread").current_dir(into)).success();
        program
    }

    /// Runs `miot run -o TRACE -- mpiexec -n RANKS PROGRAM…` to its end.
    #[must_use]
    pub fn traced<S: AsRef<OsStr>>(self, trace: &Path, ranks: u32, options: &[&str], words: &[S]) -> Ended {
        let mut miot = Command::new(&built().miot);
        miot.args(["run", "--quiet"]).args(options).arg("-o").arg(trace);
        miot.arg("--").args(self.launcher(ranks)).args(words);
        run(&mut miot)
    }
}

/// [`Mpi::compile`] with MPICH.
#[must_use]
pub fn compile(into: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    Mpi::Mpich.compile(into, name, source, flags)
}

/// [`Mpi::traced`] with MPICH.
#[must_use]
pub fn traced<S: AsRef<OsStr>>(trace: &Path, ranks: u32, options: &[&str], words: &[S]) -> Ended {
    Mpi::Mpich.traced(trace, ranks, options, words)
}

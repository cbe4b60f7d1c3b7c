//! MPI programs of the tests, in C and Fortran: with MPICH, and some with Open MPI.

use crate::built::{built, root};
use crate::process::{Ended, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whose compilers and launcher: by Debian's names, which stay theirs beside one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// MPICH.
    Mpich,
    /// Open MPI with its own MPI-IO, which has no atomic mode. Its ROMIO does not work: Debian 12
    /// has 4.1.4, where the calls of `every.c` end with a segmentation fault, without a hook as
    /// well.
    OpenMpi,
}

impl Mpi {
    fn suffix(self) -> &'static str {
        match self {
            Mpi::Mpich => "mpich",
            Mpi::OpenMpi => "openmpi",
        }
    }

    /// Starts so many processes of what follows these words.
    #[must_use]
    pub fn launcher(self, ranks: u32) -> Vec<String> {
        let mut words = vec![format!("mpiexec.{}", self.suffix())];
        let mut add = |more: &str| words.extend(more.split(' ').map(str::to_owned));
        if self == Mpi::OpenMpi {
            // On this machine alone.
            add("--allow-run-as-root --oversubscribe --mca plm isolated");
        }
        add(&format!("-n {ranks}"));
        words
    }

    /// Compiles a program of `tests/programs/mpi`; Fortran by its suffix.
    ///
    /// # Panics
    /// With the compiler's words if it cannot; `tests/setup.sh` installs what it takes.
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

    /// `miot run -o TRACE -- mpiexec -n RANKS PROGRAM…`, run to its end.
    #[must_use]
    pub fn traced<S: AsRef<OsStr>>(self, trace: &Path, ranks: u32, options: &[&str], words: &[S]) -> Ended {
        let mut miot = Command::new(&built().miot);
        miot.args(["run", "--quiet"]).args(options).arg("-o").arg(trace);
        miot.arg("--").args(self.launcher(ranks)).args(words);
        run(&mut miot)
    }
}

/// [`Mpi::compile`] of MPICH.
#[must_use]
pub fn compile(into: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    Mpi::Mpich.compile(into, name, source, flags)
}

/// [`Mpi::traced`] of MPICH.
#[must_use]
pub fn traced<S: AsRef<OsStr>>(trace: &Path, ranks: u32, options: &[&str], words: &[S]) -> Ended {
    Mpi::Mpich.traced(trace, ranks, options, words)
}

//! Finds the libraries to preload.

use anyhow::Context as _;
use std::path::PathBuf;

/// Environment variable with the directory of the hooks.
const DIR_ENV: &str = "MIOT_HOOK_DIR";

/// Names of the hooks. Hooks not requested by name may be missing, except for the first.
const HOOKS: [&str; 2] = ["posix", "mpi"];

/// Environment variable with which the posix hook does not load the mpi hook, and its value.
pub(crate) const WITHOUT_MPI: (&str, &str) = ("MIOT_MPI", "off");

/// True if the posix hook must not load the mpi hook: it is not requested.
pub(crate) fn excludes_mpi(wanted: &[String]) -> bool {
    !wanted.is_empty() && !wanted.iter().any(|name| name == HOOKS[1])
}

/// Returns the preload libraries of the requested hooks, by default of all that are installed. The
/// posix hook loads the mpi hook that lies beside it, and only in programs that call MPI.
pub(crate) fn libraries(wanted: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(unknown) = wanted.iter().find(|name| !HOOKS.contains(&name.as_str())) {
        anyhow::bail!("--hook {unknown}: no such hook; there are {}", HOOKS.join(" and "));
    }
    let mut found = if wanted.is_empty() {
        let mut found = vec![library(HOOKS[0])?];
        found.extend(library(HOOKS[1]).ok());
        found
    } else {
        let wanted = HOOKS.iter().filter(|hook| wanted.iter().any(|name| name == *hook));
        wanted.map(|hook| library(hook)).collect::<anyhow::Result<Vec<_>>>()?
    };
    if let [posix, mpi] = &found[..]
        && posix.parent() == mpi.parent()
    {
        found.truncate(1);
    }
    Ok(found)
}

/// Finds the preload library of a hook: in the directory of this program (a build tree), in
/// `../lib/miot` (installed), or in the directory that `MIOT_HOOK_DIR` names.
pub(crate) fn library(hook: &str) -> anyhow::Result<PathBuf> {
    let file = format!("libmiot_{hook}.so");
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let mut folders = Vec::new();
    if let Some(dir) = std::env::var_os(DIR_ENV) {
        folders.push(PathBuf::from(dir));
    } else if let Some(beside) = program.parent() {
        folders.extend([beside.to_owned(), beside.join("../lib/miot")]);
    }
    let found = folders.iter().map(|folder| folder.join(&file)).find(|path| path.is_file());
    let found = found.with_context(|| {
        let looked: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
        format!(
            "{file} is not in {}: build it (cargo build --release), or set {DIR_ENV} to its directory",
            looked.join(" nor in ")
        )
    })?;
    let found = found.canonicalize()?;
    // The loader splits LD_PRELOAD at these.
    let splits = |b: &u8| *b == b':' || b.is_ascii_whitespace();
    anyhow::ensure!(
        !found.as_os_str().as_encoded_bytes().iter().any(splits),
        "{}: the loader cannot preload a path with spaces or colons; copy it elsewhere and set {DIR_ENV} to that directory",
        found.display()
    );
    Ok(found)
}

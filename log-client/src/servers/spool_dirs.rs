//! Spools of several log-servers, in numbered directories.
//!
//! ```text
//! SPOOL/*.spool, *.ledger        spool of a log-client with one log-server; number 0
//! SPOOL/000001/server            address of the log-server that this spool belongs to
//! SPOOL/000001/*.spool, *.ledger
//! SPOOL/000002/…                 the highest number is the spool in use
//! ```
//!
//! A directory without the file `server` was not finished, and nothing of it was sent: it is
//! removed. A spool is removed once its log-server has acknowledged everything.

use super::Spools;
use super::spools::NumberedSpool;
use crate::config::Config;
use crate::error::Error;
use crate::spool::{RecoveredSpool, Spool, make_private};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the spool in the MIOT directory.
const SPOOL: &str = "spool";
/// File with the address of the log-server.
const SERVER: &str = "server";
/// Digits of a directory's name.
const DIGITS: usize = 6;

/// Opens spools of several log-servers.
#[derive(Clone, Debug)]
pub(crate) struct SpoolDirs {
    root: PathBuf,
    config: Config,
    boot: u128,
}

/// Spools that an earlier log-client left, and the one in use.
#[derive(Debug)]
pub(crate) struct OpenedSpools {
    /// With the spool in use at the end.
    pub(crate) spools: Spools,
    /// State of the spool in use, and of all spools together.
    pub(crate) recovered: RecoveredSpool,
    /// `None`: one log-server, with one spool.
    pub(crate) dirs: Option<SpoolDirs>,
}

impl SpoolDirs {
    /// Opens all spools of this node. With one log-server, and no spools of others, that is the
    /// spool directory itself.
    ///
    /// # Errors
    /// Those of [`Spool::open`]; [`Error::Path`].
    pub(crate) fn open(config: &Config, boot: u128, preferred: &[String]) -> Result<OpenedSpools, Error> {
        let root = config.spool_dir.clone().unwrap_or_else(|| config.dir.join(SPOOL));
        let dirs = SpoolDirs { root: root.clone(), config: config.clone(), boot };
        let mut places = dirs.places()?;
        let first = config.members().into_iter().next().unwrap_or_default();
        if config.servers.is_empty() && places.is_empty() {
            let (spool, recovered) = dirs.open_spool(&root)?;
            return Ok(OpenedSpools { spools: Spools::new(first, 0, spool), recovered, dirs: None });
        }
        make_private(&root)?;
        if holds_files(&root)? {
            // Of the time when this log-client had one log-server.
            places.insert(0, (0, first));
        }
        if places.is_empty() {
            let server = preferred.first().cloned().unwrap_or_default();
            dirs.begin(1)?;
            dirs.commit(1, &server)?;
            places.push((1, server));
        }
        let mut opened: Option<(Spools, RecoveredSpool)> = None;
        for (number, server) in places {
            let (spool, recovered) = dirs.open_spool(&dirs.path(number))?;
            opened = Some(match opened {
                None => (Spools::new(server, number, spool), recovered),
                Some((spools, before)) => {
                    spools.end_current();
                    spools.add(NumberedSpool { server, number, spool: Arc::new(spool) });
                    (spools, before.followed_by(recovered))
                }
            });
        }
        let (spools, recovered) = opened.ok_or_else(|| {
            Error::path("cannot open", &root, std::io::Error::from(std::io::ErrorKind::NotFound))
        })?;
        Ok(OpenedSpools { spools, recovered, dirs: Some(dirs) })
    }

    /// Creates the directory of another spool, and opens it.
    ///
    /// # Errors
    /// Those of [`Spool::open`]; [`Error::Path`].
    pub(crate) fn create(&self, number: u64) -> Result<Spool, Error> {
        let path = self.begin(number)?;
        Ok(self.open_spool(&path)?.0)
    }

    /// Makes a created spool one of this log-server, in one step.
    ///
    /// # Errors
    /// [`Error::Path`].
    pub(crate) fn commit(&self, number: u64, server: &str) -> Result<(), Error> {
        let (path, new) = (self.path(number).join(SERVER), self.path(number).join("server.new"));
        let failed = |error| Error::path("cannot write", &path, error);
        fs::write(&new, format!("{server}\n")).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)
    }

    /// Removes a created spool that was not committed.
    pub(crate) fn discard(&self, number: u64) {
        let path = self.path(number);
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove an unused spool");
        }
    }

    /// Removes a spool without files.
    pub(crate) fn remove(&self, number: u64) {
        if number > 0 {
            let path = self.path(number);
            let removed = fs::remove_file(path.join(SERVER)).and_then(|()| fs::remove_dir(&path));
            if let Err(error) = removed {
                tracing::warn!(%error, path = %path.display(), "cannot remove an empty spool");
            }
        }
    }

    /// Path of the spool with this number.
    fn path(&self, number: u64) -> PathBuf {
        if number == 0 { self.root.clone() } else { self.root.join(format!("{number:0DIGITS$}")) }
    }

    fn open_spool(&self, path: &Path) -> Result<(Spool, RecoveredSpool), Error> {
        let config = &self.config;
        Spool::open(path, config.spool_bytes, config.spool_full, &config.node, self.boot)
    }

    fn begin(&self, number: u64) -> Result<PathBuf, Error> {
        let path = self.path(number);
        fs::create_dir(&path).map_err(|error| Error::path("cannot create", &path, error))?;
        Ok(path)
    }

    /// Numbers and log-servers of the spools in directories, ascending. Unfinished ones are
    /// removed.
    fn places(&self) -> Result<Vec<(u64, String)>, Error> {
        let failed = |path: &Path, error| Error::path("cannot read", path, error);
        let mut places = Vec::new();
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(places),
            entries => entries.map_err(|error| failed(&self.root, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(&self.root, error))?;
            let name = entry.file_name();
            let digits =
                name.to_str().filter(|name| name.len() >= DIGITS && name.bytes().all(|b| b.is_ascii_digit()));
            let Some(number) = digits.and_then(|digits| digits.parse().ok()) else { continue };
            match fs::read_to_string(entry.path().join(SERVER)) {
                Ok(server) => places.push((number, server.trim_end().to_owned())),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    fs::remove_dir_all(entry.path()).map_err(|error| failed(&entry.path(), error))?;
                }
                Err(error) => return Err(failed(&entry.path(), error)),
            }
        }
        places.sort_unstable();
        Ok(places)
    }
}

/// True if a directory holds files of a spool.
fn holds_files(root: &Path) -> Result<bool, Error> {
    let entries = fs::read_dir(root).map_err(|error| Error::path("cannot read", root, error))?;
    let is_spool = |entry: fs::DirEntry| {
        entry.path().extension().is_some_and(|extension| extension == "spool" || extension == "ledger")
    };
    Ok(entries.flatten().any(is_spool))
}

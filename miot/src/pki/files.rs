//! Paths of certificates and keys: `DIR/ca.pem`, `DIR/<role>/<name>.pem`, each with its `.key`.

use anyhow::{Context as _, bail};
use miot_tls::Role;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Name of the authority's certificate.
pub(super) const AUTHORITY: &str = "ca.pem";
/// Permissions of keys.
const SECRET: u32 = 0o600;
/// Permissions of certificates.
const PUBLIC: u32 = 0o644;

/// A certificate and its key.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Pair {
    pub(super) fn authority(dir: &Path) -> Pair {
        Pair { certificate: dir.join(AUTHORITY), key: dir.join("ca.key") }
    }

    pub(super) fn of(dir: &Path, role: Role, name: &str) -> Pair {
        let file = |end| dir.join(role.name()).join(format!("{name}.{end}"));
        Pair { certificate: file("pem"), key: file("key") }
    }

    /// Checks that the pair does not exist, or, with `renew`, that it exists.
    pub(super) fn check_free(&self, renew: bool) -> anyhow::Result<()> {
        let there = self.certificate.exists() || self.key.exists();
        match (there, renew) {
            (true, false) => Err(self.exists()),
            (false, true) => bail!("{} does not exist yet: remove --renew", self.certificate.display()),
            _ => Ok(()),
        }
    }

    fn exists(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "{} or its key exists: replace both with --renew, or move them away",
            self.certificate.display()
        )
    }

    /// Writes both files, the key first. A reader in between detects that the pair does not match.
    pub(super) fn write(&self, certificate: &str, key: &str, renew: bool) -> anyhow::Result<()> {
        self.check_free(renew)?;
        if let Some(dir) = self.key.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        self.put(&self.key, key, SECRET, renew)?;
        self.put(&self.certificate, certificate, PUBLIC, renew).inspect_err(|_| {
            if !renew {
                let _ = std::fs::remove_file(&self.key);
            }
        })
    }

    fn put(&self, path: &Path, text: &str, mode: u32, renew: bool) -> anyhow::Result<()> {
        let new = if renew { path.with_added_extension("new") } else { path.to_owned() };
        let open = || OpenOptions::new().write(true).create_new(true).mode(mode).open(&new);
        let written =
            open().and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        match written {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !renew => return Err(self.exists()),
            written => written.with_context(|| format!("cannot write {}", new.display()))?,
        }
        if renew {
            std::fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
        Ok(())
    }
}

//! Directory of a replay: checked, filled with the initial files of the trace, cleaned up at the
//! end.

use super::below;
use crate::numbers::bytes as human;
use crate::source::bar;
use anyhow::{Context as _, anyhow, bail, ensure};
use miot_workload::content::Content;
use miot_workload::replay::{InitialFiles, ReplayError, ReplayNotice, ReplayRoot};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

/// Size of a write, bytes.
const PIECE: u64 = 1 << 20;

/// Directory of a replay. It is emptied on drop, unless it was not empty before or must be kept.
#[derive(Debug)]
pub(super) struct Target {
    root: PathBuf,
    below: ReplayRoot,
    empties: bool,
}

/// Files and directories created before the first request.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Prepared {
    pub(super) files: usize,
    pub(super) directories: usize,
    pub(super) bytes: u64,
}

impl Target {
    pub(super) fn new(into: &Path, force: bool, keep: bool) -> anyhow::Result<Target> {
        let shown = into.display();
        let root =
            into.canonicalize().with_context(|| format!("cannot use {shown}: create an empty directory"))?;
        ensure!(root.is_dir(), "{shown} is not a directory: --into requires one");
        let mut entries = fs::read_dir(&root).with_context(|| format!("cannot read {shown}"))?;
        let empty = entries.next().is_none();
        if !empty && !force {
            bail!(
                "{shown} is not empty: choose an empty directory, or use --force to overwrite existing files"
            );
        }
        // Report a read-only directory here, rather than once per failed request.
        let probe = root.join(format!(".miot-replay-{}", std::process::id()));
        let tried = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe));
        tried.with_context(|| format!("cannot write to {shown}"))?;
        let below = below(&root)?;
        Ok(Target { root, below, empties: empty && !keep })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Creates the files and directories that existed when the trace started.
    pub(super) fn prepare(
        &self,
        needs: &InitialFiles,
        told: &Receiver<ReplayNotice>,
    ) -> anyhow::Result<Prepared> {
        let before = needs.before_first_step();
        let sum = before.values().flatten().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let system = rustix::fs::statvfs(&self.root)?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        ensure!(
            sum <= free,
            "the trace reads {} of existing data, which must be created first, and {} has {} free: choose another --into, or a shorter time with --since and --until",
            human(sum as f64),
            self.root.display(),
            human(free as f64)
        );
        let mut made = Prepared::default();
        let content = Content::new(0, PIECE);
        let progress = bar(sum, "bytes made");
        for (name, size) in before {
            if let Ok(ReplayNotice::Stop(signal)) = told.try_recv() {
                return Err(ReplayError::Stopped { signal, done: 0, steps: 0 })
                    .context("while creating the files that the trace reads");
            }
            let shown = || format!("cannot create {}", self.below.path(&name).display());
            let Some(size) = size else {
                self.below.make_directories(&name).map_err(|errno| anyhow!(errno)).with_context(shown)?;
                made.directories += 1;
                continue;
            };
            let create = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
            let parent = Path::new(OsStr::from_bytes(&name)).parent().unwrap_or(Path::new(""));
            let opened = self
                .below
                .make_directories(parent.as_os_str().as_bytes())
                .and_then(|_| self.below.open_at(&name, create, Mode::from_raw_mode(0o755)));
            let file = opened.map_err(|errno| anyhow!(errno)).with_context(shown)?;
            made.files += 1;
            for offset in (0..size).step_by(PIECE as usize) {
                let mut left = content.at(offset, PIECE.min(size - offset));
                while !left.is_empty() {
                    let written = rustix::io::write(&file, left);
                    left = &left[written.map_err(|errno| anyhow!(errno)).with_context(shown)?..];
                }
                progress.inc(PIECE.min(size - offset));
                made.bytes += PIECE.min(size - offset);
            }
        }
        Ok(made)
    }

    /// Removes the files of the replay.
    pub(super) fn clear(mut self) -> anyhow::Result<()> {
        self.try_clear()
            .with_context(|| format!("cannot remove all files of the replay in {}", self.root.display()))
    }

    fn try_clear(&mut self) -> std::io::Result<()> {
        if !std::mem::take(&mut self.empties) {
            return Ok(());
        }
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.try_clear();
    }
}

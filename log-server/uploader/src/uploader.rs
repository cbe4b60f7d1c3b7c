//! Puts a trace into a store: manifest, parts, marks.
//!
//! Each step can be repeated, so a process that is killed at any point is continued by the next
//! one. Files of a part replace what an interrupted upload has left; its ledger file is put last
//! and only if it does not exist. A part is marked once it is also registered.

use crate::address::Store;
use crate::error::Error;
use crate::register::register;
use crate::transfer::{create, get, put_file};
use miot_trace_store::Manifest;
use miot_trace_store::upload::{
    PartToUpload, UploadFile, first_files, manifest_file, mark_uploaded, parts_to_upload,
};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copies one trace directory to one store.
#[derive(Debug)]
pub struct Uploader {
    dir: PathBuf,
    store: Store,
    /// Command that registers a part; empty if there is none.
    register: Vec<String>,
    /// Text of the manifest that the store has.
    manifest: Vec<u8>,
}

impl Uploader {
    /// Of this trace directory and this store. `register`: command that registers a part, empty if
    /// there is none.
    #[must_use]
    pub fn new(dir: &Path, store: Store, register: Vec<String>) -> Uploader {
        Uploader { dir: dir.to_owned(), store, register, manifest: Vec::new() }
    }

    /// Copies all parts that are sealed and not in the store. Returns their number.
    ///
    /// A part that cannot be copied does not hold back the others: the first error is returned at
    /// the end. An error of the store, or of the registration, ends
    /// the pass.
    ///
    /// # Errors
    /// Any [`Error`]. What was copied is marked.
    pub async fn pass(&mut self) -> Result<u64, Error> {
        self.put_manifest().await?;
        let (mut copied, mut failed) = (0, None);
        for part in parts_to_upload(&self.dir, &self.store.name)? {
            match self.put_part(&part).await {
                Ok(()) => copied += 1,
                Err(error @ (Error::Store { .. } | Error::Register { .. })) => return Err(error),
                Err(Error::Read { source, path }) if source.kind() == std::io::ErrorKind::NotFound => {
                    tracing::warn!(
                        part = part.part,
                        path = %path.display(),
                        "the part was removed before it was copied: set `store` for the log-server too, so that it waits"
                    );
                }
                Err(error) => {
                    tracing::error!(part = part.part, %error, "the part is not copied");
                    failed = failed.or(Some(error));
                }
            }
        }
        failed.map_or(Ok(copied), Err)
    }

    /// Puts the manifest, and refuses the prefix of another trace.
    async fn put_manifest(&mut self) -> Result<(), Error> {
        let UploadFile { name, path, .. } = manifest_file(&self.dir);
        let here = Manifest::read(&self.dir)?;
        let text = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
        if text == self.manifest {
            return Ok(());
        }
        let found = get(&self.store, &name).await?;
        let found = match found {
            Some(found) => found,
            None => {
                for file in first_files(&self.dir)? {
                    put_file(&self.store, &file).await?;
                }
                if create(&self.store, &name, text.clone().into()).await? {
                    self.manifest = text;
                    return Ok(());
                }
                get(&self.store, &name).await?.unwrap_or_default()
            }
        };
        let there = Manifest::parse(Path::new(&self.store.name), &found)?;
        if (&there.created, there.partition) != (&here.created, here.partition) {
            let describe =
                |manifest: &Manifest| format!("partition {}, begun {}", manifest.partition, manifest.created);
            return Err(Error::OtherTrace {
                store: self.store.name.clone(),
                found: describe(&there),
                expected: describe(&here),
            });
        }
        if found != text {
            put_file(&self.store, &manifest_file(&self.dir)).await?;
        }
        self.manifest = text;
        Ok(())
    }

    async fn put_part(&self, part: &PartToUpload) -> Result<(), Error> {
        let begun = Instant::now();
        let commit = match &part.commit {
            Some(UploadFile { name, path, .. }) => {
                let read = std::fs::read(path).map_err(|source| Error::Read { path: path.clone(), source });
                Some((name, read?))
            }
            None => None,
        };
        let mut is_there = false;
        if let Some((name, content)) = &commit {
            is_there = self.has(part.part, name, content).await?;
        }
        let mut bytes = 0;
        if !is_there {
            for file in &part.files {
                bytes += put_file(&self.store, file).await?;
            }
            if let Some((name, content)) = &commit
                && !create(&self.store, name, content.clone().into()).await?
            {
                self.has(part.part, name, content).await?;
            }
        }
        self.store.sync()?;
        register(&self.register, &self.store.name, part).await?;
        mark_uploaded(&self.dir, part.part, &self.store.name)?;
        tracing::info!(
            part = part.part,
            bytes,
            seconds = begun.elapsed().as_secs_f64(),
            store = self.store.name,
            "{}",
            if is_there { "the part was copied before" } else { "the part is copied" }
        );
        Ok(())
    }

    /// True if the store has the part.
    async fn has(&self, part: u64, name: &str, content: &[u8]) -> Result<bool, Error> {
        match get(&self.store, name).await? {
            None => Ok(false),
            Some(found) if found == content => Ok(true),
            Some(_) => {
                Err(Error::OtherPart { store: self.store.name.clone(), part, object: name.to_owned() })
            }
        }
    }
}

//! The figures of a file system at a moment, as a file and as `--format json` prints them.

use super::errors::ErrorRow;
use anyhow::{Context as _, bail};
use jiff::Timestamp;
use miot_trace_analysis::contents::{Amount, Contents};
use serde::{Deserialize, Serialize};
use std::path::Path;

const FORMAT: &str = "miot-fsstats";
/// Goes up when an older `miot` would misread what a newer one writes.
const VERSION: u32 = 1;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) made_by: String,
    /// Path of the directory.
    pub(crate) directory: String,
    /// To when ages are counted.
    #[serde(with = "text")]
    pub(crate) as_of: Timestamp,
    /// How long the walk took, without what lay between a checkpoint and going on.
    pub(crate) took_seconds: f64,
    pub(crate) cross: bool,
    pub(crate) exclude: Vec<String>,
    /// Names that were left out by `exclude`.
    pub(crate) excluded: u64,
    /// Mount points that were left alone.
    pub(crate) mounts: u64,
    pub(crate) mounts_named: Vec<String>,
    /// Of all files.
    pub(crate) totals: Amount,
    pub(crate) errors: Vec<ErrorRow>,
    pub(crate) contents: Contents,
}

impl Snapshot {
    pub(crate) fn format() -> (String, u32, String) {
        (FORMAT.to_owned(), VERSION, concat!("miot ", env!("CARGO_PKG_VERSION")).to_owned())
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Snapshot> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let head = serde_json::from_slice(&text).ok().filter(|head: &Head| head.format == FORMAT);
        match head {
            None => {
                bail!("{} is not a snapshot: expected what `miot fsstats DIR -o FILE` writes", path.display())
            }
            Some(Head { version, .. }) if version > VERSION => bail!(
                "{} is a snapshot of version {version}, this program reads up to {VERSION}: upgrade MIOT",
                path.display()
            ),
            Some(_) => {}
        }
        serde_json::from_slice(&text).with_context(|| format!("the snapshot {} is damaged", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A time as text.
mod text {
    use jiff::Timestamp;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

//! Copies the sealed parts of a trace from an object store into a new directory, with their ledger.

use crate::temporary;
use crate::trace::remote::{Listing, key};
use anyhow::{Context as _, bail, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use miot_trace_store::upload::LEDGER_FOLDER;
use miot_trace_store::{MANIFEST, MissingParts};
use object_store::ObjectStoreExt as _;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use url::Url;

/// Number of files that are copied concurrently.
const AT_ONCE: usize = 4;

/// Copies a trace. The directory appears when it is complete. Returns the missing parts.
pub(crate) async fn copy(url: &Url, to: &Path) -> anyhow::Result<MissingParts> {
    ensure!(!to.exists(), "{} exists: name a new directory", to.display());
    let listing = Listing::of(url).await?;
    let within = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = |action: &str| format!("cannot {action} {}", to.display());
    let folder = temporary::folder(within).with_context(|| cannot("create"))?;
    let tables = listing.files.iter().map(|(table, names)| (table.name(), names));
    let mut all = Vec::new();
    for (within, names) in tables.chain([(LEDGER_FOLDER, &listing.ledger)]) {
        fs::create_dir(folder.join(within)).with_context(|| cannot("write"))?;
        all.extend(names.iter().map(|name| format!("{within}/{name}")));
    }
    let download = |name: String| copy_file(&listing, url, name, &folder);
    stream::iter(all).map(download).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    fs::write(folder.join(MANIFEST), &listing.manifest).with_context(|| cannot("write"))?;
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).with_context(|| cannot("write"))?;
    fs::rename(&folder, to).with_context(|| cannot("create"))?;
    Ok(listing.missing)
}

/// Copies a file, piece by piece.
async fn copy_file(listing: &Listing, url: &Url, name: String, folder: &Path) -> anyhow::Result<()> {
    let found = match listing.store.get(&key(url, &name)?).await {
        Err(object_store::Error::NotFound { .. }) => {
            bail!("{url}: {name} was removed while the trace was copied: copy it again")
        }
        found => found.with_context(|| format!("{url}: {name} cannot be read"))?,
    };
    let mut file = File::create_new(folder.join(&name)).with_context(|| format!("cannot create {name}"))?;
    let mut pieces = found.into_stream();
    while let Some(piece) =
        pieces.try_next().await.with_context(|| format!("{url}: {name} cannot be read"))?
    {
        file.write_all(&piece).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

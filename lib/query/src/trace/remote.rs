//! A trace in an object store, laid out as a trace directory: its sealed parts.

use crate::trace::sealed::{self, SealedFile};
use anyhow::{Context as _, anyhow};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use miot_trace_store::upload::{LEDGER_FOLDER, committed_part};
use miot_trace_store::{MANIFEST, Manifest, MissingParts, Table, TableFile};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use url::Url;

/// Files of each table.
#[derive(Debug)]
pub(crate) struct Remote {
    files: BTreeMap<Table, Vec<SealedFile>>,
}

/// The sealed parts of a trace in an object store.
pub(crate) struct Listing {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Content of the manifest.
    pub(crate) manifest: Vec<u8>,
    pub(crate) missing: MissingParts,
    /// Names of the valid files.
    pub(crate) files: BTreeMap<Table, Vec<String>>,
    /// Names of the ledger files of parts that were not removed.
    pub(crate) ledger: Vec<String>,
}

/// Returns the key of a file of a trace.
pub(crate) fn key(url: &Url, name: &str) -> std::result::Result<Key, object_store::path::Error> {
    Key::from_url_path(format!("{}/{name}", url.path().trim_end_matches('/')))
}

impl Listing {
    pub(crate) async fn of(url: &Url) -> anyhow::Result<Listing> {
        let store = store(url).with_context(|| format!("{url} cannot be reached"))?;
        let key = |name: &str| key(url, name);
        let manifest = match store.get(&key(MANIFEST)?).await {
            Ok(found) => found.bytes().await?.to_vec(),
            Err(object_store::Error::NotFound { .. }) => {
                return Err(anyhow!("{url} is not a MIOT trace: it has no {MANIFEST}"));
            }
            Err(error) => return Err(error).with_context(|| format!("{url} cannot be read")),
        };
        Manifest::parse(Path::new(url.as_str()), &manifest)?;
        let names = async |folder: &str| {
            list(&*store, &key(folder)?).await.with_context(|| format!("{url} cannot be listed"))
        };
        // First: the files of a part that has a ledger file are all there.
        let ledger = names(LEDGER_FOLDER).await?;
        let mut holds = BTreeMap::new();
        for table in Table::ALL {
            let files = names(table.name()).await?.into_iter();
            let files = files.filter_map(|name| TableFile::from_name(&name).map(|file| (name, file)));
            holds.insert(table, files.collect());
        }
        let (first, missing, files) = select_files(&holds);
        let remains = |name: &String| committed_part(name).is_some_and(|part| part >= first);
        let ledger = ledger.into_iter().filter(remains).collect();
        Ok(Listing { store, manifest, missing, files, ledger })
    }
}

impl Remote {
    /// Opens a trace. Returns it and its missing parts.
    pub(crate) async fn open(context: &SessionContext, url: &Url) -> anyhow::Result<(Remote, MissingParts)> {
        let Listing { store, missing, files, .. } = Listing::of(url).await?;
        let mut root = url.clone();
        root.set_path("");
        context.register_object_store(&root, store);
        let file = |table: Table, name: &str| {
            let mut file = url.clone();
            file.set_path(&format!("{}/{table}/{name}", url.path().trim_end_matches('/')));
            SealedFile { name: file.to_string(), url: file }
        };
        let files = files
            .into_iter()
            .map(|(table, names)| (table, names.iter().map(|name| file(table, name)).collect()));
        Ok((Remote { files: files.collect() }, missing))
    }

    pub(crate) async fn rows(
        &self,
        context: &SessionContext,
        table: Table,
        columns: SchemaRef,
    ) -> Result<Vec<Arc<dyn TableProvider>>> {
        Ok(vec![match self.files.get(&table).filter(|files| !files.is_empty()) {
            Some(files) => sealed::table(context, table, files.clone(), columns).await?,
            None => Arc::new(MemTable::try_new(columns, vec![vec![]])?),
        }])
    }
}

/// Opens the store of an address; the path of the address is not part of it.
pub(crate) fn store(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    let bucket = url.host_str().unwrap_or_default();
    Ok(match url.scheme() {
        "s3" => Arc::new(AmazonS3Builder::from_env().with_bucket_name(bucket).build()?),
        "gs" => Arc::new(GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).build()?),
        "az" => Arc::new(MicrosoftAzureBuilder::from_env().with_container_name(bucket).build()?),
        #[cfg(feature = "workers")]
        "file" => Arc::new(object_store::local::LocalFileSystem::new()),
        _ => {
            let mut root = url.clone();
            root.set_path("");
            let options = ClientOptions::new().with_allow_http(true);
            Arc::new(HttpBuilder::new().with_url(root.as_str()).with_client_options(options).build()?)
        }
    })
}

/// Lists the names in a directory.
async fn list(store: &dyn ObjectStore, folder: &Key) -> object_store::Result<Vec<String>> {
    let found = match store.list_with_delimiter(Some(folder)).await {
        Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
        found => found?,
    };
    Ok(found.objects.iter().filter_map(|object| object.location.filename()).map(str::to_owned).collect())
}

/// Returns the first part, the missing sealed parts and the valid files, by the rules of
/// `miot_trace_store`.
fn select_files(
    holds: &BTreeMap<Table, Vec<(String, TableFile)>>,
) -> (u64, MissingParts, BTreeMap<Table, Vec<String>>) {
    let of = |table: Table| holds.get(&table).into_iter().flatten();
    let carried = |(_, holds): &(String, TableFile)| match holds {
        TableFile::Carried(first) => Some(*first),
        TableFile::Part(_) => None,
    };
    let first = of(Table::Threads).filter_map(carried).max().unwrap_or(0);
    let sealed: BTreeSet<u64> = of(Table::Events)
        .filter_map(|(_, holds)| match holds {
            TableFile::Part(part) => Some(*part),
            TableFile::Carried(_) => None,
        })
        .filter(|part| *part >= first)
        .collect();
    let counts = |holds: &TableFile| match holds {
        TableFile::Part(part) => sealed.contains(part),
        TableFile::Carried(carried) => first > 0 && *carried == first,
    };
    let names = |table| {
        let mut names: Vec<String> =
            of(table).filter(|(_, h)| counts(h)).map(|(name, _)| name.clone()).collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    };
    let files = Table::ALL.into_iter().map(|table| (table, names(table))).collect();
    let missing = sealed.last().map(|last| MissingParts::between(first, *last, &sealed));
    (first, missing.unwrap_or_default(), files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_unsealed_parts_do_not_count() {
        let names = |names: &[&str]| {
            names
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), TableFile::from_name(name)?)))
                .collect::<Vec<_>>()
        };
        let all = BTreeMap::from([
            (
                Table::Events,
                names(&["part-000001.parquet", "part-000002.parquet", "part-000003.parquet", "x.tmp"]),
            ),
            (
                Table::Threads,
                names(&["carried-000001.parquet", "carried-000002.parquet", "part-000001.parquet"]),
            ),
            (Table::Files, names(&["carried-000002.parquet", "part-000003.parquet", "part-000004.parquet"])),
        ]);
        let (first, missing, wanted) = select_files(&all);
        assert!(first == 2 && missing.is_empty());
        assert_eq!(wanted[&Table::Events], ["part-000002.parquet", "part-000003.parquet"]);
        assert_eq!(wanted[&Table::Threads], ["carried-000002.parquet"]);
        assert_eq!(wanted[&Table::Files], ["part-000003.parquet", "carried-000002.parquet"]);
        assert_eq!(wanted[&Table::Losses], [""; 0]);
    }

    #[test]
    fn absent_parts_that_were_not_removed_are_missing() {
        let missing = |events: &[u64], carried: Option<u64>| {
            let events = events.iter().map(|part| (String::new(), TableFile::Part(*part)));
            let carried = carried.map(|first| (String::new(), TableFile::Carried(first)));
            let all = [
                (Table::Events, events.collect::<Vec<_>>()),
                (Table::Threads, carried.into_iter().collect()),
            ];
            let missing = select_files(&BTreeMap::from(all)).1;
            missing.ranges().iter().cloned().flatten().collect::<Vec<u64>>()
        };
        assert_eq!(missing(&[], None), [0; 0]);
        assert_eq!(missing(&[0, 3], None), [1, 2]);
        assert_eq!(missing(&[4, 6], Some(4)), [5]);
        assert_eq!(missing(&[2], None), [0, 1]);
        assert_eq!(missing(&[2], Some(1)), [1]);
    }
}

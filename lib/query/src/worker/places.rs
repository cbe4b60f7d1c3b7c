//! What a worker reads: objects below its places, in their stores. A query can name nothing else,
//! and can change nothing.

use crate::trace::Location;
use crate::trace::remote::store;
use anyhow::Context as _;
use async_trait::async_trait;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use url::Url;

/// The stores of a worker, by scheme and host.
#[derive(Debug)]
pub(super) struct Places {
    stores: BTreeMap<String, Arc<Within>>,
    named: String,
}

impl Places {
    /// Opens the stores of places of the command line.
    pub(super) fn new(places: &[String]) -> anyhow::Result<Places> {
        let mut stores = BTreeMap::<String, Within>::new();
        for place in places {
            let Location::Remote(url) = Location::parse(place)?.shared()? else {
                anyhow::bail!("{place} is not a place")
            };
            let prefix = Key::from_url_path(url.path()).with_context(|| format!("{place} is not a place"))?;
            let within = match stores.entry(root(&url)) {
                std::collections::btree_map::Entry::Occupied(found) => found.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    let store = store(&url).with_context(|| format!("{place} cannot be opened"))?;
                    new.insert(Within { store, is_local: url.scheme() == "file", prefixes: Vec::new() })
                }
            };
            within.prefixes.push(prefix);
        }
        let stores = stores.into_iter().map(|(root, within)| (root, Arc::new(within))).collect();
        Ok(Places { stores, named: places.join(" ") })
    }
}

fn root(url: &Url) -> String {
    let mut root = url.clone();
    root.set_path("");
    root.to_string().trim_end_matches('/').to_owned()
}

impl ObjectStoreRegistry for Places {
    fn register_store(&self, _: &Url, _: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        match self.stores.get(&root(url)) {
            Some(within) => Ok(Arc::clone(within) as _),
            None => Err(DataFusionError::Execution(format!(
                "a worker may not read {url}: it was started for {}",
                self.named
            ))),
        }
    }
}

/// A store of which only what is below some prefixes can be read.
#[derive(Debug)]
struct Within {
    store: Arc<dyn ObjectStore>,
    /// True for the file system, which has symbolic links.
    is_local: bool,
    prefixes: Vec<Key>,
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl Within {
    fn check(&self, key: &Key) -> object_store::Result<()> {
        let within = |key: &Key| self.prefixes.iter().find(|prefix| key.prefix_matches(prefix));
        let Some(prefix) = within(key) else { return Err(denied(key, OUTSIDE)) };
        // A link leads only to what is below the same place.
        let real = |key: &Key| std::fs::canonicalize(Path::new("/").join(key.as_ref()));
        match (self.is_local, real(prefix), real(key)) {
            (true, Ok(place), Ok(file)) if !file.starts_with(&place) => Err(denied(key, OUTSIDE)),
            // The store reports files that are not there.
            _ => Ok(()),
        }
    }
}

fn denied(key: &Key, reason: &'static str) -> Error {
    Error::PermissionDenied { path: key.to_string(), source: reason.into() }
}

const OUTSIDE: &str = "it is outside of the places of this worker";
const READ_ONLY: &str = "a worker does not write";

#[async_trait]
impl ObjectStore for Within {
    async fn put_opts(&self, key: &Key, _: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        Err(denied(key, READ_ONLY))
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(denied(key, READ_ONLY))
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> object_store::Result<GetResult> {
        self.check(key)?;
        self.store.get_opts(key, options).await
    }

    async fn get_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> object_store::Result<Vec<bytes::Bytes>> {
        self.check(key)?;
        self.store.get_ranges(key, ranges).await
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, object_store::Result<Key>>,
    ) -> BoxStream<'static, object_store::Result<Key>> {
        keys.map(|key| key.and_then(|key| Err(denied(&key, READ_ONLY)))).boxed()
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        match prefix.map_or_else(|| Err(denied(&Key::default(), READ_ONLY)), |prefix| self.check(prefix)) {
            Ok(()) => self.store.list(prefix),
            Err(error) => stream::once(std::future::ready(Err(error)).boxed()).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> object_store::Result<ListResult> {
        self.check(prefix.unwrap_or(&Key::default()))?;
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Key, to: &Key, _: CopyOptions) -> object_store::Result<()> {
        Err(denied(to, READ_ONLY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt as _;

    #[tokio::test]
    async fn only_what_is_below_the_places_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["traces/mon/a", "traces-old/a"] {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "text").unwrap();
        }
        let traces = dir.path().join("traces");
        let places = Places::new(&[traces.to_str().unwrap().to_owned()]).unwrap();
        let store = places.get_store(&Url::parse("file:///").unwrap()).unwrap();
        let key = |name: &str| Key::from_url_path(format!("{}/{name}", dir.path().display())).unwrap();
        assert_eq!(store.get(&key("traces/mon/a")).await.unwrap().bytes().await.unwrap(), "text");
        for refused in ["traces-old/a", "traces"] {
            assert!(store.get(&key(refused)).await.is_err(), "{refused}");
        }
        std::os::unix::fs::symlink("/etc/passwd", traces.join("mon/link")).unwrap();
        for hidden in [key("traces-old/a"), key("traces/mon/link"), Key::from("etc/passwd")] {
            let error = store.get(&hidden).await.unwrap_err();
            assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
        }
        for error in [
            store.put(&key("traces/mon/b"), "text".into()).await.map(drop),
            store.delete(&key("traces/mon/a")).await,
            store.copy(&key("traces/mon/a"), &key("traces/mon/c")).await,
            store.rename(&key("traces/mon/a"), &key("traces/mon/c")).await,
        ] {
            assert!(matches!(error, Err(Error::PermissionDenied { .. })), "{error:?}");
        }
        for other in ["s3://bucket/", "http://localhost:1/"] {
            assert!(places.get_store(&Url::parse(other).unwrap()).is_err(), "{other}");
        }
        assert!(traces.join("mon/a").exists());
    }
}

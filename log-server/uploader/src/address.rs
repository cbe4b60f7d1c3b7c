//! Opens the store of an address.

use crate::error::Error;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectStore, RetryConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Attempts of one request before it is an error. The service repeats the whole part later.
const MAX_RETRIES: usize = 3;
/// Time for these attempts.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// A store and the prefix of a trace in it.
#[derive(Clone, Debug)]
pub struct Store {
    /// The address without a final slash: for texts, and for the marks of uploaded parts.
    pub name: String,
    pub(crate) objects: Arc<dyn ObjectStore>,
    prefix: Key,
    /// Of `file://`.
    folder: Option<PathBuf>,
}

impl Store {
    /// Opens the store of an address. Credentials and endpoints come from the environment. Nothing
    /// is sent yet.
    ///
    /// # Errors
    /// [`Error::Settings`].
    pub fn open(address: &str) -> Result<Store, Error> {
        let fail = |reason: String| Error::Settings(format!("store: {address}: {reason}"));
        let url = Url::parse(address).map_err(|error| {
            fail(format!("not an address ({error}), expected e.g. s3://bucket/prefix or file:///folder"))
        })?;
        if url.password().is_some() || !url.username().is_empty() {
            // The address is logged, unlike this text.
            return Err(Error::Settings(
                "store: the address contains credentials; set them in the environment, e.g. AWS_ACCESS_KEY_ID"
                    .to_owned(),
            ));
        }
        let retry =
            RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let objects: object_store::Result<Arc<dyn ObjectStore>> = match url.scheme() {
            "s3" => AmazonS3Builder::from_env()
                .with_url(address)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            "gs" => GoogleCloudStorageBuilder::from_env()
                .with_url(address)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            "az" | "azure" | "abfs" | "abfss" => MicrosoftAzureBuilder::from_env()
                .with_url(address)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            "file" => Ok(Arc::new(LocalFileSystem::new())),
            other => {
                return Err(fail(format!(
                    "{other}:// is not supported; s3://, gs://, az:// and file:// are"
                )));
            }
        };
        let objects = objects.map_err(|error| fail(error.to_string()))?;
        let prefix = Key::from_url_path(url.path()).map_err(|error| fail(error.to_string()))?;
        let folder = url.to_file_path().ok().filter(|_| url.scheme() == "file");
        Ok(Store { name: address.trim_end_matches('/').to_owned(), objects, prefix, folder })
    }

    /// Makes all objects durable. Object stores answer only when they are; folders do not.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let synced = std::fs::File::open(folder).and_then(|open| Ok(rustix::fs::syncfs(open)?));
        synced.map_err(|source| Error::Read { path: folder.clone(), source })
    }

    /// The key of a file of the trace.
    pub(crate) fn key(&self, name: &str) -> Key {
        name.split('/').fold(self.prefix.clone(), |key, part| key.join(part))
    }

    /// An error at an object.
    pub(crate) fn error<'a>(
        &'a self,
        action: &'static str,
        object: &'a str,
    ) -> impl FnOnce(object_store::Error) -> Error + 'a {
        move |source| Error::Store {
            store: self.name.clone(),
            action,
            object: object.to_owned(),
            source: Box::new(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_explained_and_never_repeats_credentials() {
        for (address, expected) in [
            ("bucket/prefix", "expected e.g. s3://bucket/prefix"),
            ("ftp://host/prefix", "ftp:// is not supported; s3://"),
            ("s3://key:secret@bucket/prefix", "contains credentials"),
        ] {
            let error = Store::open(address).map(|_| ()).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|text| text.contains(expected)), "{address}: {error:?}");
            assert!(error.is_err_and(|text| !text.contains("secret")), "{address}");
        }
    }

    #[test]
    fn files_are_below_the_prefix() -> Result<(), Error> {
        let store = Store::open("file:///srv/traces/cluster1/")?;
        assert_eq!(store.name, "file:///srv/traces/cluster1");
        assert_eq!(
            store.key("events/part-000000.parquet").as_ref(),
            "srv/traces/cluster1/events/part-000000.parquet"
        );
        Ok(())
    }
}

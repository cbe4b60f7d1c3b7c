//! A trace: the rows of its tables, from a directory or from an object store.

#[cfg(feature = "remote")]
mod copy;
pub(crate) mod local;
#[cfg(feature = "remote")]
pub(crate) mod remote;
mod sealed;

use anyhow::Context as _;
use datafusion::catalog::TableProvider;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use miot_trace_store::{MissingParts, Table, schema};
use object_store::path::Path as Key;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use url::Url;

/// State of a trace at one instant.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Name of the directory.
    pub(crate) name: String,
    /// Missing parts of a trace that is not in a directory.
    missing: MissingParts,
    place: TraceLocation,
}

#[derive(Debug)]
enum TraceLocation {
    Local(local::Local),
    #[cfg(feature = "remote")]
    Remote(remote::Remote),
}

/// Location of a trace, from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Dir(PathBuf),
    Remote(Url),
}

impl Location {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Location> {
        if !text.contains("://") {
            return Ok(Location::Dir(text.into()));
        }
        let url = Url::parse(text).with_context(|| format!("{text} is not the address of a trace"))?;
        match url.scheme() {
            "file" => match url.to_file_path() {
                Ok(dir) => Ok(Location::Dir(dir)),
                Err(()) => anyhow::bail!("{text} is not a directory of this machine: use file:///DIR"),
            },
            "s3" | "gs" | "az" | "http" | "https" if cfg!(feature = "remote") => Ok(Location::Remote(url)),
            "s3" | "gs" | "az" | "http" | "https" => {
                anyhow::bail!("this miot-query was built without the feature `remote`, which {text} requires")
            }
            other => {
                anyhow::bail!(
                    "{text}: {other}:// is not supported; file://, s3://, gs://, az://, http:// and https:// are"
                )
            }
        }
    }

    /// Reports that rows are not sealed yet, which only this machine can read.
    #[cfg(feature = "workers")]
    pub(crate) fn report_unsealed(&self) {
        let Location::Dir(dir) = self else { return };
        let reader = miot_trace_store::Reader::tolerant(dir);
        if reader.is_ok_and(|reader| reader.parts().any(|(_, sealed)| !sealed)) {
            crate::report(&format!(
                "{} is being written: workers do not read the rows that are not sealed yet",
                dir.display()
            ));
        }
    }

    /// Returns the address under which other machines have the trace as well.
    #[cfg(feature = "workers")]
    pub(crate) fn shared(&self) -> anyhow::Result<Location> {
        Ok(match self {
            Location::Remote(url) => Location::Remote(url.clone()),
            Location::Dir(dir) => {
                let url = Url::from_file_path(std::path::absolute(dir)?);
                let url = url.map_err(|()| anyhow::anyhow!("{} is not a path", dir.display()))?;
                // Parsing removes `..`.
                Location::Remote(Url::parse(url.as_str())?)
            }
        })
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Location::Dir(dir) => {
                let named = |dir: &Path| dir.file_name().map(|name| name.to_string_lossy().into_owned());
                named(dir).or_else(|| named(&dir.canonicalize().ok()?)).unwrap_or_else(|| "/".to_owned())
            }
            Location::Remote(url) => {
                let key = Key::from_url_path(url.path()).unwrap_or_default();
                key.filename().or(url.host_str()).unwrap_or("trace").to_owned()
            }
        }
    }
}

/// Copies the sealed parts of a trace in an object store into a new directory. Returns a text about
/// missing parts.
pub(crate) async fn copy(location: &Location, to: &Path) -> anyhow::Result<Option<String>> {
    match location {
        #[cfg(feature = "remote")]
        Location::Remote(url) => Ok(copy::copy(url, to).await?.message()),
        _ => anyhow::bail!(
            "--copy is for a trace in an object store: s3://…, gs://…, az://…, http://… or https://…"
        ),
    }
}

impl Trace {
    /// Opens the current state of a trace.
    pub(crate) async fn open(
        context: &SessionContext,
        location: &Location,
        verify: bool,
        kept_files: usize,
    ) -> anyhow::Result<Trace> {
        let (place, missing) = match location {
            Location::Dir(dir) => {
                (TraceLocation::Local(local::Local::open(dir, verify, kept_files)?), MissingParts::default())
            }
            #[cfg(feature = "remote")]
            Location::Remote(url) => {
                let (remote, missing) = remote::Remote::open(context, url).await?;
                (TraceLocation::Remote(remote), missing)
            }
            #[cfg(not(feature = "remote"))]
            Location::Remote(url) => anyhow::bail!("{url}: not built for this"),
        };
        Ok(Trace { name: location.name(), missing, place })
    }

    /// Returns everything that could not be read so far. It is reported with the results, which do
    /// not contain it.
    pub(crate) fn unread(&self) -> Vec<String> {
        let mut all: Vec<String> = self.missing.message().into_iter().collect();
        match &self.place {
            TraceLocation::Local(local) => all.extend(local.unread().iter().map(ToString::to_string)),
            #[cfg(feature = "remote")]
            TraceLocation::Remote(_) => {}
        }
        all
    }

    /// Returns whether retention has removed parts before they were read.
    pub(crate) fn missed(&self) -> bool {
        match &self.place {
            TraceLocation::Local(local) => local.missed(),
            #[cfg(feature = "remote")]
            TraceLocation::Remote(_) => false,
        }
    }

    /// Returns whether retention has removed parts since the trace was opened.
    pub(crate) fn overtaken(&self) -> bool {
        match &self.place {
            TraceLocation::Local(local) => local.overtaken(),
            #[cfg(feature = "remote")]
            TraceLocation::Remote(_) => false,
        }
    }

    /// Returns providers of the rows of a table. Together they contain each row once.
    pub(crate) async fn rows(
        &self,
        context: &SessionContext,
        table: Table,
    ) -> Result<Vec<Arc<dyn TableProvider>>> {
        let columns = schema::of(table);
        match &self.place {
            TraceLocation::Local(local) => local.rows(context, table, columns).await,
            #[cfg(feature = "remote")]
            TraceLocation::Remote(remote) => remote.rows(context, table, columns).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Location;

    #[test]
    fn trace_is_named_after_its_directory() {
        for (text, name) in [
            ("a/mon", "mon"),
            ("/a/mon/", "mon"),
            ("file:///a/b%20c", "b c"),
            ("s3://bucket/x/on%20tue/", "on tue"),
            ("s3://bucket", "bucket"),
        ] {
            assert_eq!(Location::parse(text).unwrap().name(), name, "{text}");
        }
        assert!(Location::parse("gopher://a").is_err());
    }
}

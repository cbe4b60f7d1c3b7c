//! Sealed parts, read as Parquet by the query engine.

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::file_format::FileFormat as _;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{SessionContext, col};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use miot_trace_store::{Table, schema};
use object_store::ObjectStoreExt as _;
use std::sync::Arc;
use url::Url;

/// Number of files whose metadata is requested concurrently.
const AT_ONCE: usize = 16;

/// A Parquet file of a trace.
#[derive(Clone, Debug)]
pub(crate) struct SealedFile {
    pub(crate) url: Url,
    /// Name for messages.
    pub(crate) name: String,
}

/// Returns the rows of these files, which must have the columns of the table.
pub(crate) async fn table(
    context: &SessionContext,
    table: Table,
    files: Vec<SealedFile>,
    columns: SchemaRef,
) -> Result<Arc<dyn TableProvider>> {
    let paths: Result<Vec<_>> =
        files.iter().map(|file| ListingTableUrl::try_new(file.url.clone(), None)).collect();
    let paths = paths?;
    let state = context.state();
    let format = Arc::new(ParquetFormat::new().with_options(state.default_table_options().parquet));
    let check = |(path, name): (ListingTableUrl, String)| {
        let (state, format, columns) = (&state, &format, &columns);
        async move {
            let store = state.runtime_env().object_store(&path)?;
            let found = store.head(path.prefix()).await?;
            // An empty file would be read as a file without rows.
            if found.size == 0 {
                return Err(damaged(&name, "it is empty"));
            }
            let found = format.infer_schema(state, &store, &[found]).await;
            let found = found.map_err(|error| match error.find_root() {
                DataFusionError::ObjectStore(_) | DataFusionError::IoError(_) => error,
                _ => damaged(&name, &error.strip_backtrace()),
            })?;
            check_columns(columns, &found).map_err(|reason| {
                damaged(&name, &format!("it does not have the columns of table {table}: {reason}"))
            })
        }
    };
    let names = files.into_iter().map(|file| file.name);
    stream::iter(paths.clone().into_iter().zip(names))
        .map(check)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    // The paths are those of files, with any name.
    let mut options = ListingOptions::new(format).with_file_extension("");
    if table == Table::Events {
        options = options.with_file_sort_order(vec![vec![col("time").sort(true, false)]]);
    }
    let config =
        ListingTableConfig::new_with_multi_paths(paths).with_listing_options(options).with_schema(columns);
    Ok(Arc::new(ListingTable::try_new(config)?))
}

fn damaged(name: &str, reason: &str) -> DataFusionError {
    DataFusionError::Execution(format!("{name} is damaged: {reason}; `miot fsck` reports further damage"))
}

/// Returns whether the types are equal, or an earlier version had the type `found`, which the
/// engine converts.
fn is_alike(found: &DataType, wanted: &DataType) -> bool {
    found == wanted || schema::is_earlier_name(&found.to_string(), &wanted.to_string())
}

/// The columns of a file differ from those of its table.
#[derive(Debug, thiserror::Error)]
enum WrongColumns {
    #[error("`{found}` {found_type} is in the place of `{wanted}` {wanted_type}")]
    Other { found: String, found_type: DataType, wanted: String, wanted_type: DataType },
    #[error("`{0}` is missing")]
    Missing(String),
}

/// Checks the columns of a file. Columns are only appended, and missing ones may be null.
fn check_columns(columns: &Schema, found: &Schema) -> Result<(), WrongColumns> {
    for (at, column) in columns.fields().iter().enumerate() {
        match found.fields().get(at) {
            Some(found)
                if found.name() == column.name() && is_alike(found.data_type(), column.data_type()) => {}
            Some(found) => {
                return Err(WrongColumns::Other {
                    found: found.name().clone(),
                    found_type: found.data_type().clone(),
                    wanted: column.name().clone(),
                    wanted_type: column.data_type().clone(),
                });
            }
            None if column.is_nullable() => {}
            None => return Err(WrongColumns::Missing(column.name().clone())),
        }
    }
    Ok(())
}

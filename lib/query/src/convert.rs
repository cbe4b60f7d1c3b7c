//! Converts rows of the trace store to rows of the query engine, which uses another version of
//! Arrow, through the IPC format that both support.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::error::{DataFusionError, Result};
use miot_trace_store::{Table, schema};
use std::io::Cursor;

/// Converts a batch.
pub(crate) fn batch(rows: &arrow_array::RecordBatch) -> Result<RecordBatch> {
    let external = |error| DataFusionError::External(Box::new(error));
    let mut bytes = Vec::new();
    let mut writer =
        arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &rows.schema()).map_err(external)?;
    writer.write(rows).and_then(|()| writer.finish()).map_err(external)?;
    drop(writer);
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None)?;
    let schema = reader.schema();
    Ok(reader.next().transpose()?.unwrap_or_else(|| RecordBatch::new_empty(schema)))
}

/// Returns the columns of a table.
pub(crate) fn columns(table: Table) -> Result<SchemaRef> {
    Ok(batch(&arrow_array::RecordBatch::new_empty(schema::of(table)))?.schema())
}

#[cfg(test)]
mod tests {
    use super::columns;
    use miot_trace_store::{Table, schema};

    #[test]
    fn columns_keep_their_names_types_and_nulls() {
        for table in Table::ALL {
            let (store, query) = (schema::of(table), columns(table).unwrap());
            assert_eq!(store.fields().len(), query.fields().len());
            for (store, query) in store.fields().iter().zip(query.fields()) {
                assert_eq!(
                    (store.name().as_str(), store.data_type().to_string(), store.is_nullable()),
                    (query.name().as_str(), query.data_type().to_string(), query.is_nullable())
                );
            }
        }
    }
}

//! Adds recorded losses to a trace.

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, StringArray, TimestampNanosecondArray, UInt64Array, new_null_array};
use miot_trace_store::{Options, Table, Writer, schema};
use std::path::Path;
use std::sync::Arc;

/// Adds losses to a finished trace: this number of events at each of these places, on node `n1`, of
/// an unknown process.
///
/// # Panics
/// If the trace cannot be written.
#[allow(clippy::unwrap_used, reason = "a test that cannot be prepared has failed")]
pub fn lose(trace: &Path, rows: &[(&str, u64)]) {
    let schema = schema::of(Table::Losses);
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        match field.name().as_str() {
            "time" => {
                let times = TimestampNanosecondArray::from_iter_values(rows.iter().map(|_| 5_000_002_000));
                Arc::new(times.with_timezone("UTC"))
            }
            "node" => {
                let mut nodes = StringBuilder::new();
                rows.iter().for_each(|_| nodes.append_value("n1"));
                Arc::new(nodes.finish())
            }
            "place" => Arc::new(StringArray::from_iter_values(rows.iter().map(|(place, _)| place))),
            "count" => Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(_, count)| *count))),
            _ => new_null_array(field.data_type(), rows.len()),
        }
    });
    let columns = columns.collect();
    let batch = schema::batch(Table::Losses, columns).unwrap();
    let (mut writer, _) = Writer::open(trace, Options::default()).unwrap();
    writer.append(Table::Losses, &batch).unwrap();
    let _ = writer.finish().unwrap();
}

//! The crate `parquet` reads the rows that were written, for any content of the columns.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::EventWriter;
use crate::schema::{self, NameKey, Table};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampNanosecondArray,
};
use arrow_schema::DataType;
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::statistics::Statistics;
use std::sync::Arc;

pub(crate) struct Random(fastrand::Rng);

impl Random {
    /// Prints its seed; takes another from MIOT_SEED.
    pub(crate) fn new() -> Random {
        let given = std::env::var("MIOT_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
        println!("MIOT_SEED={seed}");
        Random::with_seed(seed)
    }

    fn with_seed(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// Returns numbers with one of several distributions, those of traces and others.
    fn numbers(&mut self, rows: usize) -> Vec<u64> {
        let (base, kind) = (self.next() >> self.below(64), self.below(9));
        let mut last = base;
        (0..rows)
            .map(|_| {
                last = match kind {
                    0 => base,
                    1 => last.wrapping_add(1),
                    2 => last.wrapping_add(self.below(1000)),
                    3 => base.wrapping_add(self.below(4)),
                    4 => base.wrapping_add(self.below(3000)),
                    5 => self.next(),
                    6 => self.next() >> self.below(64),
                    // Runs.
                    7 if self.below(30) != 0 => last,
                    7 => base.wrapping_add(self.below(5)),
                    _ => [0, u64::MAX, i64::MAX as u64, i64::MIN as u64][self.below(4) as usize],
                };
                last
            })
            .collect()
    }

    fn column(&mut self, data_type: &DataType, nullable: bool, rows: usize) -> ArrayRef {
        let numbers = self.numbers(rows);
        let valid: Vec<bool> = match self.below(3) {
            _ if !nullable => vec![true; rows],
            0 => vec![true; rows],
            1 => vec![false; rows],
            _ => (0..rows).map(|_| self.below(3) != 0).collect(),
        };
        let numbers = numbers.into_iter().zip(valid).map(|(number, valid)| valid.then_some(number));
        match data_type {
            DataType::Timestamp(..) => {
                let times = numbers.map(|number| number.map(|number| number as i64));
                Arc::new(TimestampNanosecondArray::from_iter(times).with_timezone("UTC"))
            }
            DataType::Int64 => {
                Arc::new(Int64Array::from_iter(numbers.map(|number| number.map(|number| number as i64))))
            }
            DataType::Int32 => {
                Arc::new(Int32Array::from_iter(numbers.map(|number| number.map(|number| number as i32))))
            }
            DataType::Dictionary(..) => {
                let names: Vec<String> =
                    (0..1 + self.below(200)).map(|n| format!("name {}", n * 7)).collect();
                let count = names.len() as u64;
                let keys = numbers.map(|number| number.unwrap_or(0) % count);
                let names: ArrayRef = Arc::new(StringArray::from(names));
                let keys = Int32Array::from_iter_values(keys.map(|key| key as i32));
                Arc::new(DictionaryArray::<NameKey>::try_new(keys, names).unwrap())
            }
            other => panic!("no events have a column of type {other}"),
        }
    }

    pub(crate) fn batch(&mut self, rows: usize) -> RecordBatch {
        let schema = schema::of(Table::Events);
        let columns =
            schema.fields().iter().map(|field| self.column(field.data_type(), field.is_nullable(), rows));
        RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
    }
}

fn written(batches: &[RecordBatch], row_group: usize) -> Bytes {
    let mut bytes = Vec::new();
    let mut writer = EventWriter::new(&mut bytes).unwrap();
    writer.max_rows = row_group;
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(writer.finish().unwrap().file_metadata().num_rows(), rows as i64);
    drop(writer);
    bytes.into()
}

/// Returns the values as text, because the dictionaries may differ.
fn plain(column: &ArrayRef) -> Vec<Option<String>> {
    let valid = |row: usize, value: String| column.is_valid(row).then_some(value);
    let all = |value: &dyn Fn(usize) -> String| (0..column.len()).map(|row| valid(row, value(row))).collect();
    match column.data_type() {
        DataType::Timestamp(..) => {
            all(&|row| column.as_primitive::<TimestampNanosecondType>().value(row).to_string())
        }
        DataType::Int64 => all(&|row| column.as_primitive::<Int64Type>().value(row).to_string()),
        DataType::Int32 => all(&|row| column.as_primitive::<Int32Type>().value(row).to_string()),
        _ => {
            let dictionary = column.as_any_dictionary();
            let (keys, names) = (dictionary.normalized_keys(), dictionary.values().as_string::<i32>());
            all(&|row| names.value(keys[row]).to_owned())
        }
    }
}

fn check(batches: &[RecordBatch], row_group: usize) {
    let bytes = written(batches, row_group);
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().with_batch_size(1000);
    assert_eq!(builder.schema().fields(), schema::of(Table::Events).fields());
    let groups = builder.metadata().row_groups().to_vec();
    let read: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    for (index, field) in schema::of(Table::Events).fields().iter().enumerate() {
        let of = |batches: &[RecordBatch]| -> Vec<Option<String>> {
            batches.iter().flat_map(|batch| plain(batch.column(index))).collect()
        };
        let (given, found) = (of(batches), of(&read));
        assert_eq!(given.len(), found.len(), "{field}");
        for (row, (given, found)) in given.iter().zip(&found).enumerate() {
            assert_eq!(given, found, "row {row} of {field}");
        }
        let mut rest = &given[..];
        for group in &groups {
            let (rows, after) = rest.split_at(group.num_rows() as usize);
            check_statistics(group.column(index).statistics(), rows, field.name());
            rest = after;
        }
        assert!(rest.is_empty());
    }
}

fn check_statistics(statistics: Option<&Statistics>, rows: &[Option<String>], name: &str) {
    let Some(statistics) = statistics else { return };
    let nulls = rows.iter().filter(|row| row.is_none()).count() as u64;
    assert_eq!(statistics.null_count_opt(), Some(nulls), "{name}");
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    let range: (Option<String>, Option<String>) = match statistics {
        Statistics::ByteArray(_) => (text(statistics.min_bytes_opt()), text(statistics.max_bytes_opt())),
        Statistics::Int64(range) => {
            (range.min_opt().map(|v| v.to_string()), range.max_opt().map(|v| v.to_string()))
        }
        Statistics::Int32(range) => {
            (range.min_opt().map(|v| v.to_string()), range.max_opt().map(|v| v.to_string()))
        }
        other => panic!("{name}: {other:?}"),
    };
    let expected = if matches!(statistics, Statistics::ByteArray(_)) {
        (rows.iter().flatten().min().cloned(), rows.iter().flatten().max().cloned())
    } else {
        let numbers = || rows.iter().flatten().map(|row| row.parse::<i128>().unwrap());
        (numbers().min().map(|v| v.to_string()), numbers().max().map(|v| v.to_string()))
    };
    assert_eq!(range, expected, "{name}");
}

#[test]
fn any_columns_are_read_back() {
    let mut random = Random::new();
    for _ in 0..12 {
        let batches: Vec<RecordBatch> = (0..1 + random.below(4))
            .map(|_| {
                let most = [9, 130, 700, 9000][random.below(4) as usize];
                let rows = 1 + random.below(most) as usize;
                random.batch(rows)
            })
            .collect();
        let row_group = 1 + random.below(20_000) as usize;
        check(&batches, row_group);
    }
}

#[test]
fn file_without_rows_has_the_columns() {
    check(&[], 100);
}

#[test]
fn columns_of_few_values_are_small() {
    let mut random = Random::with_seed(7);
    let rows = 60_000;
    let mut columns = random.batch(rows).columns().to_vec();
    for (index, field) in schema::of(Table::Events).fields().iter().enumerate() {
        if ["process", "file", "file2", "handle", "stream", "seq"].contains(&field.name().as_str()) {
            columns[index] =
                Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|row| (1 << 40) + row * 7 % 16)));
        } else {
            columns[index] = columns[index].slice(0, 1);
            let one = RecordBatch::try_from_iter([("one", Arc::clone(&columns[index]))]).unwrap();
            let many: Vec<_> = std::iter::repeat_n(one, rows).collect();
            columns[index] = Arc::clone(concat_batches(&many[0].schema(), &many).unwrap().column(0));
        }
    }
    let batch = RecordBatch::try_new(schema::of(Table::Events), columns).unwrap();
    // Six columns with four bits per row; each other one has some bytes.
    let bytes = written(&[batch], 1 << 20).len();
    assert!(bytes < 6 * rows / 2 + 20_000, "{bytes} bytes");
}

/// Regression test: 300 names exceed the keys of eight bits of an earlier version. A row group has
/// at most 65,536 names.
#[test]
fn any_number_of_names_is_read_back() {
    let mut random = Random::with_seed(11);
    let names = |from: usize, count: usize| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((from..from + count).map(|n| format!("name {n}"))))
    };
    let batches: Vec<RecordBatch> = (0..4usize)
        .map(|turn| {
            let rows = 50_000;
            let mut columns = random.batch(rows).columns().to_vec();
            let mut put = |name: &str, names: ArrayRef, key: &dyn Fn(usize) -> usize| {
                let keys = Int32Array::from_iter_values((0..rows).map(|row| key(row) as i32));
                let place = schema::of(Table::Events).index_of(name).unwrap();
                columns[place] = Arc::new(DictionaryArray::<NameKey>::try_new(keys, names).unwrap());
            };
            put("layer", names(0, 300), &|row| row % 300);
            put("op", names(turn * 50_000, 50_000), &|row| row);
            put("node", names(0, 70_000), &|row| (turn * 50_000 + row) % 70_000);
            RecordBatch::try_new(schema::of(Table::Events), columns).unwrap()
        })
        .collect();
    check(&batches, 1 << 20);
}

//! Merges the ordered events of several partitions.

use crate::error::Error;
use crate::schema::{NameKey, column};
use arrow_array::cast::AsArray as _;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{Array, ArrayRef, DictionaryArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType};
use arrow_select::interleave::interleave;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Merges batches of events by time, then by source. Each source must be in the order of a trace;
/// sources are in the order of their partitions. Ends after an error.
pub(crate) struct MergedBatches<I> {
    sources: Vec<Source<I>>,
    /// Rows from this time on are left out.
    until: i64,
    names: HashMap<usize, SharedNames>,
    /// Batches are output as they are.
    is_whole: bool,
    /// For errors.
    root: PathBuf,
    ended: bool,
}

/// The events of one partition.
struct Source<I> {
    batches: I,
    /// The current batch, with names replaced by shared keys if there are any.
    batch: Option<RecordBatch>,
    /// Time of each row; that of an earlier row if it is late.
    times: Vec<i64>,
    /// First row that was not output.
    at: usize,
    latest: i64,
}

/// Names of a column, with the same keys for all partitions.
#[derive(Default)]
struct SharedNames {
    keys: HashMap<String, i32>,
    names: Vec<String>,
    /// All names so far.
    values: Option<Arc<StringArray>>,
    /// Keys by those of the last dictionary of each source.
    known: HashMap<usize, (ArrayRef, Vec<i32>)>,
}

impl<I: Iterator<Item = Result<RecordBatch, Error>>> MergedBatches<I> {
    pub(crate) fn new(
        sources: impl Iterator<Item = I>,
        until: Option<i64>,
        root: PathBuf,
    ) -> MergedBatches<I> {
        let source = |batches| Source { batches, batch: None, times: Vec::new(), at: 0, latest: i64::MIN };
        MergedBatches {
            sources: sources.map(source).collect(),
            until: until.unwrap_or(i64::MAX),
            names: HashMap::new(),
            is_whole: false,
            root,
            ended: false,
        }
    }

    /// Outputs the batches of the sources as they are, by the time of their last row.
    pub(crate) fn whole(self) -> MergedBatches<I> {
        MergedBatches { is_whole: true, ..self }
    }

    fn try_next(&mut self) -> Result<Option<RecordBatch>, Error> {
        let failed = |root: &PathBuf| {
            let root = root.clone();
            move |error: ArrowError| Error::damaged(&root, error)
        };
        loop {
            for (number, source) in self.sources.iter_mut().enumerate() {
                let names = (!self.is_whole).then_some(&mut self.names);
                source.fill(number, names, self.until).map_err(|error| match error {
                    FillError::Source(error) => error,
                    FillError::Columns(error) => failed(&self.root)(error),
                })?;
            }
            // Up to here no source can output an earlier row.
            let last = |(number, source): (usize, &Source<I>)| Some((*source.times.last()?, number));
            let bound = self.sources.iter().enumerate().filter(|(_, source)| source.batch.is_some());
            let Some(bound) = bound.filter_map(last).min() else { return Ok(None) };
            if self.is_whole {
                return Ok(self.sources[bound.1].batch.take());
            }
            let ranges: Vec<(usize, usize)> = self
                .sources
                .iter()
                .enumerate()
                .map(|(number, source)| (source.at, source.end_within(number, bound)))
                .collect();
            let mut with_rows = ranges.iter().enumerate().filter(|(_, (from, to))| from < to);
            let merged = match (with_rows.next(), with_rows.next()) {
                (None, _) => continue,
                (Some((number, (from, to))), None) => {
                    let batch = self.sources[number].batch.as_ref();
                    batch.map(|batch| Ok(batch.slice(*from, to - from)))
                }
                _ => Some(self.interleaved(&ranges)),
            };
            for (source, (_, to)) in self.sources.iter_mut().zip(&ranges) {
                source.at = source.at.max(*to);
                source.batch.take_if(|batch| *to >= batch.num_rows());
            }
            return merged.transpose().map_err(failed(&self.root));
        }
    }

    /// Merges these rows of the sources.
    fn interleaved(&self, ranges: &[(usize, usize)]) -> Result<RecordBatch, ArrowError> {
        let active: Vec<(usize, &RecordBatch)> = self
            .sources
            .iter()
            .enumerate()
            .filter_map(|(number, source)| Some((number, source.batch.as_ref()?)))
            .filter(|(number, _)| ranges[*number].0 < ranges[*number].1)
            .collect();
        let rows = self.order(&active, ranges);
        let Some((_, first)) = active.first() else {
            return Err(ArrowError::InvalidArgumentError(String::new()));
        };
        let schema = first.schema();
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
        for (index, field) in schema.fields().iter().enumerate() {
            let shared = self.names.get(&index).and_then(|names| names.values.clone());
            columns.push(match (field.data_type(), shared) {
                (DataType::Dictionary(..), Some(values)) => {
                    let keys: Vec<ArrayRef> = active
                        .iter()
                        .filter_map(|(_, batch)| batch.column(index).as_dictionary_opt::<NameKey>())
                        .map(|names| Arc::new(names.keys().clone()) as ArrayRef)
                        .collect();
                    let keys: Vec<&dyn Array> = keys.iter().map(|keys| keys.as_ref()).collect();
                    let keys = interleave(&keys, &rows)?;
                    let keys = keys.as_primitive::<NameKey>().clone();
                    Arc::new(DictionaryArray::<NameKey>::try_new(keys, values)?)
                }
                _ => {
                    let all: Vec<&dyn Array> =
                        active.iter().map(|(_, batch)| batch.column(index).as_ref()).collect();
                    interleave(&all, &rows)?
                }
            });
        }
        RecordBatch::try_new(schema, columns)
    }

    /// The rows in order: index among `active`, and row.
    fn order(&self, active: &[(usize, &RecordBatch)], ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let mut heads: Vec<(usize, usize)> = active.iter().map(|(number, _)| ranges[*number]).collect();
        let total = heads.iter().map(|(from, to)| to - from).sum();
        let mut rows = Vec::with_capacity(total);
        while rows.len() < total {
            // Few sources: a search costs less than a heap.
            let head = |(index, (at, to)): (usize, &(usize, usize))| {
                (at < to).then(|| (self.sources[active[index].0].times[*at], index))
            };
            let mut least: Option<(i64, usize)> = None;
            let mut second: Option<(i64, usize)> = None;
            for found in heads.iter().enumerate().filter_map(head) {
                if least.is_none_or(|least| found < least) {
                    (second, least) = (least, Some(found));
                } else if second.is_none_or(|second| found < second) {
                    second = Some(found);
                }
            }
            let Some((_, index)) = least else { break };
            let (at, to) = &mut heads[index];
            let times = &self.sources[active[index].0].times;
            // All rows of this source before the next one of another source.
            while *at < *to && second.is_none_or(|second| (times[*at], index) < second) {
                rows.push((index, *at));
                *at += 1;
            }
        }
        rows
    }
}

enum FillError {
    Source(Error),
    Columns(ArrowError),
}

impl<I: Iterator<Item = Result<RecordBatch, Error>>> Source<I> {
    /// Reads the next batch if the current one is output.
    fn fill(
        &mut self,
        number: usize,
        mut names: Option<&mut HashMap<usize, SharedNames>>,
        until: i64,
    ) -> Result<(), FillError> {
        while self.batch.is_none() && self.latest < until {
            let Some(batch) = self.batches.next() else { break };
            let batch = batch.map_err(FillError::Source)?;
            self.times.clear();
            self.at = 0;
            if let Some(times) = column::<TimestampNanosecondType>(&batch, "time") {
                for time in times.values() {
                    self.latest = self.latest.max(*time);
                    if self.latest >= until {
                        break;
                    }
                    self.times.push(self.latest);
                }
            }
            if !self.times.is_empty() {
                let batch = batch.slice(0, self.times.len());
                self.batch = Some(match &mut names {
                    Some(names) => with_shared_names(&batch, number, names).map_err(FillError::Columns)?,
                    None => batch,
                });
            }
        }
        Ok(())
    }

    /// End of the rows that are not after the bound, a time and the number of its source.
    fn end_within(&self, number: usize, (time, source): (i64, usize)) -> usize {
        if self.batch.is_none() {
            return self.at;
        }
        let is_within = |row: &i64| *row < time || (*row == time && number <= source);
        self.at + self.times[self.at..].partition_point(is_within)
    }
}

/// Replaces the keys of all dictionaries by those that all partitions share.
fn with_shared_names(
    batch: &RecordBatch,
    source: usize,
    names: &mut HashMap<usize, SharedNames>,
) -> Result<RecordBatch, ArrowError> {
    let mut columns = batch.columns().to_vec();
    for (index, column) in columns.iter_mut().enumerate() {
        if let Some(own) = column.as_dictionary_opt::<NameKey>() {
            *column = names.entry(index).or_default().shared(own, source)?;
        }
    }
    RecordBatch::try_new(batch.schema(), columns)
}

impl SharedNames {
    fn shared(&mut self, own: &DictionaryArray<NameKey>, source: usize) -> Result<ArrayRef, ArrowError> {
        if !self
            .known
            .get(&source)
            .is_some_and(|(values, _)| values.to_data().ptr_eq(&own.values().to_data()))
        {
            let keys = self.keys_of(own.values());
            self.known.insert(source, (Arc::clone(own.values()), keys));
        }
        let keys = self.known.get(&source).map_or(&[][..], |(_, keys)| keys);
        let shared = |key: i32| usize::try_from(key).ok().and_then(|key| keys.get(key)).copied().unwrap_or(0);
        let keys: PrimitiveArray<NameKey> = own.keys().unary(shared);
        let values = match &self.values {
            Some(values) if values.len() == self.names.len() => Arc::clone(values),
            _ => Arc::clone(self.values.insert(Arc::new(StringArray::from_iter_values(&self.names)))),
        };
        Ok(Arc::new(DictionaryArray::<NameKey>::try_new(keys, values)?))
    }

    fn keys_of(&mut self, values: &ArrayRef) -> Vec<i32> {
        let Some(values) = values.as_string_opt::<i32>() else { return Vec::new() };
        let mut keys = Vec::with_capacity(values.len());
        for name in values.iter().map(Option::unwrap_or_default) {
            keys.push(match self.keys.get(name) {
                Some(key) => *key,
                None => {
                    let key = i32::try_from(self.names.len()).unwrap_or(i32::MAX);
                    self.names.push(name.to_owned());
                    self.keys.insert(name.to_owned(), key);
                    key
                }
            });
        }
        keys
    }
}

impl<I: Iterator<Item = Result<RecordBatch, Error>>> Iterator for MergedBatches<I> {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.try_next().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::MergedBatches;
    use crate::error::Error;
    use crate::schema::{NameKey, column, time_type};
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::TimestampNanosecondType;
    use arrow_array::{Array as _, ArrayRef, DictionaryArray, RecordBatch, TimestampNanosecondArray};
    use arrow_schema::{Field, Schema};
    use std::path::PathBuf;
    use std::sync::Arc;

    fn batch(rows: &[(i64, &str)]) -> RecordBatch {
        let times = TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.0));
        let names: DictionaryArray<NameKey> = rows.iter().map(|row| row.1).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(times.with_timezone("UTC")), Arc::new(names)];
        let fields = vec![
            Field::new("time", time_type(), false),
            Field::new("node", columns[1].data_type().clone(), false),
        ];
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }

    type Rows<'a> = &'a [&'a [(i64, &'a str)]];

    fn batches(
        sources: &[Rows<'_>],
        until: Option<i64>,
    ) -> MergedBatches<impl Iterator<Item = Result<RecordBatch, Error>> + use<>> {
        let sources: Vec<Vec<RecordBatch>> =
            sources.iter().map(|batches| batches.iter().map(|rows| batch(rows)).collect()).collect();
        MergedBatches::new(
            sources.into_iter().map(|batches| batches.into_iter().map(Ok)),
            until,
            PathBuf::new(),
        )
    }

    fn merged(sources: &[Rows<'_>], until: Option<i64>) -> Vec<(i64, String)> {
        rows(batches(sources, until))
    }

    fn rows(batches: impl Iterator<Item = Result<RecordBatch, Error>>) -> Vec<(i64, String)> {
        let mut rows = Vec::new();
        for batch in batches {
            let batch = batch.unwrap();
            let times = column::<TimestampNanosecondType>(&batch, "time").unwrap();
            let names = batch.column(1).as_dictionary::<NameKey>();
            let values = names.values().as_string::<i32>();
            for row in 0..batch.num_rows() {
                rows.push((times.value(row), values.value(names.keys().value(row) as usize).to_owned()));
            }
        }
        rows
    }

    fn named(rows: &[(i64, &str)]) -> Vec<(i64, String)> {
        rows.iter().map(|(time, name)| (*time, (*name).to_owned())).collect()
    }

    #[test]
    fn rows_are_in_order_of_time_then_partition() {
        let a: &[&[(i64, &str)]] = &[&[(1, "a"), (3, "b")], &[(3, "a"), (9, "a")]];
        let b: &[&[(i64, &str)]] = &[&[(2, "c"), (3, "a"), (3, "c")], &[(4, "c")]];
        let c: &[&[(i64, &str)]] = &[&[], &[(3, "d")]];
        let all = [(1, "a"), (2, "c"), (3, "b"), (3, "a"), (3, "a"), (3, "c"), (3, "d"), (4, "c"), (9, "a")];
        assert_eq!(merged(&[a, b, c], None), named(&all));
        assert_eq!(merged(&[a, b, c], Some(3)), named(&all[..2]));
        assert_eq!(merged(&[a], None), named(&[(1, "a"), (3, "b"), (3, "a"), (9, "a")]));
        assert!(merged(&[], None).is_empty());
    }

    /// A late row keeps its place in its own trace.
    #[test]
    fn late_rows_follow_the_rows_before_them() {
        let late: &[&[(i64, &str)]] = &[&[(5, "a"), (1, "late"), (7, "a")]];
        let other: &[&[(i64, &str)]] = &[&[(2, "b"), (6, "b")]];
        let all = [(2, "b"), (5, "a"), (1, "late"), (6, "b"), (7, "a")];
        assert_eq!(merged(&[late, other], None), named(&all));
    }

    #[test]
    fn whole_batches_are_in_order_of_their_last_rows() {
        let a: Rows<'_> = &[&[(1, "a"), (5, "a")], &[(6, "a")]];
        let b: Rows<'_> = &[&[(2, "b"), (3, "b")], &[(4, "b"), (9, "b")]];
        let all = [(2, "b"), (3, "b"), (1, "a"), (5, "a"), (6, "a"), (4, "b"), (9, "b")];
        assert_eq!(rows(batches(&[a, b], None).whole()), named(&all));
        assert_eq!(rows(batches(&[a, b], Some(5)).whole()), named(&[(1, "a"), (2, "b"), (3, "b"), (4, "b")]));
    }
}

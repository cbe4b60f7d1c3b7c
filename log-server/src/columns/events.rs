//! Merged rows as record batches of `events`: each column is gathered from the columns of the
//! batches.

use crate::columns::ops::{Ops, has};
use crate::columns::resolve::{Resolved, Sparse};
use crate::ids::catalog::Catalog;
use crate::ids::{ProcessId, StreamId};
use crate::store::STEP_ROWS;
use crate::store::merge::{BatchSlice, RowRef};
use arrow_array::types::{ArrowPrimitiveType, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    ArrayRef, DictionaryArray, Int64Array, PrimitiveArray, RecordBatch, TimestampNanosecondArray,
    UInt16Array, UInt32Array, UInt64Array,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow_schema::ArrowError;
use miot_proto::batch::Columns;
use miot_proto::event::{Caller, NONE, flag, word};
use miot_trace_store::{Table, schema};
use std::sync::{Arc, LazyLock};

/// Values that all rows of a source share.
#[derive(Clone, Copy, Default)]
struct Constants {
    node: u32,
    process: ProcessId,
    pid: u32,
    tid: u32,
    stream: StreamId,
}

/// Returns the events of a step as a record batch. `None` if the step has no event.
///
/// # Errors
/// Never for valid input.
pub fn record_batch(
    catalog: &mut Catalog,
    ops: &mut Ops,
    sources: &[BatchSlice],
    resolved: Resolved<'_>,
) -> Result<Option<RecordBatch>, ArrowError> {
    let Resolved { order, late, facts, files, files2, words, .. } = resolved;
    let rows = order.len();
    if rows == 0 {
        return Ok(None);
    }
    let constants: Vec<Constants> = sources.iter().map(|source| constants(catalog, source.stream)).collect();
    let of_source = Gather { sources, order: &order };

    let mut flags = of_source.column(|c| &c.flags);
    flags.iter_mut().take(late).for_each(|f| *f |= flag::LATE);
    let offsets = of_source.column(|c| &c.offset);
    let lengths = of_source.column(|c| &c.length);
    let present = |bit: u8, values: &[u64]| {
        BooleanBuffer::collect_bool(rows, |i| facts[i].has & bit != 0 && values[i] != NONE)
    };
    let (has_offset, has_length) = (present(has::OFFSET, &offsets), present(has::LENGTH, &lengths));
    let has_arg = present(has::ARG, &lengths);
    let signed = |values: Vec<u64>| values.into_iter().map(|v| v as i64).collect::<Vec<i64>>();
    let lengths = ScalarBuffer::from(signed(lengths));
    let durations = of_source.column(|c| &c.duration).into_iter().map(|d| d.min(i64::MAX as u64) as i64);

    let columns: Vec<ArrayRef> = vec![
        Arc::new(
            TimestampNanosecondArray::from_iter_values(order.iter().map(|at| at.time)).with_timezone("UTC"),
        ),
        Arc::new(Int64Array::from_iter_values(durations)),
        Arc::new(DictionaryArray::try_new(
            UInt32Array::from(of_source.constant(&constants, |c| c.node)),
            catalog.node_names(),
        )?),
        Arc::new(UInt64Array::from(of_source.constant(&constants, |c| c.process.0))),
        Arc::new(UInt32Array::from(of_source.constant(&constants, |c| c.pid))),
        Arc::new(UInt32Array::from(of_source.constant(&constants, |c| c.tid))),
        Arc::new(DictionaryArray::try_new(
            UInt32Array::from_iter_values(facts.iter().map(|f| u32::from(f.layer))),
            ops.layers(),
        )?),
        Arc::new(DictionaryArray::try_new(
            UInt32Array::from_iter_values(facts.iter().map(|f| u32::from(f.key))),
            ops.names(),
        )?),
        u64_where(files, |file| file != 0),
        sparse(rows, files2),
        u64_where(of_source.column(|c| &c.handle), |handle| handle != 0 && handle != NONE),
        nullable::<Int64Type>(signed(offsets).into(), has_offset),
        sparse_i64(rows, &words[word::OFFSET2]),
        nullable::<Int64Type>(lengths.clone(), has_length),
        nullable::<Int64Type>(lengths, has_arg),
        Arc::new(Int64Array::from(of_source.column(|c| &c.result))),
        Arc::new(UInt16Array::from(flags)),
        Arc::new(UInt64Array::from(of_source.constant(&constants, |c| c.stream.0))),
        Arc::new(UInt64Array::from(of_source.column(|c| &c.attempt))),
        Arc::new(UInt32Array::from(of_source.column(|c| &c.request))),
        {
            let enclosing = of_source.column(|c| &c.enclosing);
            let valid = BooleanBuffer::collect_bool(rows, |i| enclosing[i] != 0);
            nullable::<UInt32Type>(enclosing.into(), valid)
        },
        sparse_i64(rows, &words[word::CPU_TIME]),
        half_word(rows, &words[word::CALLER], |caller| Some(caller as u32).filter(|tid| *tid != 0)),
        half_word(rows, &words[word::CALLER], |caller| {
            Some((caller >> 32) as u32).filter(|uid| *uid != Caller::UNKNOWN)
        }),
        half_word(rows, &words[word::COMMUNICATOR], |communicator| Some(communicator as u32)),
        half_word(rows, &words[word::COMMUNICATOR], |communicator| Some((communicator >> 32) as u32)),
        sparse_i64(rows, &words[word::ETYPES]),
        sparse_i64(rows, &words[word::TYPE_SIZE]),
        sparse_i64(rows, &words[word::TYPE_EXTENT]),
    ];
    RecordBatch::try_new(schema::of(Table::Events), columns).map(Some)
}

fn constants(catalog: &Catalog, stream: StreamId) -> Constants {
    let process = catalog.streams.get(&stream).and_then(|s| Some((s, catalog.processes.get(&s.process)?)));
    process.map_or(Constants { stream, ..Constants::default() }, |(s, process)| Constants {
        // The number of a node is its key in the dictionary.
        node: process.node.0 as u32,
        process: process.id,
        pid: process.key.pid,
        tid: s.tid,
        stream,
    })
}

struct Gather<'a> {
    sources: &'a [BatchSlice],
    order: &'a [RowRef],
}

impl Gather<'_> {
    fn column<V: Copy + PartialEq>(&self, of: impl Fn(&Columns) -> &Vec<V>) -> Vec<V> {
        let columns: Vec<&[V]> = self.sources.iter().map(|source| of(&source.columns).as_slice()).collect();
        // Many columns have the same value in all rows: the comparison costs less than gathering,
        // and stops at the first row that differs.
        let taken = self.sources.iter().zip(&columns).map(|(s, column)| &column[s.start..s.start + s.len]);
        match columns.first().and_then(|column| column.get(self.sources[0].start)) {
            Some(first) if taken.into_iter().all(|taken| taken.iter().all(|v| v == first)) => {
                vec![*first; self.order.len()]
            }
            _ => self.order.iter().map(|at| columns[at.source as usize][at.row as usize]).collect(),
        }
    }

    fn constant<V: Copy + PartialEq>(&self, constants: &[Constants], of: impl Fn(&Constants) -> V) -> Vec<V> {
        let values: Vec<V> = constants.iter().map(of).collect();
        match values.first() {
            Some(first) if values.iter().all(|v| v == first) => vec![*first; self.order.len()],
            _ => self.order.iter().map(|at| values[at.source as usize]).collect(),
        }
    }
}

/// Zeros for the values and the validity of columns of nulls: half of the columns are such, and a
/// shared buffer stays in the cache of the processor.
static ZEROS: LazyLock<Buffer> = LazyLock::new(|| MutableBuffer::from_len_zeroed(8 * STEP_ROWS).into());

fn all_null<T: ArrowPrimitiveType>(rows: usize) -> ArrayRef {
    if rows > STEP_ROWS {
        return Arc::new(PrimitiveArray::<T>::new_null(rows));
    }
    let values = ScalarBuffer::new(ZEROS.clone(), 0, rows);
    let nulls = NullBuffer::new(BooleanBuffer::new(ZEROS.clone(), 0, rows));
    Arc::new(PrimitiveArray::<T>::new(values, Some(nulls)))
}

fn nullable<T: ArrowPrimitiveType>(values: ScalarBuffer<T::Native>, valid: BooleanBuffer) -> ArrayRef {
    let set = valid.count_set_bits();
    if set == 0 {
        return all_null::<T>(values.len());
    }
    let nulls = (set < values.len()).then(|| NullBuffer::new(valid));
    Arc::new(PrimitiveArray::<T>::new(values, nulls))
}

fn u64_where(values: Vec<u64>, is: impl Fn(u64) -> bool) -> ArrayRef {
    let valid = BooleanBuffer::collect_bool(values.len(), |i| is(values[i]));
    nullable::<UInt64Type>(values.into(), valid)
}

fn sparse(rows: usize, values: Sparse<u64>) -> ArrayRef {
    if values.is_empty() {
        return all_null::<UInt64Type>(rows);
    }
    let mut filled = vec![None; rows];
    values.into_iter().for_each(|(row, value)| filled[row] = Some(value));
    Arc::new(UInt64Array::from(filled))
}

fn sparse_i64(rows: usize, values: &Sparse<u64>) -> ArrayRef {
    if values.is_empty() {
        return all_null::<Int64Type>(rows);
    }
    let mut filled = vec![None; rows];
    values.iter().for_each(|(row, value)| filled[*row] = Some(*value as i64));
    Arc::new(Int64Array::from(filled))
}

/// Column of one of the two numbers in a word.
fn half_word(rows: usize, words: &Sparse<u64>, of: impl Fn(u64) -> Option<u32>) -> ArrayRef {
    if words.is_empty() {
        return all_null::<UInt32Type>(rows);
    }
    let mut filled = vec![None; rows];
    words.iter().for_each(|(row, word)| filled[*row] = of(*word));
    Arc::new(UInt32Array::from(filled))
}

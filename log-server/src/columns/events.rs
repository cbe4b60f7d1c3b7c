//! Merged rows as record batches of `events`: each column is gathered from the columns of the
//! batches.

use crate::columns::ops::{Ops, has};
use crate::columns::resolve::{Resolved, Sparse};
use crate::ids::StreamId;
use crate::ids::catalog::Catalog;
use crate::store::STEP_ROWS;
use crate::store::merge::{BatchSlice, RowRef};
use arrow_array::types::{ArrowPrimitiveType, Int32Type, Int64Type};
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, PrimitiveArray, RecordBatch, TimestampNanosecondArray,
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
    node: i32,
    process: i64,
    pid: i32,
    tid: i32,
    stream: i64,
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

    let flags = of_source.column(|c| &c.flags).into_iter().zip(0..);
    let flags = flags.map(|(flags, row)| i32::from(if row < late { flags | flag::LATE } else { flags }));
    let offsets = of_source.column(|c| &c.offset);
    let lengths = of_source.column(|c| &c.length);
    let present = |bit: u8, values: &[u64]| {
        BooleanBuffer::collect_bool(rows, |i| facts[i].has & bit != 0 && values[i] != NONE)
    };
    let (has_offset, has_length) = (present(has::OFFSET, &offsets), present(has::LENGTH, &lengths));
    let has_arg = present(has::ARG, &lengths);
    let args = bits(lengths);
    let lengths = at_most_greatest(args.clone(), &has_length);
    let durations = at_most_greatest(bits(of_source.column(|c| &c.duration)), &BooleanBuffer::new_set(rows));

    let columns: Vec<ArrayRef> = vec![
        Arc::new(
            TimestampNanosecondArray::from_iter_values(order.iter().map(|at| at.time)).with_timezone("UTC"),
        ),
        Arc::new(Int64Array::new(durations, None)),
        Arc::new(DictionaryArray::try_new(
            Int32Array::from(of_source.constant(&constants, |c| c.node)),
            catalog.node_names(),
        )?),
        Arc::new(Int64Array::from(of_source.constant(&constants, |c| c.process))),
        Arc::new(Int32Array::from(of_source.constant(&constants, |c| c.pid))),
        Arc::new(Int32Array::from(of_source.constant(&constants, |c| c.tid))),
        Arc::new(DictionaryArray::try_new(
            Int32Array::from_iter_values(facts.iter().map(|f| i32::from(f.layer))),
            ops.layers(),
        )?),
        Arc::new(DictionaryArray::try_new(
            Int32Array::from_iter_values(facts.iter().map(|f| i32::from(f.key))),
            ops.names(),
        )?),
        ids_where(files, |file| file != 0),
        sparse(rows, &files2, |file| Some(file as i64)),
        // 0 and `NONE` are no handles; only a hostile producer has others that are no signed
        // numbers.
        ids_where(of_source.column(|c| &c.handle), |handle| handle != 0 && i64::try_from(handle).is_ok()),
        nullable::<Int64Type>(bits(offsets), has_offset),
        sparse(rows, &words[word::OFFSET2], |offset| Some(offset as i64)),
        nullable::<Int64Type>(lengths, has_length),
        nullable::<Int64Type>(args, has_arg),
        Arc::new(Int64Array::from(of_source.column(|c| &c.result))),
        Arc::new(Int32Array::from_iter_values(flags)),
        Arc::new(Int64Array::from(of_source.constant(&constants, |c| c.stream))),
        // A session accepts only numbers that are signed ones.
        Arc::new(Int64Array::new(bits(of_source.column(|c| &c.attempt)), None)),
        Arc::new(Int64Array::from(of_source.column_of(|c| &c.request, i64::from))),
        {
            let enclosing = of_source.column_of(|c| &c.enclosing, i64::from);
            let valid = BooleanBuffer::collect_bool(rows, |i| enclosing[i] != 0);
            nullable::<Int64Type>(enclosing.into(), valid)
        },
        sparse(rows, &words[word::CPU_TIME], |nanoseconds| i64::try_from(nanoseconds).ok()),
        half_word(rows, &words[word::CALLER], |caller| Some(caller as u32).filter(|tid| *tid != 0)),
        sparse(rows, &words[word::CALLER], |caller| {
            Some((caller >> 32) as u32).filter(|uid| *uid != Caller::UNKNOWN).map(i64::from)
        }),
        half_word(rows, &words[word::COMMUNICATOR], |communicator| Some(communicator as u32)),
        half_word(rows, &words[word::COMMUNICATOR], |communicator| Some((communicator >> 32) as u32)),
        sparse(rows, &words[word::ETYPES], |etypes| Some(etypes as i64)),
        sparse(rows, &words[word::TYPE_SIZE], |bytes| i64::try_from(bytes).ok()),
        sparse(rows, &words[word::TYPE_EXTENT], |bytes| Some(bytes as i64)),
    ];
    RecordBatch::try_new(schema::of(Table::Events), columns).map(Some)
}

fn constants(catalog: &Catalog, stream: StreamId) -> Constants {
    let process = catalog.streams.get(&stream).and_then(|s| Some((s, catalog.processes.get(&s.process)?)));
    let stream = stream.0 as i64;
    process.map_or(Constants { stream, ..Constants::default() }, |(s, process)| Constants {
        // The number of a node is its key in the dictionary.
        node: process.node.0 as i32,
        process: process.id.0 as i64,
        // The kernel has no greater ids; see the types of the side tables.
        pid: i32::try_from(process.key.pid).unwrap_or(i32::MAX),
        tid: i32::try_from(s.tid).unwrap_or(i32::MAX),
        stream,
    })
}

struct Gather<'a> {
    sources: &'a [BatchSlice],
    order: &'a [RowRef],
}

impl Gather<'_> {
    fn column<V: Copy + PartialEq>(&self, of: impl Fn(&Columns) -> &Vec<V>) -> Vec<V> {
        self.column_of(of, |value| value)
    }

    /// The same, of another type.
    fn column_of<V: Copy + PartialEq, T: Copy>(
        &self,
        of: impl Fn(&Columns) -> &Vec<V>,
        to: impl Fn(V) -> T,
    ) -> Vec<T> {
        let columns: Vec<&[V]> = self.sources.iter().map(|source| of(&source.columns).as_slice()).collect();
        // Many columns have the same value in all rows: the comparison costs less than gathering,
        // and stops at the first row that differs.
        let taken = self.sources.iter().zip(&columns).map(|(s, column)| &column[s.start..s.start + s.len]);
        match columns.first().and_then(|column| column.get(self.sources[0].start)) {
            Some(first) if taken.into_iter().all(|taken| taken.iter().all(|v| v == first)) => {
                vec![to(*first); self.order.len()]
            }
            _ => self.order.iter().map(|at| to(columns[at.source as usize][at.row as usize])).collect(),
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

/// The same bits as signed numbers. Nothing is copied.
fn bits(values: Vec<u64>) -> ScalarBuffer<i64> {
    let rows = values.len();
    ScalarBuffer::new(Buffer::from_vec(values), 0, rows)
}

/// Replaces sizes above the greatest signed number by that: a program that passes an error code as
/// size would otherwise have a negative one.
fn at_most_greatest(values: ScalarBuffer<i64>, valid: &BooleanBuffer) -> ScalarBuffer<i64> {
    if values.iter().fold(0, |all, value| all | value) >= 0 {
        return values;
    }
    let valid = valid.iter();
    values.iter().zip(valid).map(|(v, valid)| if valid && *v < 0 { i64::MAX } else { *v }).collect()
}

fn ids_where(values: Vec<u64>, is: impl Fn(u64) -> bool) -> ArrayRef {
    let valid = BooleanBuffer::collect_bool(values.len(), |i| is(values[i]));
    nullable::<Int64Type>(bits(values), valid)
}

/// Column of the values that few rows have; others are null.
fn sparse(rows: usize, values: &Sparse<u64>, of: impl Fn(u64) -> Option<i64>) -> ArrayRef {
    if values.is_empty() {
        return all_null::<Int64Type>(rows);
    }
    let mut filled = vec![None; rows];
    values.iter().for_each(|(row, value)| filled[*row] = of(*value));
    Arc::new(Int64Array::from(filled))
}

/// Column of one of the two numbers in a word. Numbers that no thread and no rank has are null.
fn half_word(rows: usize, words: &Sparse<u64>, of: impl Fn(u64) -> Option<u32>) -> ArrayRef {
    if words.is_empty() {
        return all_null::<Int32Type>(rows);
    }
    let mut filled = vec![None; rows];
    words.iter().for_each(|(row, word)| filled[*row] = of(*word).and_then(|half| i32::try_from(half).ok()));
    Arc::new(Int32Array::from(filled))
}

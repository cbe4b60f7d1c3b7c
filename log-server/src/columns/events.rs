//! Merged rows as record batches of `events`: each column is gathered from the columns of the
//! batches.

use super::gather::{Gather, Values};
use super::repeated::RepeatedBuffers;
use crate::columns::ops::{OpFacts, Ops, has};
use crate::columns::resolve::{Resolved, Sparse};
use crate::ids::StreamId;
use crate::ids::catalog::Catalog;
use crate::store::MAX_STEP_ROWS;
use crate::store::merge::BatchSlice;
use arrow_array::types::{ArrowPrimitiveType, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{ArrayRef, DictionaryArray, PrimitiveArray, RecordBatch};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow_schema::ArrowError;
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

/// Makes record batches of `events`. Consecutive batches share buffers of repeated values.
#[derive(Debug, Default)]
pub struct EventColumns {
    repeated: RepeatedBuffers,
}

impl EventColumns {
    /// Returns the events of a step as a record batch. `None` if the step has no event.
    ///
    /// # Errors
    /// Never for valid input.
    pub fn record_batch(
        &mut self,
        catalog: &mut Catalog,
        ops: &mut Ops,
        sources: &[BatchSlice],
        resolved: Resolved<'_>,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let Resolved { order, late, facts, files, files2, words, .. } = resolved;
        if order.is_empty() {
            return Ok(None);
        }
        let constants: Vec<Constants> =
            sources.iter().map(|source| constants(catalog, source.stream)).collect();
        let of_source = Gather { sources, order: &order };
        let of_stream = |of: fn(&Constants) -> i32| of_source.constant(constants.iter().map(of));
        let of_stream64 = |of: fn(&Constants) -> i64| of_source.constant(constants.iter().map(of));
        let facts = match of_source.column(|c| &c.op) {
            Values::Same(op) => Values::Same(ops.facts_of(op)),
            Values::Each(_) => Values::Each(facts),
        };
        let offsets = of_source.column(|c| &c.offset);
        let lengths = of_source.column(|c| &c.length);

        let mut columns =
            Builder { rows: order.len(), repeated: &mut self.repeated, columns: Vec::with_capacity(29) };
        columns.push(Arc::new(
            PrimitiveArray::<TimestampNanosecondType>::from_iter_values(order.iter().map(|at| at.time))
                .with_timezone("UTC"),
        ));
        columns.signed(at_most_greatest(of_source.column(|c| &c.duration)), Valid::All);
        columns.names(of_stream(|c| c.node), catalog.node_names())?;
        columns.numbers::<Int64Type>(of_stream64(|c| c.process));
        columns.numbers::<Int32Type>(of_stream(|c| c.pid));
        columns.numbers::<Int32Type>(of_stream(|c| c.tid));
        columns.names(keys(&facts, |facts| i32::from(facts.layer)), ops.layers())?;
        columns.names(keys(&facts, |facts| i32::from(facts.key)), ops.names())?;
        columns.ids_where(Values::of(files), |file| file != 0);
        columns.sparse(&files2, |file| Some(file as i64));
        // 0 and `NONE` are no handles; only a hostile producer has others that are no signed
        // numbers.
        let is_handle = |handle| handle != 0 && i64::try_from(handle).is_ok();
        columns.ids_where(of_source.column(|c| &c.handle), is_handle);
        let has_offset = Valid::present(has::OFFSET, &facts, &offsets);
        columns.signed(offsets, has_offset);
        columns.sparse(&words[word::OFFSET2], |offset| Some(offset as i64));
        let has_length = Valid::present(has::LENGTH, &facts, &lengths);
        let has_arg = Valid::present(has::ARG, &facts, &lengths);
        let args = if matches!(has_arg, Valid::None) { Values::Same(0) } else { lengths.clone() };
        columns.signed(at_most_greatest(lengths), has_length);
        columns.signed(args, has_arg);
        columns.numbers::<Int64Type>(of_source.column(|c| &c.result));
        columns.numbers::<Int32Type>(flags(of_source.column(|c| &c.flags), late, order.len()));
        columns.numbers::<Int64Type>(of_stream64(|c| c.stream));
        // A session accepts only numbers that are signed ones.
        columns.signed(of_source.column(|c| &c.attempt), Valid::All);
        columns.numbers::<Int64Type>(of_source.column_of(|c| &c.request, i64::from));
        columns.ids_where(of_source.column_of(|c| &c.enclosing, u64::from), |enclosing| enclosing != 0);
        columns.sparse(&words[word::CPU_TIME], |nanoseconds| i64::try_from(nanoseconds).ok());
        columns.half_word(&words[word::CALLER], |caller| Some(caller as u32).filter(|tid| *tid != 0));
        columns.sparse(&words[word::CALLER], |caller| {
            Some((caller >> 32) as u32).filter(|uid| *uid != Caller::UNKNOWN).map(i64::from)
        });
        columns.half_word(&words[word::COMMUNICATOR], |communicator| Some(communicator as u32));
        columns.half_word(&words[word::COMMUNICATOR], |communicator| Some((communicator >> 32) as u32));
        columns.sparse(&words[word::ETYPES], |etypes| Some(etypes as i64));
        columns.sparse(&words[word::TYPE_SIZE], |bytes| i64::try_from(bytes).ok());
        columns.sparse(&words[word::TYPE_EXTENT], |bytes| Some(bytes as i64));
        RecordBatch::try_new(schema::of(Table::Events), columns.columns).map(Some)
    }
}

fn keys(facts: &Values<OpFacts>, key: impl Fn(&OpFacts) -> i32) -> Values<i32> {
    match facts {
        Values::Same(facts) => Values::Same(key(facts)),
        Values::Each(facts) => Values::Each(facts.iter().map(key).collect()),
    }
}

/// The flags, with the mark of the first `late` rows.
fn flags(flags: Values<u16>, late: usize, rows: usize) -> Values<i32> {
    if late == 0 {
        return flags.map(i32::from);
    }
    let marked = |row| if row < late { flags.get(row) | flag::LATE } else { flags.get(row) };
    Values::Each((0..rows).map(|row| i32::from(marked(row))).collect())
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

/// Which rows of a column have a value.
enum Valid {
    All,
    None,
    Some(NullBuffer),
}

impl Valid {
    /// Rows whose operation has the column `bit` of [`has`], and whose value is not [`NONE`].
    fn present(bit: u8, facts: &Values<OpFacts>, values: &Values<u64>) -> Valid {
        match facts {
            Values::Same(facts) if facts.has & bit == 0 => Valid::None,
            Values::Same(_) => Valid::those(values, |value| value != NONE),
            Values::Each(facts) => {
                let is = |row: usize| facts[row].has & bit != 0 && values.get(row) != NONE;
                Valid::of(BooleanBuffer::collect_bool(facts.len(), is))
            }
        }
    }

    fn those(values: &Values<u64>, is: impl Fn(u64) -> bool) -> Valid {
        match values {
            Values::Same(value) if is(*value) => Valid::All,
            Values::Same(_) => Valid::None,
            Values::Each(values) if values.iter().fold(true, |all, value| all & is(*value)) => Valid::All,
            Values::Each(values) => {
                Valid::of(BooleanBuffer::collect_bool(values.len(), |row| is(values[row])))
            }
        }
    }

    fn of(valid: BooleanBuffer) -> Valid {
        match valid.count_set_bits() {
            0 => Valid::None,
            set if set == valid.len() => Valid::All,
            _ => Valid::Some(NullBuffer::new(valid)),
        }
    }
}

/// Zeros for the values and the validity of columns of nulls: half of the columns are such, and a
/// shared buffer stays in the cache of the processor.
static ZEROS: LazyLock<Buffer> = LazyLock::new(|| MutableBuffer::from_len_zeroed(8 * MAX_STEP_ROWS).into());

/// The columns of a record batch, in the order of the schema.
struct Builder<'a> {
    rows: usize,
    repeated: &'a mut RepeatedBuffers,
    columns: Vec<ArrayRef>,
}

impl Builder<'_> {
    fn push(&mut self, column: ArrayRef) {
        self.columns.push(column);
    }

    fn buffer<T: ArrowNativeType>(&mut self, values: Values<T>) -> ScalarBuffer<T> {
        match values {
            Values::Same(value) => self.repeated.of(self.columns.len(), value, self.rows),
            Values::Each(values) => values.into(),
        }
    }

    fn numbers<T: ArrowPrimitiveType>(&mut self, values: Values<T::Native>) {
        let values = self.buffer(values);
        self.push(Arc::new(PrimitiveArray::<T>::new(values, None)));
    }

    fn names(&mut self, keys: Values<i32>, names: ArrayRef) -> Result<(), ArrowError> {
        let keys = PrimitiveArray::<Int32Type>::new(self.buffer(keys), None);
        self.push(Arc::new(DictionaryArray::try_new(keys, names)?));
        Ok(())
    }

    fn nulls<T: ArrowPrimitiveType>(&mut self) {
        let rows = self.rows;
        if rows > MAX_STEP_ROWS {
            return self.push(Arc::new(PrimitiveArray::<T>::new_null(rows)));
        }
        let values = ScalarBuffer::new(ZEROS.clone(), 0, rows);
        let nulls = NullBuffer::new(BooleanBuffer::new(ZEROS.clone(), 0, rows));
        self.push(Arc::new(PrimitiveArray::<T>::new(values, Some(nulls))));
    }

    /// The same bits as signed numbers.
    fn signed(&mut self, values: Values<u64>, valid: Valid) {
        let nulls = match valid {
            Valid::None => return self.nulls::<Int64Type>(),
            Valid::All => None,
            Valid::Some(nulls) => Some(nulls),
        };
        let values = match values {
            Values::Same(value) => self.buffer(Values::Same(value as i64)),
            // Nothing is copied.
            Values::Each(values) => ScalarBuffer::new(Buffer::from_vec(values), 0, self.rows),
        };
        self.push(Arc::new(PrimitiveArray::<Int64Type>::new(values, nulls)));
    }

    fn ids_where(&mut self, values: Values<u64>, is: impl Fn(u64) -> bool) {
        let valid = Valid::those(&values, is);
        self.signed(values, valid);
    }

    /// Column of the values that few rows have; others are null.
    fn sparse(&mut self, values: &Sparse<u64>, of: impl Fn(u64) -> Option<i64>) {
        self.some::<Int64Type>(values, of);
    }

    /// Column of one of the two numbers in a word. Numbers that no thread and no rank has are null.
    fn half_word(&mut self, words: &Sparse<u64>, of: impl Fn(u64) -> Option<u32>) {
        self.some::<Int32Type>(words, |word| of(word).and_then(|half| i32::try_from(half).ok()));
    }

    fn some<T: ArrowPrimitiveType>(&mut self, values: &Sparse<u64>, of: impl Fn(u64) -> Option<T::Native>) {
        if values.is_empty() {
            return self.nulls::<T>();
        }
        let mut filled = vec![None; self.rows];
        values.iter().for_each(|(row, value)| filled[*row] = of(*value));
        self.push(Arc::new(PrimitiveArray::<T>::from_iter(filled)));
    }
}

/// Replaces sizes above the greatest signed number by that: a program that passes an error code as
/// size would otherwise have a negative one.
fn at_most_greatest(values: Values<u64>) -> Values<u64> {
    const GREATEST: u64 = i64::MAX as u64;
    match values {
        Values::Each(values) if values.iter().fold(0, |all, value| all | value) <= GREATEST => {
            Values::Each(values)
        }
        values => values.map(|value| value.min(GREATEST)),
    }
}

//! Buffers of repeated values, which consecutive batches share.
//!
//! Nothing is written for a column that has the value of the batch before. Code that recognizes
//! the buffer need not read it.

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};

/// The last buffer of each column that had one value in all rows.
#[derive(Debug, Default)]
pub(super) struct RepeatedBuffers {
    columns: Vec<Option<Buffer>>,
}

impl RepeatedBuffers {
    /// Returns `rows` times `value`. `column` is the number of the column, which has one type.
    pub(super) fn of<T: ArrowNativeType>(&mut self, column: usize, value: T, rows: usize) -> ScalarBuffer<T> {
        if self.columns.len() <= column {
            self.columns.resize(column + 1, None);
        }
        let known = &mut self.columns[column];
        known.take_if(|known| {
            let values = known.typed_data::<T>();
            values.len() < rows || values.first() != Some(&value)
        });
        let buffer =
            known.get_or_insert_with(|| Buffer::from_vec(vec![value; rows.next_power_of_two()])).clone();
        ScalarBuffer::new(buffer, 0, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::RepeatedBuffers;

    #[test]
    fn buffer_is_shared_while_the_value_stays_and_the_rows_fit() {
        let mut buffers = RepeatedBuffers::default();
        let first = buffers.of(3, 7i64, 100);
        assert_eq!((first.len(), first.iter().all(|value| *value == 7)), (100, true));
        let second = buffers.of(3, 7i64, 128);
        assert!(second.len() == 128 && second.as_ptr() == first.as_ptr());
        for (value, rows) in [(7i64, 129), (8, 100), (7, 100), (7, 0)] {
            let next = buffers.of(3, value, rows);
            assert!(next.len() == rows && next.iter().all(|found| *found == value), "{value} {rows}");
        }
        assert_eq!(buffers.of(0, -1i32, 3).to_vec(), [-1; 3]);
    }
}

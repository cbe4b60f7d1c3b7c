//! Recognizes columns with one repeated value.

use arrow_buffer::Buffer;

/// The last buffer of a column that had one repeated value. Writers of events share such buffers
/// between batches, so that most need not be compared.
#[derive(Debug, Default)]
pub(crate) struct RepeatedValue {
    /// It is kept, so that no other buffer can have its address.
    known: Option<Buffer>,
}

impl RepeatedValue {
    /// Returns true if `bytes`, of values of `width` bytes, has one value. A column has one width.
    pub(crate) fn is_in(&mut self, bytes: &Buffer, width: usize) -> bool {
        let is_known = |known: &Buffer| known.as_ptr() == bytes.as_ptr() && known.len() >= bytes.len();
        if self.known.as_ref().is_some_and(is_known) {
            return true;
        }
        let is_repeated = bytes.len() >= width && bytes[width..] == bytes[..bytes.len() - width];
        if is_repeated {
            self.known = Some(bytes.clone());
        }
        is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::RepeatedValue;
    use arrow_buffer::Buffer;

    #[test]
    fn known_buffer_and_its_beginning_are_recognized() {
        let mut repeated = RepeatedValue::default();
        let (same, other) = (Buffer::from_vec(vec![7u64; 9]), Buffer::from_vec(vec![7u64, 7, 8]));
        assert!(repeated.is_in(&same, 8) && repeated.is_in(&same, 8) && !repeated.is_in(&other, 8));
        let beginning = other.slice_with_length(0, 16);
        assert!(repeated.is_in(&beginning, 8));
        assert!(!repeated.is_in(&other, 8), "more than the known beginning");
        assert!(repeated.is_in(&same.slice_with_length(0, 24), 8));
        assert!(!repeated.is_in(&Buffer::from_vec(Vec::<u64>::new()), 8));
    }
}

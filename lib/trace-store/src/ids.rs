//! Ids of processes, streams and files: the partition in the high bits, and a number that counts
//! from 1.
//!
//! ```text
//! bit 63          0: ids are positive signed numbers
//! bits 62 to 53   0: an id is exact as a floating-point number too (JSON, JavaScript, pandas)
//! bits 52 to 43   partition: the log-server that assigned the id
//! bits 42 to 0    number, from 1
//! ```
//!
//! A partition is the trace directory of one log-server. Partitions with different numbers have no
//! id in common, so that their tables can be read as one table. The ids of partition 0 are 1, 2, 3.

/// Bits of the number.
pub const NUMBER_BITS: u32 = 43;
/// The greatest partition.
pub const MAX_PARTITION: u16 = 1023;

/// Returns the first id of a partition.
#[inline]
#[must_use]
pub const fn first(partition: u16) -> u64 {
    base(partition) + 1
}

/// Returns the partition of an id; `None` if it is not a valid id.
#[inline]
#[must_use]
pub fn partition_of(id: u64) -> Option<u16> {
    u16::try_from(id >> NUMBER_BITS).ok().filter(|partition| *partition <= MAX_PARTITION)
}

/// The ids of a partition are greater than this one, which is never assigned.
const fn base(partition: u16) -> u64 {
    (partition as u64) << NUMBER_BITS
}

/// Maps the ids of one partition to small numbers, for arrays: that of the first id.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenseIds {
    base: Option<u64>,
}

impl DenseIds {
    /// Returns the number of an id. It is large if the id is of another partition than the first
    /// id.
    #[inline]
    pub fn add(&mut self, id: u64) -> u64 {
        id.wrapping_sub(*self.base.get_or_insert(id >> NUMBER_BITS << NUMBER_BITS))
    }

    /// The same without a first id.
    #[inline]
    #[must_use]
    pub fn get(&self, id: u64) -> u64 {
        id.wrapping_sub(self.base.unwrap_or_default())
    }

    /// Returns the id of a number.
    #[inline]
    #[must_use]
    pub fn id(&self, number: u64) -> u64 {
        number.wrapping_add(self.base.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::{DenseIds, MAX_PARTITION, NUMBER_BITS, first, partition_of};

    #[test]
    fn ids_are_exact_floating_point_numbers() {
        let last = first(MAX_PARTITION) + (1 << NUMBER_BITS) - 2;
        assert_eq!(last, (1 << 53) - 1);
        assert_eq!(last as f64 as u64, last);
        assert_eq!((first(0), partition_of(1), partition_of(last)), (1, Some(0), Some(MAX_PARTITION)));
        assert_eq!(
            (partition_of(first(3)), partition_of(last + 1), partition_of(u64::MAX)),
            (Some(3), None, None)
        );
    }

    #[test]
    fn dense_ids_are_those_of_the_first_partition() {
        let mut dense = DenseIds::default();
        assert_eq!((dense.add(first(7)), dense.add(first(7) + 4), dense.get(first(7) + 9)), (1, 5, 10));
        assert_eq!(dense.id(5), first(7) + 4);
        for id in [1, first(6), first(8), u64::MAX, first(7) - 2] {
            assert!(dense.add(id) >= (1 << NUMBER_BITS) - 1, "{id}");
            assert_eq!(dense.id(dense.get(id)), id);
        }
    }
}

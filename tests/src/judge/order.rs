//! Checks the order of the trace, row by row.

use std::collections::HashMap;

/// Sort key of a row: time, stream, attempt number.
pub type Key = (i64, u64, u64);

/// State of the check, fed with rows in stored order.
#[derive(Debug, Default)]
pub struct Order {
    /// The last row that is not marked late.
    last: Option<Key>,
    /// Attempt number and time of the last row of each stream.
    streams: HashMap<u64, (u64, i64)>,
    /// Time of the last row of the part, if the part is sealed. Its rows are sorted, including late
    /// ones.
    sealed: Option<i64>,
    /// Greatest key among the part's late rows.
    late: Option<Key>,
}

impl Order {
    /// Starts another part.
    ///
    /// # Panics
    /// If a row of the previous part is marked late and was not.
    pub fn part(&mut self, sealed: bool) {
        self.end();
        self.sealed = sealed.then_some(i64::MIN);
    }

    /// Ends the last part.
    ///
    /// # Panics
    /// If a row of the last part is marked late and was not.
    pub fn end(&mut self) {
        if let Some(late) = self.late.take() {
            assert!(
                Some(late) < self.last,
                "marked late: {late:?}, although nothing later was stored before it"
            );
        }
    }

    /// Checks the next row.
    ///
    /// # Panics
    /// If it is out of order.
    pub fn row(&mut self, key: Key, late: bool) {
        let (time, stream, seq) = key;
        if let Some((before, earlier)) = self.streams.insert(stream, (seq, time)) {
            assert!(before < seq, "stream {stream}: attempt {seq} after {before}");
            assert!(
                earlier <= time,
                "stream {stream}: attempt {seq} at {time}, the one before it at {earlier}"
            );
        }
        if let Some(before) = &mut self.sealed {
            assert!(*before <= time, "in a sealed part {key:?} after {before}");
            *before = time;
        }
        if late {
            self.late = self.late.max(Some(key));
        } else {
            assert!(self.last < Some(key), "{key:?} is not marked late, after {:?}", self.last);
            self.last = Some(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// Returns the problems of these rows (time, stream, attempt, late) in one part. Empty if they
    /// are in order.
    fn said(sealed: bool, rows: &[(i64, u64, u64, bool)]) -> String {
        let judged = catch_unwind(|| {
            let mut order = Order::default();
            order.part(sealed);
            rows.iter().for_each(|(time, stream, seq, late)| order.row((*time, *stream, *seq), *late));
            order.end();
        });
        judged
            .err()
            .map_or_else(String::new, |said| said.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    #[test]
    fn order_is_total_and_late_rows_are_late() {
        assert_eq!(said(true, &[(1, 1, 0, false), (1, 2, 0, false), (1, 2, 1, false), (2, 1, 1, false)]), "");
        assert_eq!(said(false, &[(5, 1, 0, false), (3, 2, 0, true), (6, 2, 1, false)]), "");
        for (sealed, rows, why) in [
            (false, &[(1, 2, 0, false), (1, 1, 0, false)][..], "not marked late"),
            (false, &[(2, 1, 0, false), (1, 2, 0, false)], "not marked late"),
            (false, &[(1, 1, 1, false), (2, 1, 1, false)], "attempt 1 after 1"),
            (false, &[(2, 1, 0, false), (1, 1, 1, true)], "the one before it at 2"),
            (false, &[(1, 1, 0, false), (2, 2, 0, true)], "marked late"),
            (true, &[(5, 1, 0, false), (3, 2, 0, true)], "in a sealed part"),
        ] {
            let found = said(sealed, rows);
            assert!(found.contains(why), "{rows:?}: {found}");
        }
    }
}

//! How far a node's clock is from the server's. Pure.
//!
//! The server asks, the node answers with its time; the answer was given at some moment between, so half the
//! round trip bounds the error, and the exchange with the shortest round trip is the best. A difference that
//! is within the error is no difference: clocks that are known to be equal, as on one machine, are
//! left alone.

/// What was measured in one exchange, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Server's time minus node's time.
    pub offset: i64,
    /// From question to answer.
    pub round_trip: i64,
}

impl Sample {
    /// A question sent at `sent` (server's clock), answered at `answered` (node's clock), the answer
    /// received after `round_trip` nanoseconds.
    #[must_use]
    pub fn new(sent: i64, answered: i64, round_trip: i64) -> Sample {
        let middle = sent.saturating_add(round_trip / 2);
        Sample { offset: middle.saturating_sub(answered), round_trip }
    }
}

/// What is added to a node's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    /// Nanoseconds added to the node's time.
    pub offset: i64,
    /// The corrected time is at most this wrong, nanoseconds.
    pub uncertainty: i64,
    /// Of the exchange it rests on, nanoseconds; 0 if there was none.
    pub round_trip: i64,
}

/// The exchanges of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    best: Option<Sample>,
    samples: u32,
}

impl Estimate {
    /// Takes in one exchange.
    pub fn add(&mut self, sample: Sample) {
        self.samples += 1;
        if self.best.is_none_or(|best| sample.round_trip < best.round_trip) {
            self.best = Some(sample);
        }
    }

    /// How many exchanges there were.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// The correction to apply from now on. The one that was applied before stays if both agree within
    /// their errors: so a reconnection does not shift times.
    #[must_use]
    pub fn correction(&self, before: Option<Correction>) -> Correction {
        let Some(Sample { offset, round_trip }) = self.best else {
            return before.unwrap_or_default();
        };
        let error = round_trip / 2;
        let at = |applied: i64| Correction {
            offset: applied,
            uncertainty: offset.saturating_sub(applied).saturating_abs().saturating_add(error),
            round_trip,
        };
        if let Some(before) = before
            && offset.saturating_sub(before.offset).saturating_abs()
                <= before.uncertainty.saturating_add(error)
        {
            return at(before.offset);
        }
        at(if offset.saturating_abs() > error { offset } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn the_shortest_exchange_counts() {
        let mut estimate = Estimate::default();
        // The node is 5 s ahead; its answers wait on the way back, more or less.
        for delay in [7, 1, 40] {
            estimate.add(Sample::new(1000 * MS, 6000 * MS + MS / 2, (1 + delay) * MS));
        }
        let correction = estimate.correction(None);
        assert_eq!(correction.round_trip, 2 * MS);
        assert_eq!(correction.uncertainty, MS);
        assert!((correction.offset + 5000 * MS).abs() <= MS, "{correction:?}");
    }

    #[test]
    fn what_cannot_be_told_from_nothing_is_nothing() {
        let mut estimate = Estimate::default();
        estimate.add(Sample { offset: MS, round_trip: 3 * MS });
        assert_eq!(
            estimate.correction(None),
            Correction { offset: 0, uncertainty: 5 * MS / 2, round_trip: 3 * MS }
        );
        assert_eq!(Estimate::default().correction(None), Correction::default());
    }

    #[test]
    fn a_correction_stays_while_it_agrees_with_the_new_measurement() {
        let before = Correction { offset: 100 * MS, uncertainty: MS, round_trip: 2 * MS };
        let mut estimate = Estimate::default();
        assert_eq!(estimate.correction(Some(before)), before);
        estimate.add(Sample { offset: 101 * MS, round_trip: 2 * MS });
        assert_eq!(estimate.correction(Some(before)).offset, 100 * MS);
        let mut moved = Estimate::default();
        moved.add(Sample { offset: 103 * MS, round_trip: MS });
        assert_eq!(moved.correction(Some(before)).offset, 103 * MS);
    }

    #[test]
    fn absurd_clocks_do_not_overflow() {
        for answered in [i64::MIN, i64::MAX] {
            let mut estimate = Estimate::default();
            estimate.add(Sample::new(1000 * MS, answered, MS));
            let correction = estimate.correction(Some(Correction {
                offset: i64::MAX,
                uncertainty: i64::MAX,
                round_trip: 0,
            }));
            assert!(correction.uncertainty >= 0);
        }
    }
}

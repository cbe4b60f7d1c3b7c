//! Rates of two counters over the last seconds.

use miot_proto::status::RateWindow;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of samples. The rate covers one second less than this.
const SAMPLES: usize = 6;

/// A time by both clocks: the second value is in nanoseconds since 1970.
pub(super) type Timestamp = (Instant, i64);

/// The latest samples of two counters.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<(Timestamp, [u64; 2])>);

impl Rates {
    /// Adds a sample of the counters.
    pub(super) fn sample(&mut self, at: Timestamp, counters: [u64; 2]) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back((at, counters));
    }

    /// Time window of the rates.
    pub(super) fn window(&self) -> Option<RateWindow> {
        let ((from, _), (to, _)) = (self.0.front()?, self.0.back()?);
        Some(RateWindow { from: from.1, to: to.1 })
    }

    /// Rates per second; 0 before there are two samples.
    pub(super) fn per_second(&self) -> [f64; 2] {
        let (Some(((from, _), first)), Some(((to, _), last))) = (self.0.front(), self.0.back()) else {
            return [0.0; 2];
        };
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        if seconds <= 0.0 {
            return [0.0; 2];
        }
        std::array::from_fn(|n| last[n].saturating_sub(first[n]) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn old_samples_do_not_count() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        assert_eq!((rates.per_second(), rates.window()), ([0.0; 2], None));
        for second in 0..20 {
            let busy = second.min(10);
            rates.sample((start + Duration::from_secs(second), second as i64), [100 * busy, 7]);
            if second == 10 {
                assert_eq!(rates.per_second(), [100.0, 0.0]);
            }
        }
        assert_eq!(rates.per_second(), [0.0, 0.0]);
        assert_eq!(rates.window(), Some(RateWindow { from: 14, to: 19 }));
    }
}

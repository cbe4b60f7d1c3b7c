//! How fast two counters grow, over the last seconds.

use std::collections::VecDeque;
use std::time::Instant;

/// Samples kept: the rate is that of so many seconds less one.
const SAMPLES: usize = 6;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<(Instant, [u64; 2])>);

impl Rates {
    /// Where the counters are.
    pub(super) fn sample(&mut self, at: Instant, counters: [u64; 2]) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back((at, counters));
    }

    /// Per second; 0 before there are two samples.
    pub(super) fn per_second(&self) -> [f64; 2] {
        let (Some((from, first)), Some((to, last))) = (self.0.front(), self.0.back()) else {
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
    fn what_was_long_ago_does_not_count() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        assert_eq!(rates.per_second(), [0.0; 2]);
        for second in 0..20 {
            let busy = second.min(10);
            rates.sample(start + Duration::from_secs(second), [100 * busy, 7]);
            if second == 10 {
                assert_eq!(rates.per_second(), [100.0, 0.0]);
            }
        }
        assert_eq!(rates.per_second(), [0.0, 0.0]);
    }
}

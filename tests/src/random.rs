//! Reproducible random numbers: every random test prints its seed and reads it from `MIOT_SEED`.

use crate::forged::ticks;
use std::time::Duration;

/// Random numbers.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Creates a generator with this seed.
    #[must_use]
    pub fn of(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// Creates a generator with the [`seed`] of this run.
    #[must_use]
    pub fn new(test: &str) -> Random {
        Random::of(seed(test))
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }

    /// Returns an index into a list of `n` elements, which is not empty.
    pub fn place(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// True once in `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a duration from `from` (included) to `to` (excluded) milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.below((to - from) * 1000))
    }
}

/// Returns the seed from `MIOT_SEED`, or else a different one for each run, and prints it.
#[must_use]
pub fn seed(test: &str) -> u64 {
    let seed = number("MIOT_SEED", ticks());
    eprintln!("{test}: MIOT_SEED={seed}");
    seed
}

/// Returns a number from the environment.
///
/// # Panics
/// If the variable does not hold a number.
#[must_use]
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

//! Reproducible random numbers: every random test prints its seed, and takes it from `MIOT_SEED`.

use crate::forged::ticks;
use std::time::Duration;

/// Random numbers.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The numbers of this seed.
    #[must_use]
    pub fn of(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// The numbers of this run's [`seed`].
    #[must_use]
    pub fn new(test: &str) -> Random {
        Random::of(seed(test))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }

    /// A place in a list of `n`, which is not empty.
    pub fn place(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A time from `from` up to, and without, `to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.below((to - from) * 1000))
    }
}

/// From `MIOT_SEED`, else another one every time. Says which.
#[must_use]
pub fn seed(test: &str) -> u64 {
    let seed = number("MIOT_SEED", ticks());
    eprintln!("{test}: MIOT_SEED={seed}");
    seed
}

/// A number from the environment.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

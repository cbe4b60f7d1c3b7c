//! Random numbers, and the seed of a test.

/// Random numbers.
pub struct Random(fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }
}

/// The seed in `MIOT_SEED`, if it is set.
pub fn given_seed() -> Option<u64> {
    std::env::var("MIOT_SEED").ok().map(|seed| seed.parse().expect("MIOT_SEED is a number"))
}

/// The seed in `MIOT_SEED`, or a different one each time. It is printed.
pub fn seed() -> u64 {
    let seed = given_seed().unwrap_or_else(|| super::now() as u64);
    println!("MIOT_SEED={seed}");
    seed
}

//! Pseudorandom numbers.

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 32) % n
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

//! The words of a control page, as a log-client finds them when it takes over from another.
//!
//! Settings that were read and written again must be the same from then on.

use crate::Seed;
use crate::input::Input;
use miot_proto::control::{BYTES, Settings, op_bit, word};
use miot_proto::op::Op;

/// Runs the target: the frequency of the time stamp counter, then the page.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let tsc_hz = input.word();
    let page: Vec<u64> = (0..BYTES / 8).map(|_| input.word()).collect();
    let settings = Settings::read(|at| page[at / 8]);
    let mut written = vec![0; BYTES / 8];
    settings.words(tsc_hz).for_each(|(at, value)| written[at / 8] = value);
    // Written with the exceptions that it counts.
    written[word::EXCEPTED / 8] = page[word::EXCEPTED / 8];
    // A sample shift beyond the request number's bits keeps nothing that 31 does not.
    let sane = Settings { sample_shift: settings.sample_shift.min(31), ..settings };
    assert_eq!(Settings::read(|at| written[at / 8]), sane);
    let (layer, number) = (page[0] as u8, page[1] as u8);
    let (at, bit) = op_bit(Op { layer, number });
    assert!(at.is_multiple_of(8) && at + 8 <= BYTES && bit < 64);
}

/// The page of the default settings, and an empty one.
pub fn seeds() -> Vec<Seed> {
    let mut page = vec![0; 8 + BYTES];
    Settings::default().words(2_000_000_000).for_each(|(at, value)| {
        page[8 + at..16 + at].copy_from_slice(&value.to_le_bytes());
    });
    vec![("default", page), ("empty", vec![0; 8])]
}

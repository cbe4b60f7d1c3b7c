//! Words of a control page, as a log-client finds them when it replaces another.
//!
//! Settings that are read, written and read again must not change.

use crate::Seed;
use crate::input::Input;
use miot_proto::control::{BYTES, Settings, op_bit, word};
use miot_proto::op::Op;

/// Runs the target. The bytes are the frequency of the time stamp counter, then the page.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let tsc_hz = input.word();
    let page: Vec<u64> = (0..BYTES / 8).map(|_| input.word()).collect();
    let settings = Settings::read(|at| page[at / 8]);
    let mut written = vec![0; BYTES / 8];
    settings.words(tsc_hz).for_each(|(at, value)| written[at / 8] = value);
    // The log-client writes this word together with the exceptions.
    written[word::EXCEPTED / 8] = page[word::EXCEPTED / 8];
    // `Settings::words` limits the sample shift to 31.
    let limited = Settings { sample_shift: settings.sample_shift.min(31), ..settings };
    assert_eq!(Settings::read(|at| written[at / 8]), limited);
    let (layer, number) = (page[0] as u8, page[1] as u8);
    let (at, bit) = op_bit(Op { layer, number });
    assert!(at.is_multiple_of(8) && at + 8 <= BYTES && bit < 64);
}

/// Returns the page of the default settings, and an empty one.
pub fn seeds() -> Vec<Seed> {
    let mut page = vec![0; 8 + BYTES];
    Settings::default().words(2_000_000_000).for_each(|(at, value)| {
        page[8 + at..16 + at].copy_from_slice(&value.to_le_bytes());
    });
    vec![("default", page), ("empty", vec![0; 8])]
}

//! libFuzzer entry point of [`miot_fuzz::import::dxt`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::import::dxt(bytes));

//! libFuzzer entry point of [`miot_fuzz::segment`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::segment::run(bytes));

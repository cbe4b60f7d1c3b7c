//! libFuzzer entry point of [`miot_fuzz::control`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::control::run(bytes));

//! libFuzzer entry point of [`miot_fuzz::miller`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::miller::run(bytes));

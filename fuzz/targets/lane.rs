//! libFuzzer entry point of [`miot_fuzz::lane`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::lane::run(bytes));

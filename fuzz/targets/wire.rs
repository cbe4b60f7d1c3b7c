//! libFuzzer entry point of [`miot_fuzz::wire`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::wire::run(bytes));

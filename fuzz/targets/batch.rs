//! libFuzzer entry point of [`miot_fuzz::batch`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::batch::run(bytes));

//! libFuzzer entry point of [`miot_fuzz::session`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::session::run(bytes));

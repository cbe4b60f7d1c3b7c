//! libFuzzer entry point of [`miot_fuzz::spool`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::spool::run(bytes));

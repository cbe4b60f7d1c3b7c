//! libFuzzer entry point of [`miot_fuzz::trace`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| miot_fuzz::trace::run(bytes));

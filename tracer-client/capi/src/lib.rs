//! `libmiot.so` and `libmiot.a`: the C interface of [`miot_tracer::capi`] as libraries.

pub use miot_tracer::capi::*;

//! `libmiot.so` and `libmiot.a`: the C interface [`miot_tracer::capi`] as shared and static
//! library.

pub use miot_tracer::capi::*;

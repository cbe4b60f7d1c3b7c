//! Permission to write and to read: real daemons with certificates of `miot pki`, and clients that
//! must be refused.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod capabilities;
mod privileges;
mod refused;
mod renewed;
mod served;
mod site;
mod strangers;
mod watched;

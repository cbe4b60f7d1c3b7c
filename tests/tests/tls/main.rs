//! Who may write and who may read: real daemons with certificates of `miot pki`, and everybody who
//! should not get in.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod capabilities;
mod privileges;
mod refused;
mod renewed;
mod served;
mod site;
mod strangers;
mod watched;

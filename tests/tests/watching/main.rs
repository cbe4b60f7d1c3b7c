//! `miot top` on a terminal, and its figures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod in_flight;
mod live;
mod replayed;

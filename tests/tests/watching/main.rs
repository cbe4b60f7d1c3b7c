//! Watching: `miot top` on a terminal, and the numbers it shows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod in_flight;
mod live;
mod replayed;

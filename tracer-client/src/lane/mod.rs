//! The lane: a circular buffer of 64-byte slots with one producer (a thread) and one consumer (the
//! log-client, in another process).
//!
//! **Wait-free and crash-proof:** a record is published by one store; a producer killed before it leaves
//! nothing to repair. Nothing here knows pointers or mappings, so that a model checker can run it.
//!
//! The consumer is `miot_log_client`, which reads with `pread` and writes with `pwrite`; a system call is at
//! least an acquire and a release. `model` has a consumer with just the orders that are needed.
//!
//! | here | order | pairs with | why |
//! |---|---|---|---|
//! | slot words, [`Slot::put`] | relaxed store | copy of the slots | ordered by the tail; atomic so that a peer that misbehaves is not a data race |
//! | `tail`, [`Producer::commit`] | release store | first read of `tail` | publishes the slots |
//! | `tail`, [`Producer::mark`] | release store | first read of `tail` | whoever reads the mark sees the slots committed before it |
//! | `oldest`, [`Producer::overwrite`] | store, release fence, slot words | copy, acquire fence, read of `oldest` | what was copied while it was overwritten is known and thrown away |
//! | `head`, [`Producer::refresh`] | acquire load | write of `head` after the copy | a slot is not overwritten before it was copied |
//! | `state`, [`Lane::claim`] | release store | read of `state` | the identity is complete when it is seen |
//! | `state`, [`Lane::retire`] | release store | read of `state` before `tail` | the last tail is final |
//! | `drained`, [`Lane::reusable`] | acquire load | write of `drained` after the last copy | a lane is claimed again only when empty |
//! | `in_flight`, [`state::InFlight::show`] | release store of its first word | read of that word before the others | they belong to it or to a later one |
//! | `attempts`, [`Producer::drop_record`] | release store | read of `attempts` before what is in flight | no request is both lost and in flight |
//!
//! The mark is stored before the clock is read, and on its way to another processor it can be as late as the
//! store buffer is long, which is far less than the millisecond that
//! the consumer subtracts from its own clock.

#[cfg(all(test, loom))]
mod model;
mod order;
mod producer;
mod state;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub mod steps;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
mod words;

pub(crate) use producer::Producer;
pub use state::Doing;
pub(crate) use state::{Identity, Lane, Slot};

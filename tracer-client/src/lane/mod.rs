//! The lane: a circular buffer of 64-byte slots with one producer (a thread) and one consumer (the
//! log-client, in another process).
//!
//! **Wait-free and crash-safe:** one store publishes a record. A producer that is killed before
//! that store leaves nothing to repair. The code knows neither pointers nor mappings, so a model
//! checker can run it.
//!
//! The consumer is `miot_log_client`, which reads with `pread` and writes with `pwrite`. A system
//! call is at least an acquire and a release. `model` has a consumer with exactly the orders that
//! are necessary.
//!
//! | here | order | pairs with | why |
//! |---|---|---|---|
//! | slot words, [`Slot::set`] | relaxed store | copy of the slots | ordered by the tail; atomic, so that a misbehaving peer is not a data race |
//! | `tail`, [`Producer::commit`], [`Lane::publish`] | release store | first read of `tail` | publishes the slots |
//! | `tail`, [`Producer::mark`], [`Lane::mark`] | release store | first read of `tail` | a reader of the mark sees the slots committed before it |
//! | `oldest`, [`Producer::overwrite`] | store, release fence, slot words | copy, acquire fence, read of `oldest` | slots that were overwritten during the copy are detected and discarded |
//! | `head`, [`Producer::refresh`] | acquire load | write of `head` after the copy | a slot is not overwritten before it was copied |
//! | `state`, [`Lane::claim`] | release store | read of `state` | a reader of the state sees the complete identity |
//! | `state`, [`Lane::retire`] | release store | read of `state` before `tail` | the last tail is final |
//! | `drained`, [`Lane::is_reusable`] | acquire load | write of `drained` after the last copy | only an empty lane is claimed again |
//! | `in_flight`, [`state::InFlight::show`] | release store of its first word | read of that word before the others | the other words belong to the same request or to a later one |
//! | `attempts`, [`Producer::drop_record`] | release store | read of `attempts` before the in-flight entries | no request is both lost and in flight |
//!
//! The mark is stored before the clock is read. The store buffer can delay it on the way to another
//! processor, but by far less than the millisecond that the consumer subtracts from its own clock.

#[cfg(all(any(test, feature = "testing"), not(loom)))]
mod in_memory;
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

pub(crate) use producer::Producer;
pub use state::RequestArgs;
pub(crate) use state::{Lane, LaneOwner, Ring, Slot};

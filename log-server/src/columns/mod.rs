//! Merged rows as record batches.
//!
//! | module | role |
//! |---|---|
//! | [`ops`] | layers and operations as dictionary keys |
//! | [`resolve`] | the file of each event |
//! | [`events`] | record batches of `events` |
//! | `gather`, `repeated` | their columns |
//! | [`side_tables`] | record batches of all other tables |

pub mod events;
mod gather;
pub mod ops;
mod repeated;
pub mod resolve;
pub mod side_tables;

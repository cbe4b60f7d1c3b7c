//! Merged rows as record batches.
//!
//! | module | role |
//! |---|---|
//! | [`ops`] | layers and operations as dictionary keys |
//! | [`resolve`] | the file of each event |
//! | [`events`] | record batches of `events` |
//! | [`side_tables`] | record batches of all other tables |

pub mod events;
pub mod ops;
pub mod resolve;
pub mod side_tables;

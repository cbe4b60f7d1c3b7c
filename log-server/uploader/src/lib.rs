//! Copies the sealed parts of a trace to an object store.
//!
//! A process of its own, so that neither credentials nor a store that hangs are a matter of the
//! log-server. Both work on the trace directory; [`miot_trace_store::upload`] has the rules.
//!
//! | module | role |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`error`] | why parts are not copied |
//! | [`address`] | opens the store of an address |
//! | [`register`] | runs the site's program that adds a part to a table catalog |
//! | [`transfer`] | puts one file, checked against the ledger |
//! | [`uploader`] | puts a trace: manifest, parts, marks |

pub mod cli;

#[cfg(feature = "service")]
pub mod address;
#[cfg(feature = "service")]
pub mod error;
#[cfg(feature = "service")]
pub mod register;
#[cfg(feature = "service")]
pub mod transfer;
#[cfg(feature = "service")]
pub mod uploader;

//! Readers of a trace that is being written.
//!
//! | module | role |
//! |---|---|
//! | [`tail`] | remote readers of merged rows from now on |
//! | `past` | remote readers of earlier rows, and their switch to live rows |
//! | `activity` | live activity for `miot top` and browsers |
//! | `page` | the web page |

pub(crate) mod activity;
pub(crate) mod page;
pub(crate) mod past;
pub mod tail;

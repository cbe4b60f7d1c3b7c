//! What the whole-system tests share.

pub mod fact;
pub mod strace;

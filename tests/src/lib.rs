//! What the whole-system tests share.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod align;
pub mod browser;
pub mod built;
pub mod compare;
pub mod compile;
pub mod crowd;
pub mod daemons;
pub mod delaying;
pub mod fact;
pub mod field;
pub mod forged;
pub mod gluster;
pub mod judge;
pub mod machine;
pub mod mortal;
pub mod namespace;
pub mod node;
pub mod pattern;
pub mod place;
pub mod process;
pub mod proxy;
pub mod random;
pub mod room;
pub mod rough;
pub mod rules;
pub mod scenario;
pub mod steered;
pub mod strace;
pub mod tmux;
pub mod torment;
pub mod trace;
pub mod traced;
pub mod vitals;
pub mod watch;

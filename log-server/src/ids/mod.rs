//! Ids of nodes, processes, streams and files.
//!
//! | module | role |
//! |---|---|
//! | [`catalog`] | ids by name and key, and their limits per node |
//! | [`handles`] | the file of each open handle, and the id of each path |
//! | [`history`] | state that a restarted server reads from its trace |
//!
//! The types here keep numbers of different meaning apart. In the trace each id is a plain integer.

pub mod catalog;
pub mod handles;
pub mod history;

macro_rules! number_types {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number_types! {
    /// Number of a node in this trace, from 0: the key of its name in the dictionary of the events.
    NodeId(usize);
    /// Id of a process in this trace, from 1.
    ProcessId(u64);
    /// Id of a stream in this trace, from 1.
    StreamId(u64);
    /// Number of a connection of this server, never reused.
    ConnId(u64);
    /// Sequence number of a message within its session, from 1.
    Seq(u64);
}

impl ConnId {
    /// Inputs of the server itself, which belong to no connection.
    pub(crate) const SERVER: ConnId = ConnId(0);
    /// Subscriptions of browsers. No connection gets this number.
    pub(crate) const BROWSER: ConnId = ConnId(u64::MAX);
}

impl Seq {
    /// Repeated definitions have no number: they are already durable, or will be sent again.
    pub(crate) const NONE: Seq = Seq(0);
}

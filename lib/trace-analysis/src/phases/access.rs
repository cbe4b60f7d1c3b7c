//! Access mode of operations: direction, collective, file pointer.

use miot_proto::op::{Layer, OpClass, OpInfo};
use serde::{Deserialize, Serialize};

/// Direction of a data transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// How a request specifies its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pointer {
    /// At an explicit offset.
    Explicit,
    /// At the file pointer of the process.
    Individual,
    /// At the file pointer that processes share.
    Shared,
}

/// Access mode of a request (the paper's metadata).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Access {
    pub(crate) direction: Direction,
    pub(crate) pointer: Pointer,
    pub(crate) is_collective: bool,
    pub(crate) is_blocking: bool,
}

impl Access {
    /// Returns the access mode of an operation; `None` if it does not move data of one file.
    pub(crate) fn of(info: &OpInfo) -> Option<Access> {
        let direction = match info.class {
            OpClass::Read => Direction::Read,
            OpClass::Write => Direction::Write,
            OpClass::Copy | OpClass::Sync | OpClass::Meta => return None,
        };
        let name = info.name;
        let layer = Layer::from_number(info.op.layer);
        if layer != Some(Layer::MpiIo) {
            let is_asynchronous = ["aio_", "libaio_", "uring_"].iter().any(|prefix| name.starts_with(prefix));
            let is_explicit = is_asynchronous
                || !matches!(layer, Some(Layer::Posix | Layer::Stdio))
                || ["pread", "pwrite"].iter().any(|prefix| name.starts_with(prefix));
            let pointer = if is_explicit { Pointer::Explicit } else { Pointer::Individual };
            return Some(Access { direction, pointer, is_collective: false, is_blocking: !is_asynchronous });
        }
        let pointer = if name.contains("_at") {
            Pointer::Explicit
        } else if name.contains("_shared") || name.contains("_ordered") {
            Pointer::Shared
        } else {
            Pointer::Individual
        };
        Some(Access {
            direction,
            pointer,
            is_collective: is_collective(info),
            is_blocking: !name.starts_with('i') && !name.ends_with("_end"),
        })
    }
}

/// Returns true if this MPI-IO call separates phases: it is collective, but neither I/O nor the
/// begin of I/O.
pub(crate) fn is_separator(info: &OpInfo) -> bool {
    is_collective(info)
        && matches!(info.class, OpClass::Meta | OpClass::Sync)
        && !info.name.ends_with("_begin")
}

/// Returns true if all processes of a communicator make this MPI-IO call (docs/hooks/mpi.md).
pub(crate) fn is_collective(info: &OpInfo) -> bool {
    let call = info.name.trim_end_matches("_begin").trim_end_matches("_end");
    call.ends_with("_all")
        || call.ends_with("_ordered")
        || matches!(
            call,
            "open"
                | "close"
                | "set_size"
                | "preallocate"
                | "set_view"
                | "set_info"
                | "set_atomicity"
                | "seek_shared"
                | "sync"
        )
}

#[cfg(test)]
mod tests {
    use super::{Access, Direction, Pointer, is_separator};
    use miot_proto::op::by_name;

    #[test]
    fn collective_calls_without_data_separate() {
        let of = |name| is_separator(by_name("mpi-io", name).unwrap());
        for name in ["open", "close", "set_view", "set_size", "sync"] {
            assert!(of(name), "{name}");
        }
        for name in ["write_at_all", "read_all_end", "write_ordered_begin", "write_at", "get_size", "seek"] {
            assert!(!of(name), "{name}");
        }
    }

    #[test]
    fn names_determine_the_access_mode() {
        let of = |layer, name| Access::of(by_name(layer, name).unwrap());
        let access = |direction, pointer, is_collective, is_blocking| {
            Some(Access { direction, pointer, is_collective, is_blocking })
        };
        use Direction::{Read, Write};
        use Pointer::{Explicit, Individual, Shared};
        for (name, expected) in [
            ("read_at", access(Read, Explicit, false, true)),
            ("write_at_all", access(Write, Explicit, true, true)),
            ("iwrite_at", access(Write, Explicit, false, false)),
            ("iread_all", access(Read, Individual, true, false)),
            ("read_all_end", access(Read, Individual, true, false)),
            ("write_shared", access(Write, Shared, false, true)),
            ("write_ordered_end", access(Write, Shared, true, false)),
            ("write", access(Write, Individual, false, true)),
            ("read_all_begin", None),
            ("set_view", None),
        ] {
            assert_eq!(of("mpi-io", name), expected, "{name}");
        }
        assert_eq!(of("posix", "pwritev2"), access(Write, Explicit, false, true));
        assert_eq!(of("posix", "uring_read"), access(Read, Explicit, false, false));
        assert_eq!(of("stdio", "fputs"), access(Write, Individual, false, true));
        assert_eq!(of("client", "read"), access(Read, Explicit, false, true));
        assert_eq!(of("posix", "sendfile"), None);
    }
}

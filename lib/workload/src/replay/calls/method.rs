//! Which call replays a request.

use miot_proto::op::{Layer, OpInfo, posix, stdio};

/// How a request is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayMethod {
    /// By the call that was recorded.
    SameCall,
    /// By another call, which this names.
    OtherCall(&'static str),
    /// Not at all, for this reason.
    Unsupported(&'static str),
}

/// Returns how requests of this operation are replayed.
#[must_use]
pub fn replay_method(info: &OpInfo) -> ReplayMethod {
    let is_posix = info.op.layer == Layer::Posix as u8;
    if !is_posix && info.op.layer != Layer::Stdio as u8 {
        return ReplayMethod::Unsupported("not a call of libc");
    }
    match info.op {
        posix::LIBAIO_READ | posix::URING_READ => ReplayMethod::OtherCall("aio_read"),
        posix::LIBAIO_WRITE | posix::URING_WRITE => ReplayMethod::OtherCall("aio_write"),
        posix::LIBAIO_FSYNC | posix::URING_FSYNC => ReplayMethod::OtherCall("aio_fsync"),
        posix::MKSTEMP => ReplayMethod::OtherCall("open"),
        posix::MKDTEMP => ReplayMethod::OtherCall("mkdir"),
        stdio::FREOPEN => ReplayMethod::OtherCall("fopen"),
        stdio::FGETS | stdio::GETLINE | stdio::GETDELIM | stdio::FSCANF | stdio::SCANF => {
            ReplayMethod::OtherCall("fread")
        }
        stdio::PUTS | stdio::PRINTF => ReplayMethod::OtherCall("fwrite"),
        stdio::POPEN | stdio::PCLOSE => ReplayMethod::Unsupported("commands"),
        stdio::TMPFILE => ReplayMethod::Unsupported("its file has no name"),
        stdio::UNGETC => ReplayMethod::Unsupported("pushes back unknown bytes"),
        _ if info.name.starts_with("uring_") => {
            ReplayMethod::Unsupported("calls of io_uring that move no data")
        }
        _ => ReplayMethod::SameCall,
    }
}

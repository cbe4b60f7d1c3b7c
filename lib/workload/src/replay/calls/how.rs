//! By which call a request is made again.

use miot_proto::op::{Layer, OpInfo};

/// How a request is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// By the same call.
    Same,
    /// By this one.
    As(&'static str),
    /// Not at all, and why.
    Not(&'static str),
}

/// How requests of this operation are made again.
#[must_use]
pub fn how(info: &OpInfo) -> Made {
    let posix = info.op.layer == Layer::Posix as u8;
    if !posix && info.op.layer != Layer::Stdio as u8 {
        return Made::Not("not a call of libc");
    }
    match info.name {
        "libaio_read" | "uring_read" => Made::As("aio_read"),
        "libaio_write" | "uring_write" => Made::As("aio_write"),
        "libaio_fsync" | "uring_fsync" => Made::As("aio_fsync"),
        "freopen" => Made::As("fopen"),
        "mkstemp" => Made::As("open"),
        "mkdtemp" => Made::As("mkdir"),
        "fgets" | "getline" | "getdelim" | "fscanf" | "scanf" => Made::As("fread"),
        "puts" | "printf" => Made::As("fwrite"),
        "popen" | "pclose" => Made::Not("commands"),
        "tmpfile" => Made::Not("its file has no name"),
        "ungetc" => Made::Not("pushes back what is not known"),
        name if name.starts_with("uring_") => Made::Not("calls of io_uring that move no data"),
        _ => Made::Same,
    }
}

//! Classification of operations for the counters.

use super::counters::{MetaKind, SyncKind};
use miot_proto::op::{Layer, OpClass, OpInfo};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Copy,
    Sync(SyncKind),
    Meta(MetaKind),
    /// Sets the size of the file.
    Resize,
    /// Removes the name of the file.
    Remove,
    /// `fcntl`, which duplicates a descriptor or has another effect.
    Fcntl,
    /// Not I/O: a note of the application.
    Note,
}

/// Returns the kind of an operation. `info` is `None` for an operation of a later version.
pub(super) fn kind(layer: Option<Layer>, info: Option<&OpInfo>) -> Kind {
    if layer == Some(Layer::App) {
        return Kind::Note;
    }
    let Some(info) = info else { return Kind::Meta(MetaKind::Other) };
    match info.class {
        OpClass::Read => Kind::Read,
        OpClass::Write => Kind::Write,
        OpClass::Copy => Kind::Copy,
        OpClass::Sync => Kind::Sync(match (layer, info.name) {
            (Some(Layer::MpiIo), "sync") => SyncKind::Fsync,
            (_, "fsync" | "aio_fsync" | "libaio_fsync" | "uring_fsync") => SyncKind::Fsync,
            (_, "fdatasync") => SyncKind::Fdatasync,
            _ => SyncKind::Other,
        }),
        OpClass::Meta => match info.name {
            "open" | "openat" | "creat" | "mkstemp" | "uring_open" | "fopen" | "fdopen" | "freopen"
            | "tmpfile" | "create" => Kind::Meta(MetaKind::Open),
            "dup" | "dup2" | "dup3" => Kind::Meta(MetaKind::Dup),
            "fcntl" => Kind::Fcntl,
            "close" | "fclose" | "uring_close" => Kind::Meta(MetaKind::Close),
            "lseek" | "fseek" | "rewind" | "fsetpos" | "seek" | "seek_shared" => Kind::Meta(MetaKind::Seek),
            "stat" | "fstat" | "lstat" | "fstatat" | "statx" | "uring_statx" | "getattr" => {
                Kind::Meta(MetaKind::Stat)
            }
            "rename" | "renameat" | "renameat2" | "uring_rename" => Kind::Meta(MetaKind::Rename),
            "mmap" => Kind::Meta(MetaKind::Mmap),
            "truncate" | "ftruncate" | "uring_ftruncate" | "set_size" => Kind::Resize,
            "unlink" | "unlinkat" | "remove" | "uring_unlink" | "delete" => Kind::Remove,
            _ => Kind::Meta(MetaKind::Other),
        },
    }
}

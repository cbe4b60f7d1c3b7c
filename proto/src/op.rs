//! Layers and operations: their numbers, their names, and the meaning of the fields of their
//! events.
//!
//! Numbers are append-only: a number is never reused or changed. An unknown number is shown as
//! `layer:number` and never refused, so that old tools can read new traces.

/// The layer of the I/O stack at which a request was recorded, from the application downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Layer {
    /// Phases and annotations of the application.
    App = 1,
    /// MPI-IO calls.
    MpiIo = 2,
    /// C standard I/O (`FILE *`).
    Stdio = 3,
    /// POSIX calls of the program.
    Posix = 4,
    /// Requests of the kernel to a FUSE file system.
    Fuse = 5,
    /// Requests in a file-system client (PVFS, GlusterFS, or a user's own).
    Client = 6,
    /// Block-device requests.
    Block = 7,
}

impl Layer {
    /// All layers, in numerical order.
    pub const ALL: [Layer; 7] =
        [Layer::App, Layer::MpiIo, Layer::Stdio, Layer::Posix, Layer::Fuse, Layer::Client, Layer::Block];

    /// Returns the layer with this number; `None` if this version does not define it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Layer> {
        Layer::ALL.into_iter().find(|l| *l as u8 == number)
    }

    /// Returns the name in traces, filters and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Layer::App => "app",
            Layer::MpiIo => "mpi-io",
            Layer::Stdio => "stdio",
            Layer::Posix => "posix",
            Layer::Fuse => "fuse",
            Layer::Client => "client",
            Layer::Block => "block",
        }
    }

    /// Returns the layer with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Layer> {
        Layer::ALL.into_iter().find(|l| l.name() == name)
    }
}

/// Class of an operation: transfer of file data, sync or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpClass {
    /// Reads file data.
    Read,
    /// Writes file data.
    Write,
    /// Copies data from one file to another (`copy_file_range`, `sendfile`, `splice`).
    Copy,
    /// Makes data durable, or drops caches.
    Sync,
    /// Names, attributes, descriptors, positions.
    Meta,
}

impl OpClass {
    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OpClass::Read => "read",
            OpClass::Write => "write",
            OpClass::Copy => "copy",
            OpClass::Sync => "sync",
            OpClass::Meta => "meta",
        }
    }

    /// Returns true for operations that transfer file data.
    #[must_use]
    pub const fn is_data(self) -> bool {
        matches!(self, OpClass::Read | OpClass::Write | OpClass::Copy)
    }
}

/// Meaning of the words `offset` and `length` in the events of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgMeaning {
    /// Neither is used.
    None,
    /// Byte offset in the file, and requested bytes.
    Range,
    /// No offset; requested bytes, or a new size.
    Length,
    /// Byte offset in the file; no length.
    Offset,
    /// Byte offset as passed, and an argument: `whence` of seeks.
    OffsetArg,
    /// No offset; an argument: flags (low 32 bits) and mode (high 32 bits) of open and similar
    /// calls, mode of chmod and mkdir, command of fcntl, new descriptor of dup2.
    Arg,
}

/// Meaning of a result that is not negative. A negative one is always −errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultMeaning {
    /// Success without a value.
    Zero,
    /// Number of bytes transferred.
    Bytes,
    /// A new descriptor.
    Fd,
    /// A value specific to the operation: a position, an address, a count.
    Value,
}

/// Operation: a layer and a number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// Number of the [`Layer`].
    pub layer: u8,
    /// Number of the operation in its layer.
    pub number: u8,
}

/// Row of the operation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// Layer and number.
    pub op: Op,
    /// Name, unique in its layer.
    pub name: &'static str,
    /// Transfer of data and its direction, sync, or metadata.
    pub class: OpClass,
    /// Maximum number of paths in its events.
    pub paths: u8,
    /// Meaning of `offset` and `length`.
    pub args: ArgMeaning,
    /// Meaning of `result`.
    pub result: ResultMeaning,
}

impl Op {
    /// Returns the table row of this operation; `None` if this version does not define it.
    #[must_use]
    pub fn info(self) -> Option<&'static OpInfo> {
        let table = match Layer::from_number(self.layer)? {
            Layer::App => app::TABLE,
            Layer::MpiIo => mpi_io::TABLE,
            Layer::Stdio => stdio::TABLE,
            Layer::Posix => posix::TABLE,
            Layer::Fuse | Layer::Client | Layer::Block => client::TABLE,
        };
        // Numbers are dense from 1; a test checks this.
        table.get(usize::from(self.number).wrapping_sub(1))
    }

    /// Returns true if this version defines the operation. Cheaper than [`info`](Self::info),
    /// because it is called for each record.
    #[inline]
    #[must_use]
    pub const fn is_defined(self) -> bool {
        /// Number of operations per layer, indexed by layer number. Operation numbers are dense
        /// from 1.
        const DEFINED: [usize; 8] = {
            let client = client::TABLE.len();
            let (app, mpi_io) = (app::TABLE.len(), mpi_io::TABLE.len());
            [0, app, mpi_io, stdio::TABLE.len(), posix::TABLE.len(), client, client, client]
        };
        let layer = self.layer as usize;
        layer < DEFINED.len() && self.number != 0 && self.number as usize <= DEFINED[layer]
    }

    /// Returns the name of the operation; `None` if this version does not define it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.info().map(|i| i.name)
    }

    /// Returns true for an MPI call that communicates and is not I/O (`comm_…`). Such calls are
    /// recorded only if requested.
    #[must_use]
    pub fn is_communication(self) -> bool {
        self.layer == Layer::MpiIo as u8 && self.number >= mpi_io::COMM_SEND.number
    }

    /// Returns true for the end of a split collective of MPI-IO.
    #[must_use]
    pub const fn ends_split(self) -> bool {
        let first = mpi_io::READ_AT_ALL_END.number;
        let is_one = self.number >= first && self.number <= mpi_io::WRITE_ORDERED_END.number;
        // Each begin is followed by its end.
        self.layer == Layer::MpiIo as u8 && is_one && (self.number - first).is_multiple_of(2)
    }

    /// Returns true for a write. Cheaper than [`class`](Self::class): without the names of the
    /// table, which the loader would have to relocate in every program with the posix hook.
    #[inline]
    #[must_use]
    pub const fn is_write(self) -> bool {
        /// A bit per operation number of the layers with tables of their own: app, MPI-IO, STDIO,
        /// POSIX, client.
        const WRITES: [[u64; 4]; 5] = [
            writes(app::TABLE),
            writes(mpi_io::TABLE),
            writes(stdio::TABLE),
            writes(posix::TABLE),
            writes(client::TABLE),
        ];
        let table = match self.layer {
            0 => return false,
            1..=4 => self.layer as usize - 1,
            5..=7 => 4,
            _ => return false,
        };
        WRITES[table][self.number as usize / 64] >> (self.number % 64) & 1 != 0
    }

    /// Returns the class of the operation; unknown operations count as metadata.
    #[must_use]
    pub fn class(self) -> OpClass {
        self.info().map_or(OpClass::Meta, |i| i.class)
    }
}

const fn writes(table: &[OpInfo]) -> [u64; 4] {
    let (mut bits, mut at) = ([0; 4], 0);
    while at < table.len() {
        let number = table[at].op.number;
        bits[number as usize / 64] |= (matches!(table[at].class, OpClass::Write) as u64) << (number % 64);
        at += 1;
    }
    bits
}

/// Returns the rows of all layers with operations of their own. FUSE and block events use the rows
/// of the client layer.
pub fn all_operations() -> impl Iterator<Item = &'static OpInfo> {
    [app::TABLE, mpi_io::TABLE, stdio::TABLE, posix::TABLE, client::TABLE].into_iter().flatten()
}

/// Returns the table row of the operation with this name in this layer. FUSE and block events use
/// the rows of the client layer.
#[must_use]
pub fn by_name(layer: &str, name: &str) -> Option<&'static OpInfo> {
    let layer = Layer::from_name(layer)?;
    all_operations().find(|row| {
        let number = Op { layer: layer as u8, number: row.op.number };
        row.name == name && number.info() == Some(row)
    })
}

macro_rules! operations {
    ($(#[$doc:meta])* $module:ident, $layer:expr; $($number:literal $konst:ident $name:literal $class:ident $paths:literal $args:ident $result:ident;)*) => {
        $(#[$doc])*
        pub mod $module {
            use super::{ArgMeaning, OpClass, Layer, Op, OpInfo, ResultMeaning};
            $(
                #[doc = concat!("`", $name, "`")]
                pub const $konst: Op = Op { layer: $layer as u8, number: $number };
            )*
            pub(super) const TABLE: &[OpInfo] = &[
                $(OpInfo { op: $konst, name: $name, class: OpClass::$class, paths: $paths, args: ArgMeaning::$args, result: ResultMeaning::$result },)*
            ];
        }
    };
}

operations! {
    /// Annotations by the application. `region`: a named part of the run, such as an epoch; its
    /// paths are the name and the attributes (`epoch=3,step=`), to which the argument is appended.
    app, Layer::App;
    1 NOTE "note" Meta 1 None Zero;
    2 PHASE "phase" Meta 1 None Zero;
    3 DEBUG "debug" Meta 2 Arg Zero;
    4 REGION "region" Meta 2 Arg Zero;
}

operations! {
    /// MPI-IO calls (MPI 3.1, chapter 13), named like the function without `MPI_File_`. Offsets and
    /// lengths are bytes. The bytes of a split collective belong to its end. `set_view` has the
    /// displacement as offset and the size of the elementary type as length. `comm_…` are calls
    /// that communicate; the logical time of phases needs them. Their argument is the other
    /// process, and non-blocking and vector variants have the name of the plain call.
    mpi_io, Layer::MpiIo;
    1 OPEN "open" Meta 1 Arg Zero;
    2 CLOSE "close" Meta 0 None Zero;
    3 DELETE "delete" Meta 1 None Zero;
    4 SET_SIZE "set_size" Meta 0 Length Zero;
    5 PREALLOCATE "preallocate" Meta 0 Length Zero;
    6 GET_SIZE "get_size" Meta 0 None Value;
    7 GET_GROUP "get_group" Meta 0 None Zero;
    8 GET_AMODE "get_amode" Meta 0 None Value;
    9 SET_INFO "set_info" Meta 0 None Zero;
    10 GET_INFO "get_info" Meta 0 None Zero;
    11 SET_VIEW "set_view" Meta 0 Range Zero;
    12 GET_VIEW "get_view" Meta 0 Range Zero;
    13 READ_AT "read_at" Read 0 Range Bytes;
    14 READ_AT_ALL "read_at_all" Read 0 Range Bytes;
    15 WRITE_AT "write_at" Write 0 Range Bytes;
    16 WRITE_AT_ALL "write_at_all" Write 0 Range Bytes;
    17 IREAD_AT "iread_at" Read 0 Range Bytes;
    18 IWRITE_AT "iwrite_at" Write 0 Range Bytes;
    19 IREAD_AT_ALL "iread_at_all" Read 0 Range Bytes;
    20 IWRITE_AT_ALL "iwrite_at_all" Write 0 Range Bytes;
    21 READ "read" Read 0 Range Bytes;
    22 READ_ALL "read_all" Read 0 Range Bytes;
    23 WRITE "write" Write 0 Range Bytes;
    24 WRITE_ALL "write_all" Write 0 Range Bytes;
    25 IREAD "iread" Read 0 Range Bytes;
    26 IWRITE "iwrite" Write 0 Range Bytes;
    27 IREAD_ALL "iread_all" Read 0 Range Bytes;
    28 IWRITE_ALL "iwrite_all" Write 0 Range Bytes;
    29 SEEK "seek" Meta 0 OffsetArg Zero;
    30 GET_POSITION "get_position" Meta 0 None Value;
    31 GET_BYTE_OFFSET "get_byte_offset" Meta 0 Offset Value;
    32 READ_SHARED "read_shared" Read 0 Range Bytes;
    33 WRITE_SHARED "write_shared" Write 0 Range Bytes;
    34 IREAD_SHARED "iread_shared" Read 0 Range Bytes;
    35 IWRITE_SHARED "iwrite_shared" Write 0 Range Bytes;
    36 READ_ORDERED "read_ordered" Read 0 Range Bytes;
    37 WRITE_ORDERED "write_ordered" Write 0 Range Bytes;
    38 SEEK_SHARED "seek_shared" Meta 0 OffsetArg Zero;
    39 GET_POSITION_SHARED "get_position_shared" Meta 0 None Value;
    40 READ_AT_ALL_BEGIN "read_at_all_begin" Meta 0 Range Zero;
    41 READ_AT_ALL_END "read_at_all_end" Read 0 Range Bytes;
    42 WRITE_AT_ALL_BEGIN "write_at_all_begin" Meta 0 Range Zero;
    43 WRITE_AT_ALL_END "write_at_all_end" Write 0 Range Bytes;
    44 READ_ALL_BEGIN "read_all_begin" Meta 0 Range Zero;
    45 READ_ALL_END "read_all_end" Read 0 Range Bytes;
    46 WRITE_ALL_BEGIN "write_all_begin" Meta 0 Range Zero;
    47 WRITE_ALL_END "write_all_end" Write 0 Range Bytes;
    48 READ_ORDERED_BEGIN "read_ordered_begin" Meta 0 Range Zero;
    49 READ_ORDERED_END "read_ordered_end" Read 0 Range Bytes;
    50 WRITE_ORDERED_BEGIN "write_ordered_begin" Meta 0 Range Zero;
    51 WRITE_ORDERED_END "write_ordered_end" Write 0 Range Bytes;
    52 GET_TYPE_EXTENT "get_type_extent" Meta 0 None Value;
    53 SET_ATOMICITY "set_atomicity" Meta 0 Arg Zero;
    54 GET_ATOMICITY "get_atomicity" Meta 0 None Value;
    55 SYNC "sync" Sync 0 None Zero;
    56 COMM_SEND "comm_send" Meta 0 Arg Zero;
    57 COMM_RECV "comm_recv" Meta 0 Arg Zero;
    58 COMM_SENDRECV "comm_sendrecv" Meta 0 Arg Zero;
    59 COMM_START "comm_start" Meta 0 None Zero;
    60 COMM_BARRIER "comm_barrier" Meta 0 None Zero;
    61 COMM_BCAST "comm_bcast" Meta 0 None Zero;
    62 COMM_GATHER "comm_gather" Meta 0 None Zero;
    63 COMM_SCATTER "comm_scatter" Meta 0 None Zero;
    64 COMM_ALLGATHER "comm_allgather" Meta 0 None Zero;
    65 COMM_ALLTOALL "comm_alltoall" Meta 0 None Zero;
    66 COMM_REDUCE "comm_reduce" Meta 0 None Zero;
    67 COMM_ALLREDUCE "comm_allreduce" Meta 0 None Zero;
    68 COMM_REDUCE_SCATTER "comm_reduce_scatter" Meta 0 None Zero;
    69 COMM_SCAN "comm_scan" Meta 0 None Zero;
}

operations! {
    /// POSIX calls, named like the function without the suffix `64`.
    posix, Layer::Posix;
    1 OPEN "open" Meta 1 Arg Fd;
    2 OPENAT "openat" Meta 1 Arg Fd;
    3 CREAT "creat" Meta 1 Arg Fd;
    4 CLOSE "close" Meta 0 None Zero;
    5 READ "read" Read 0 Range Bytes;
    6 WRITE "write" Write 0 Range Bytes;
    7 PREAD "pread" Read 0 Range Bytes;
    8 PWRITE "pwrite" Write 0 Range Bytes;
    9 READV "readv" Read 0 Range Bytes;
    10 WRITEV "writev" Write 0 Range Bytes;
    11 PREADV "preadv" Read 0 Range Bytes;
    12 PWRITEV "pwritev" Write 0 Range Bytes;
    13 PREADV2 "preadv2" Read 0 Range Bytes;
    14 PWRITEV2 "pwritev2" Write 0 Range Bytes;
    15 LSEEK "lseek" Meta 0 OffsetArg Value;
    16 FSYNC "fsync" Sync 0 None Zero;
    17 FDATASYNC "fdatasync" Sync 0 None Zero;
    18 SYNC_FILE_RANGE "sync_file_range" Sync 0 Range Zero;
    19 SYNCFS "syncfs" Sync 0 None Zero;
    20 SYNC "sync" Sync 0 None Zero;
    21 TRUNCATE "truncate" Meta 1 Length Zero;
    22 FTRUNCATE "ftruncate" Meta 0 Length Zero;
    23 FALLOCATE "fallocate" Meta 0 Range Zero;
    24 POSIX_FALLOCATE "posix_fallocate" Meta 0 Range Zero;
    25 POSIX_FADVISE "posix_fadvise" Meta 0 Range Zero;
    26 DUP "dup" Meta 0 None Fd;
    27 DUP2 "dup2" Meta 0 Arg Fd;
    28 DUP3 "dup3" Meta 0 Arg Fd;
    29 FCNTL "fcntl" Meta 0 Arg Value;
    30 STAT "stat" Meta 1 None Zero;
    31 FSTAT "fstat" Meta 0 None Zero;
    32 LSTAT "lstat" Meta 1 None Zero;
    33 FSTATAT "fstatat" Meta 1 Arg Zero;
    34 STATX "statx" Meta 1 Arg Zero;
    35 STATFS "statfs" Meta 1 None Zero;
    36 FSTATFS "fstatfs" Meta 0 None Zero;
    37 STATVFS "statvfs" Meta 1 None Zero;
    38 FSTATVFS "fstatvfs" Meta 0 None Zero;
    39 ACCESS "access" Meta 1 Arg Zero;
    40 FACCESSAT "faccessat" Meta 1 Arg Zero;
    41 EUIDACCESS "euidaccess" Meta 1 Arg Zero;
    42 MKDIR "mkdir" Meta 1 Arg Zero;
    43 MKDIRAT "mkdirat" Meta 1 Arg Zero;
    44 RMDIR "rmdir" Meta 1 None Zero;
    45 UNLINK "unlink" Meta 1 None Zero;
    46 UNLINKAT "unlinkat" Meta 1 Arg Zero;
    47 REMOVE "remove" Meta 1 None Zero;
    48 RENAME "rename" Meta 2 None Zero;
    49 RENAMEAT "renameat" Meta 2 None Zero;
    50 RENAMEAT2 "renameat2" Meta 2 Arg Zero;
    51 LINK "link" Meta 2 None Zero;
    52 LINKAT "linkat" Meta 2 Arg Zero;
    53 SYMLINK "symlink" Meta 2 None Zero;
    54 SYMLINKAT "symlinkat" Meta 2 None Zero;
    55 READLINK "readlink" Meta 1 Length Value;
    56 READLINKAT "readlinkat" Meta 1 Length Value;
    57 OPENDIR "opendir" Meta 1 None Fd;
    58 FDOPENDIR "fdopendir" Meta 0 None Fd;
    59 READDIR "readdir" Meta 0 None Value;
    60 REWINDDIR "rewinddir" Meta 0 None Zero;
    61 SEEKDIR "seekdir" Meta 0 Arg Zero;
    62 CLOSEDIR "closedir" Meta 0 None Zero;
    63 SCANDIR "scandir" Meta 1 None Value;
    64 GETDENTS "getdents" Meta 0 Length Value;
    65 CHMOD "chmod" Meta 1 Arg Zero;
    66 FCHMOD "fchmod" Meta 0 Arg Zero;
    67 FCHMODAT "fchmodat" Meta 1 Arg Zero;
    68 CHOWN "chown" Meta 1 Arg Zero;
    69 FCHOWN "fchown" Meta 0 Arg Zero;
    70 LCHOWN "lchown" Meta 1 Arg Zero;
    71 FCHOWNAT "fchownat" Meta 1 Arg Zero;
    72 UTIME "utime" Meta 1 None Zero;
    73 UTIMES "utimes" Meta 1 None Zero;
    74 FUTIMES "futimes" Meta 0 None Zero;
    75 LUTIMES "lutimes" Meta 1 None Zero;
    76 FUTIMESAT "futimesat" Meta 1 None Zero;
    77 UTIMENSAT "utimensat" Meta 1 Arg Zero;
    78 FUTIMENS "futimens" Meta 0 None Zero;
    79 GETXATTR "getxattr" Meta 2 Length Value;
    80 LGETXATTR "lgetxattr" Meta 2 Length Value;
    81 FGETXATTR "fgetxattr" Meta 1 Length Value;
    82 SETXATTR "setxattr" Meta 2 Length Zero;
    83 LSETXATTR "lsetxattr" Meta 2 Length Zero;
    84 FSETXATTR "fsetxattr" Meta 1 Length Zero;
    85 LISTXATTR "listxattr" Meta 1 Length Value;
    86 LLISTXATTR "llistxattr" Meta 1 Length Value;
    87 FLISTXATTR "flistxattr" Meta 0 Length Value;
    88 REMOVEXATTR "removexattr" Meta 2 None Zero;
    89 LREMOVEXATTR "lremovexattr" Meta 2 None Zero;
    90 FREMOVEXATTR "fremovexattr" Meta 1 None Zero;
    91 MMAP "mmap" Meta 0 Range Value;
    92 MUNMAP "munmap" Meta 0 Length Zero;
    93 MSYNC "msync" Sync 0 Length Zero;
    94 SENDFILE "sendfile" Copy 0 Range Bytes;
    95 COPY_FILE_RANGE "copy_file_range" Copy 0 Range Bytes;
    96 SPLICE "splice" Copy 0 Range Bytes;
    97 MKNOD "mknod" Meta 1 Arg Zero;
    98 MKNODAT "mknodat" Meta 1 Arg Zero;
    99 MKFIFO "mkfifo" Meta 1 Arg Zero;
    100 MKFIFOAT "mkfifoat" Meta 1 Arg Zero;
    101 MKSTEMP "mkstemp" Meta 1 Arg Fd;
    102 MKDTEMP "mkdtemp" Meta 1 None Zero;
    103 CHDIR "chdir" Meta 1 None Zero;
    104 FCHDIR "fchdir" Meta 0 None Zero;
    105 FLOCK "flock" Meta 0 Arg Zero;
    106 LOCKF "lockf" Meta 0 Length Zero;
    107 AIO_READ "aio_read" Read 0 Range Bytes;
    108 AIO_WRITE "aio_write" Write 0 Range Bytes;
    109 AIO_FSYNC "aio_fsync" Sync 0 None Zero;
    110 CLOSE_RANGE "close_range" Meta 0 Arg Zero;
    111 LIBAIO_READ "libaio_read" Read 0 Range Bytes;
    112 LIBAIO_WRITE "libaio_write" Write 0 Range Bytes;
    113 LIBAIO_FSYNC "libaio_fsync" Sync 0 None Zero;
    114 URING_READ "uring_read" Read 0 Range Bytes;
    115 URING_WRITE "uring_write" Write 0 Range Bytes;
    116 URING_FSYNC "uring_fsync" Sync 0 None Zero;
    117 URING_SYNC_FILE_RANGE "uring_sync_file_range" Sync 0 Range Zero;
    118 URING_OPEN "uring_open" Meta 0 Arg Fd;
    119 URING_CLOSE "uring_close" Meta 0 None Zero;
    120 URING_STATX "uring_statx" Meta 0 Arg Zero;
    121 URING_FALLOCATE "uring_fallocate" Meta 0 Range Zero;
    122 URING_FADVISE "uring_fadvise" Meta 0 Range Zero;
    123 URING_FTRUNCATE "uring_ftruncate" Meta 0 Length Zero;
    124 URING_SPLICE "uring_splice" Copy 0 Range Bytes;
    125 URING_RENAME "uring_rename" Meta 0 Arg Zero;
    126 URING_UNLINK "uring_unlink" Meta 0 Arg Zero;
    127 URING_MKDIR "uring_mkdir" Meta 0 Arg Zero;
    128 URING_SYMLINK "uring_symlink" Meta 0 None Zero;
    129 URING_LINK "uring_link" Meta 0 Arg Zero;
    130 URING_GETXATTR "uring_getxattr" Meta 0 Length Value;
    131 URING_SETXATTR "uring_setxattr" Meta 0 Length Zero;
    132 URING_UNSEEN "uring_unseen" Meta 0 None Value;
}

operations! {
    /// C standard I/O calls. Offsets are positions of the stream, not of its descriptor.
    stdio, Layer::Stdio;
    1 FOPEN "fopen" Meta 1 Arg Fd;
    2 FDOPEN "fdopen" Meta 0 Arg Fd;
    3 FREOPEN "freopen" Meta 1 Arg Fd;
    4 FCLOSE "fclose" Meta 0 None Zero;
    5 FREAD "fread" Read 0 Range Bytes;
    6 FWRITE "fwrite" Write 0 Range Bytes;
    7 FPRINTF "fprintf" Write 0 Range Bytes;
    8 FSCANF "fscanf" Read 0 Range Bytes;
    9 FGETS "fgets" Read 0 Range Bytes;
    10 FPUTS "fputs" Write 0 Range Bytes;
    11 FGETC "fgetc" Read 0 Range Bytes;
    12 FPUTC "fputc" Write 0 Range Bytes;
    13 GETLINE "getline" Read 0 Range Bytes;
    14 GETDELIM "getdelim" Read 0 Range Bytes;
    15 UNGETC "ungetc" Meta 0 None Value;
    16 FSEEK "fseek" Meta 0 OffsetArg Zero;
    17 FTELL "ftell" Meta 0 None Value;
    18 REWIND "rewind" Meta 0 None Zero;
    19 FGETPOS "fgetpos" Meta 0 None Zero;
    20 FSETPOS "fsetpos" Meta 0 Offset Zero;
    21 FFLUSH "fflush" Sync 0 None Zero;
    22 PUTS "puts" Write 0 Range Bytes;
    23 PRINTF "printf" Write 0 Range Bytes;
    24 SCANF "scanf" Read 0 Range Bytes;
    25 TMPFILE "tmpfile" Meta 0 None Fd;
    26 POPEN "popen" Meta 1 None Fd;
    27 PCLOSE "pclose" Meta 0 None Value;
}

operations! {
    /// Requests in a file-system client, and requests of the kernel to a FUSE file system.
    client, Layer::Client;
    1 LOOKUP "lookup" Meta 1 None Zero;
    2 GETATTR "getattr" Meta 1 None Zero;
    3 SETATTR "setattr" Meta 1 Arg Zero;
    4 CREATE "create" Meta 1 Arg Zero;
    5 OPEN "open" Meta 1 Arg Zero;
    6 CLOSE "close" Meta 0 None Zero;
    7 READ "read" Read 0 Range Bytes;
    8 WRITE "write" Write 0 Range Bytes;
    9 FLUSH "flush" Sync 0 None Zero;
    10 FSYNC "fsync" Sync 0 None Zero;
    11 TRUNCATE "truncate" Meta 1 Length Zero;
    12 FALLOCATE "fallocate" Meta 0 Range Zero;
    13 MKDIR "mkdir" Meta 1 Arg Zero;
    14 RMDIR "rmdir" Meta 1 None Zero;
    15 UNLINK "unlink" Meta 1 None Zero;
    16 RENAME "rename" Meta 2 Arg Zero;
    17 LINK "link" Meta 2 None Zero;
    18 SYMLINK "symlink" Meta 2 None Zero;
    19 READLINK "readlink" Meta 1 None Value;
    20 MKNOD "mknod" Meta 1 Arg Zero;
    21 OPENDIR "opendir" Meta 1 None Zero;
    22 READDIR "readdir" Meta 0 Range Value;
    23 CLOSEDIR "closedir" Meta 0 None Zero;
    24 FSYNCDIR "fsyncdir" Sync 0 None Zero;
    25 STATFS "statfs" Meta 1 None Zero;
    26 GETXATTR "getxattr" Meta 2 Length Value;
    27 SETXATTR "setxattr" Meta 2 Length Zero;
    28 LISTXATTR "listxattr" Meta 1 Length Value;
    29 REMOVEXATTR "removexattr" Meta 2 None Zero;
    30 ACCESS "access" Meta 1 Arg Zero;
    31 LOCK "lock" Meta 0 Range Zero;
    32 IOCTL "ioctl" Meta 0 Arg Value;
    33 COPY_RANGE "copy_range" Copy 0 Range Bytes;
    34 SEEK "seek" Meta 0 OffsetArg Value;
    35 READDIRPLUS "readdirplus" Meta 0 Range Value;
    36 DISCARD "discard" Meta 0 Range Zero;
    37 ZEROFILL "zerofill" Meta 0 Range Zero;
    38 XATTROP "xattrop" Meta 2 None Zero;
}

#[cfg(test)]
mod tests {
    use super::{Op, all_operations, by_name, client, mpi_io, posix, stdio};
    use std::collections::HashSet;

    #[test]
    fn numbers_are_dense_and_names_unique_per_layer() {
        let mut names = HashSet::new();
        let mut next = std::collections::HashMap::new();
        for row in all_operations() {
            let expected = next.entry(row.op.layer).or_insert(1u8);
            assert_eq!(row.op.number, *expected, "{}", row.name);
            *expected += 1;
            assert!(names.insert((row.op.layer, row.name)), "duplicate name {}", row.name);
            assert_eq!(row.op.info(), Some(row));
        }
    }

    #[test]
    fn writes_are_those_of_the_table() {
        for layer in 0..=u8::MAX {
            for number in 0..=u8::MAX {
                let op = Op { layer, number };
                assert_eq!(op.is_write(), op.class() == super::OpClass::Write, "{op:?}");
            }
        }
    }

    #[test]
    fn same_name_in_two_layers_is_two_operations() {
        let found = |layer, name| by_name(layer, name).map(|row| row.op);
        assert_eq!(found("posix", "read"), Some(posix::READ));
        assert_eq!(found("mpi-io", "read"), Some(mpi_io::READ));
        assert_eq!(found("fuse", "read"), Some(client::READ));
        assert_eq!(found("stdio", "fread"), Some(stdio::FREAD));
        assert_eq!((found("stdio", "read"), found("x", "read"), found("posix", "4:250")), (None, None, None));
    }

    #[test]
    fn unknown_numbers_have_no_name_and_no_data() {
        for op in [
            Op { layer: 0, number: 1 },
            Op { layer: 4, number: 0 },
            Op { layer: 4, number: 255 },
            Op { layer: 200, number: 1 },
        ] {
            assert_eq!(op.name(), None);
            assert!(!op.class().is_data());
        }
    }
}

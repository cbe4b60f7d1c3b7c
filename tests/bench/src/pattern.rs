//! Streams of synthetic requests: operations of programs, with times like those of a parallel file
//! system.

use miot_proto::batch::Columns;
use miot_proto::event::{Event, Ext, NONE, RecordKind};
use miot_proto::op::{Op, posix};

/// Operations of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// fio, sequential: consecutive reads of 4 KiB.
    Sequential,
    /// fio, random: 16 files, reads and writes of 4 to 32 KiB anywhere in 4 GiB. The worst case for
    /// an encoding by column.
    Mixed,
    /// IOR: each rank writes blocks of 16 MiB in transfers of 1 MiB to one file, strided by rank,
    /// and then reads them.
    Ior,
    /// A metadata storm: each file is created, written, closed, stat'ed and removed.
    Metadata,
}

impl Pattern {
    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Sequential => "fio, sequential reads",
            Pattern::Mixed => "fio, random mixed requests",
            Pattern::Ior => "IOR-like, strided writes and reads",
            Pattern::Metadata => "metadata storm",
        }
    }
}

/// Ranks of the IOR-like pattern.
const RANKS: u64 = 64;
/// Transfers in a block of the IOR-like pattern.
const TRANSFERS: u64 = 16;
/// Bytes of a transfer.
const TRANSFER: u64 = 1 << 20;

/// Requests of one stream.
pub(crate) struct Rows {
    pattern: Pattern,
    stream: u64,
    count: u64,
    time: i64,
    seed: u64,
    path: String,
}

struct Request {
    op: Op,
    handle: u64,
    offset: u64,
    length: u64,
    result: i64,
}

impl Rows {
    /// Creates stream number `stream`, whose first request completes after `time`, nanoseconds
    /// since 1970.
    pub(crate) fn new(pattern: Pattern, stream: u64, time: i64) -> Rows {
        let seed = 0x9e37_79b9_7f4a_7c15 ^ (stream + 1).wrapping_mul(0xd134_2543_de82_ef95);
        Rows { pattern, stream, count: 0, time, seed, path: String::new() }
    }

    /// Completion time of the last request.
    pub(crate) fn time(&self) -> i64 {
        self.time
    }

    /// Appends the next request. They are about a microsecond apart.
    pub(crate) fn push_to(&mut self, columns: &mut Columns) {
        let number = self.count;
        let random = self.random();
        self.time += 500 + (random % 1000) as i64;
        // Most are fast, one in 16 takes up to 16 times longer.
        let duration = 400 + (random >> 10) % if (random >> 20).is_multiple_of(16) { 8000 } else { 500 };
        self.path.clear();
        let request = self.request(number, random >> 24);
        let path = std::mem::take(&mut self.path);
        let ext = Ext { path1: path.as_bytes(), ..Ext::default() };
        let event = Event {
            op: request.op,
            request: number as u32 + 1,
            enclosing: 0,
            end: 0,
            duration: 0,
            flags: 0,
            handle: request.handle,
            offset: request.offset,
            length: request.length,
            result: request.result,
        };
        let ext = (!path.is_empty()).then_some(&ext);
        columns.push(RecordKind::Request as u8, number, self.time, duration, &event, ext);
        self.path = path;
        self.count += 1;
    }

    fn request(&mut self, number: u64, random: u64) -> Request {
        let io = |op, handle, offset, length| Request { op, handle, offset, length, result: length as i64 };
        let meta = |op, handle, length, result| Request { op, handle, offset: NONE, length, result };
        match self.pattern {
            Pattern::Sequential | Pattern::Ior if number == 0 => {
                self.name("shared");
                meta(posix::OPEN, 1, 2, 3)
            }
            Pattern::Mixed if number < 16 => {
                self.name(&format!("data.{number}"));
                meta(posix::OPEN, number + 1, 2, 3 + number as i64)
            }
            Pattern::Sequential => io(posix::READ, 1, (number - 1) * 4096, 4096),
            Pattern::Mixed => {
                let op = if random.is_multiple_of(4) { posix::PWRITE } else { posix::PREAD };
                io(op, 1 + (random >> 2 & 15), (random >> 6 & 0xf_ffff) * 4096, 4096 << (random >> 26 & 3))
            }
            Pattern::Ior => {
                let transfer = number - 1;
                let (block, within) = (transfer / TRANSFERS, transfer % TRANSFERS);
                let place = (block % 64 * RANKS + self.stream % RANKS) * TRANSFERS + within;
                let op = if block / 64 % 2 == 0 { posix::PWRITE } else { posix::PREAD };
                io(op, 1, place * TRANSFER, TRANSFER)
            }
            Pattern::Metadata => {
                let (file, step) = (number / 5, number % 5);
                match step {
                    0 => {
                        self.name(&format!("dir.{}/file.{file:08}", file % 100));
                        meta(posix::OPEN, file + 1, 0o102, 3)
                    }
                    1 => io(posix::WRITE, file + 1, 0, 100 + random % 4000),
                    2 => meta(posix::CLOSE, file + 1, NONE, 0),
                    3 => {
                        self.name(&format!("dir.{}/file.{file:08}", file % 100));
                        meta(posix::STAT, 0, NONE, 0)
                    }
                    _ => {
                        self.name(&format!("dir.{}/file.{file:08}", file % 100));
                        meta(posix::UNLINK, 0, NONE, 0)
                    }
                }
            }
        }
    }

    fn name(&mut self, name: &str) {
        self.path = format!("/scratch/project/run.{}/{name}", self.stream);
    }

    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }
}

//! Parameters of the seven programs.
//!
//! Table 1 gives processor time, size of the data set, bytes moved and number of requests. Table 2
//! gives rates of reads and writes, from which the shares of reads and writes are derived. In bytes
//! the two tables disagree by 3 to 8.5 %. With 10^6 bytes per MB in Table 1 and 2^20 in Table 2
//! they disagree by −1.6 to +3.5 %, so they are read in this way here. Two cells of Table 1 are
//! exchanged (average sizes of venus and upw), and one of Table 2 is ten times too small (bytes
//! written by upw): the other cells contradict them. See `docs/guide/simulate.md`.
//!
//! The parameters that neither the tables nor the text contain are assumptions: `input`, `output`,
//! `burst`, and the files of programs other than venus.

use serde::Serialize;

/// Model of a program. Sizes are in bytes, times in nanoseconds of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Model {
    /// Name in the paper.
    pub name: &'static str,
    /// Description of the computation.
    pub what: &'static str,
    /// Table 1: running time.
    pub cpu: u64,
    /// Table 1: total data size. upw's, which is missing, is the number of bytes it moves.
    pub data: u64,
    /// Table 1: total I/O done.
    pub moved: u64,
    /// Table 1: number of I/Os.
    pub requests: u64,
    /// Table 2: reads and writes per second.
    pub per_second: [f64; 2],
    /// Table 2: MB (2^20 bytes) per second, read and written.
    pub rates: [f64; 2],
    /// Number of large files. Six for venus (section 6.2), else an assumption.
    pub files: u32,
    /// Order of requests within a pass over the files.
    pub order: Order,
    /// Section 5.1: purpose of the requests.
    pub kind: Kind,
    /// True if requests are asynchronous (section 6.2: only les).
    pub is_async: bool,
    /// Bytes per second of processor time during the I/O of a cycle; the rest of the cycle is
    /// computation. An assumption (section 5.1: more than 200 MB/s over several seconds for
    /// programs that stage data).
    pub burst: f64,
}

/// Order in which a program accesses its files in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// One file after the other, each from begin to end.
    Sequential,
    /// The next file with each request, each file from begin to end (section 4.2: venus).
    Interleaved,
    /// Blocks of a sparse matrix: some are skipped, others are accessed again.
    Sparse,
}

/// Purpose of the requests (section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Reads at the beginning, writes at the end; results are written throughout the run.
    Required,
    /// Reads and writes in each cycle the data that does not fit into memory.
    Staging,
}

const SECOND: u64 = 1_000_000_000;
const MB: f64 = 1e6;

const fn mb(value: f64) -> u64 {
    (value * MB) as u64
}

/// All seven models, by name.
pub const MODELS: [Model; 7] = [
    Model {
        name: "bvi",
        what: "blade-vortex interaction, made for the SSD: small requests",
        cpu: 1258 * SECOND,
        data: mb(171.0),
        moved: mb(22_835.0),
        requests: 1_380_457,
        per_second: [913.0, 185.0],
        rates: [12.3, 5.34],
        files: 4,
        order: Order::Sequential,
        kind: Kind::Staging,
        is_async: false,
        burst: 60.0 * MB,
    },
    Model {
        name: "ccm",
        what: "Community Climate Model: part of its data in memory",
        cpu: 205 * SECOND,
        data: mb(11.6),
        moved: mb(1812.0),
        requests: 54_125,
        per_second: [135.0, 128.0],
        rates: [4.25, 3.96],
        files: 2,
        order: Order::Sequential,
        kind: Kind::Staging,
        is_async: false,
        burst: 40.0 * MB,
    },
    Model {
        name: "forma",
        what: "structural dynamics with sparse matrices in blocks",
        cpu: 206 * SECOND,
        data: mb(30.0),
        moved: mb(15_155.0),
        requests: 475_826,
        per_second: [1990.0, 300.0],
        rates: [62.2, 5.68],
        files: 3,
        order: Order::Sparse,
        kind: Kind::Staging,
        is_async: false,
        burst: 220.0 * MB,
    },
    Model {
        name: "gcm",
        what: "Global Climate Model: in memory, writes results",
        cpu: 1897 * SECOND,
        data: mb(229.0),
        moved: mb(266.2),
        requests: 7953,
        per_second: [0.34, 3.85],
        rates: [0.0107, 0.12],
        files: 1,
        order: Order::Sequential,
        kind: Kind::Required,
        is_async: false,
        burst: 10.0 * MB,
    },
    Model {
        name: "les",
        what: "large eddy simulation: asynchronous requests",
        cpu: 146 * SECOND,
        data: mb(224.0),
        moved: mb(7803.0),
        requests: 22_384,
        per_second: [74.0, 81.0],
        rates: [24.0, 25.2],
        files: 4,
        order: Order::Sequential,
        kind: Kind::Staging,
        is_async: true,
        burst: 200.0 * MB,
    },
    Model {
        name: "upw",
        what: "polynomial factorization: reads a little, computes, writes",
        cpu: 596 * SECOND,
        data: mb(61.5),
        moved: mb(61.5),
        requests: 1840,
        per_second: [0.037, 3.05],
        // The second figure is printed as 0.0100, but 3.05 writes of 32.7 KB are 0.0974.
        rates: [0.0012, 0.0974],
        files: 1,
        order: Order::Sequential,
        kind: Kind::Required,
        is_async: false,
        burst: 10.0 * MB,
    },
    Model {
        name: "venus",
        what: "atmosphere of Venus: little memory, stages six files",
        cpu: 379 * SECOND,
        data: mb(55.2),
        moved: mb(16_712.0),
        requests: 34_904,
        per_second: [60.0, 32.0],
        rates: [26.4, 14.7],
        files: 6,
        order: Order::Interleaved,
        kind: Kind::Staging,
        is_async: false,
        burst: 200.0 * MB,
    },
];

/// Returns the model of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}

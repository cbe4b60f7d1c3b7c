//! A single measurement, described by options.

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use miot_proto::units;
use miot_workload::suite::{Cache, Interface, Operation, Sync, Verify};
use miot_workload::{Pattern, Run, Suite};
use std::time::Duration;

/// One measurement instead of a suite.
#[derive(Args, Debug)]
pub(super) struct SingleMeasurement {
    /// Run one measurement with this pattern instead of a suite
    #[arg(long, value_enum, value_name = "NAME")]
    pattern: Option<Shape>,
    /// Block size in bytes, e.g. 64K or "1 MiB"
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "1 MiB")]
    block: u64,
    /// Blocks per process
    #[arg(long, value_name = "N", default_value_t = 64)]
    count: u64,
    /// Bytes from one block of a process to its next [default: as small as possible]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    stride: Option<u64>,
    /// Operation: write, re-write, read, re-read, read-modify-write, mixed, or none (the benchmark
    /// itself)
    #[arg(long, value_name = "NAME", value_parser = named::<Operation>, default_value = "write")]
    operation: Operation,
    /// Use one file per process
    #[arg(long)]
    file_per_process: bool,
    /// Page cache: keep, drop (before the measurement) or direct (bypass)
    #[arg(long, value_name = "HOW", value_parser = named::<Cache>, default_value = "keep")]
    cache: Cache,
    /// Sync data: never, end or each
    #[arg(long, value_name = "WHEN", value_parser = named::<Sync>, default_value = "never")]
    sync: Sync,
    /// Verify the data read: none, ends or all
    #[arg(long, value_name = "HOW MUCH", value_parser = named::<Verify>, default_value = "ends")]
    verify: Verify,
    /// Interface: posix or mpi-io
    #[arg(long, value_name = "NAME", value_parser = named::<Interface>, default_value = "posix")]
    interface: Interface,
    /// Use collective calls of MPI-IO
    #[arg(long)]
    collective: bool,
    /// Size of the buffer that each process reuses for its data; 0: as small as possible
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "0")]
    memory: u64,
    /// Use buffers that are not page-aligned, like ordinary arrays in programs
    #[arg(long)]
    unaligned: bool,
    /// Consecutive repetitions that access one file, each after the previous one
    #[arg(long, value_name = "N", default_value_t = 1)]
    phases: u64,
    /// With --phases: bytes between the starts of consecutive repetitions
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    advance: Option<u64>,
    /// Consecutive blocks before the process computes
    #[arg(long, value_name = "N", default_value_t = 0, requires = "compute")]
    burst: u64,
    /// Computing time after each burst, e.g. 10ms
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    compute: Duration,
}

/// Patterns that a block, a count and a stride describe. A suite offers all patterns.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    Sequential,
    Segmented,
    Strided,
    RankZero,
}

pub(super) fn bytes(text: &str) -> Result<u64, String> {
    units::parse_bytes(text).map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text).map_err(|error| error.to_string())
}

/// Parses a value by its name in suites.
pub(crate) fn named<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    T::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text))
        .map_err(|error| error.to_string())
}

impl SingleMeasurement {
    pub(super) fn suite(&self) -> anyhow::Result<Suite> {
        let shape = self.pattern.context(
            "nothing to measure: expected a suite (a file, or --preset classic) or --pattern NAME",
        )?;
        let SingleMeasurement { block, count, stride, .. } = *self;
        let pattern = match shape {
            Shape::Sequential => Pattern::Sequential { block, count },
            Shape::Segmented => Pattern::Segmented { block, count },
            Shape::Strided => Pattern::Strided { block, count, stride },
            Shape::RankZero => Pattern::RankZero { block, count },
        };
        let run = Run {
            name: pattern.name().to_owned(),
            operation: self.operation,
            file_per_process: self.file_per_process,
            cache: self.cache,
            sync: self.sync,
            verify: self.verify,
            burst: self.burst,
            compute: self.compute,
            interface: if self.collective { Interface::MpiIo } else { self.interface },
            collective: self.collective,
            memory: self.memory,
            aligned: !self.unaligned,
            phases: self.phases,
            advance: self.advance,
            ..Run::new("", pattern)
        };
        Ok(Suite::with_runs(vec![run]))
    }
}

//! All figures of a row, by name. Darshan's counters have Darshan's names in lower case, without
//! the name of the module.

use super::counters::BIN_NAMES;
use super::table::CounterRow;
use super::{Quantiles, Side, Span};
use miot_proto::event::flag;
use miot_proto::op::Layer;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// No value.
    None,
    /// A count.
    Int(u64),
    /// A measure.
    Float(f64),
    /// A name.
    Text(String),
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        if value.is_finite() { Value::Float(value) } else { Value::None }
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::None, Into::into)
    }
}

impl Value {
    /// Returns the figure as a number, for sorting.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Int(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            Value::None | Value::Text(_) => None,
        }
    }
}

/// A row with its names and figures, as a map.
#[derive(Debug)]
pub struct Fields(pub Vec<(String, Value)>);

impl Fields {
    /// Returns a figure by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

const MIB: f64 = (1 << 20) as f64;

/// Converts nanoseconds to seconds.
#[must_use]
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Returns `part / whole`; `None` if `whole` is 0.
#[must_use]
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

impl CounterRow {
    /// Returns Miller's running time in nanoseconds: CPU time, or wall time if CPU time was not
    /// recorded.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.cpu.unwrap_or(self.wall)
    }

    /// Returns the I/O time in nanoseconds: reads, writes, syncs and all metadata requests.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.counters.time().saturating_add(self.counters.other_time.total)
    }

    /// Returns the share of metadata requests in the I/O time.
    #[must_use]
    pub fn meta_share(&self) -> Option<f64> {
        let meta = self.counters.meta_time.total.saturating_add(self.counters.other_time.total);
        ratio(meta as f64, self.time() as f64)
    }

    /// Returns the share of the run time of the processes in which they did I/O.
    #[must_use]
    pub fn io_share(&self) -> Option<f64> {
        ratio(self.busy? as f64, self.lives as f64)
    }

    /// Returns the number of requests with memory that is not aligned; `None` for all layers but
    /// POSIX, whose hooks do not record it.
    #[must_use]
    pub fn memory_not_aligned(&self) -> Option<u64> {
        (self.layer == Layer::Posix.name()).then(|| self.counters.data().memory_not_aligned)
    }

    /// Returns every figure, in the order of the documentation. Timestamps are seconds since
    /// `origin`, which is in nanoseconds since 1970.
    #[must_use]
    pub fn fields(&self, origin: i64) -> Fields {
        let mut out = Out { fields: Vec::with_capacity(180), origin };
        for (name, value) in &self.labels {
            out.fields.push(((*name).to_owned(), value.clone()));
        }
        out.put("layer", Value::Text(self.layer.to_owned()));
        self.miller(&mut out);
        self.darshan(&mut out);
        self.more(&mut out);
        self.of_ranks(&mut out);
        Fields(out.fields)
    }

    fn miller(&self, out: &mut Out) {
        let (reads, writes) = (self.counters.reads(), self.counters.writes());
        let (bytes, count) = (self.counters.bytes(), reads.count + writes.count);
        out.put("processes", self.processes);
        out.put("files", self.files);
        out.put("cpu_seconds", self.cpu.map(seconds));
        out.put("wall_seconds", seconds(self.wall));
        out.put("data_size", self.data_size);
        out.put("bytes", bytes);
        out.put("ios", count);
        out.put("average_size", ratio(bytes as f64, count as f64));
        for (per, time) in [("cpu", self.cpu), ("wall", Some(self.wall))] {
            for (what, bytes, count) in [
                ("", bytes, count),
                ("read_", reads.bytes, reads.count),
                ("write_", writes.bytes, writes.count),
            ] {
                let rate = |amount: f64| time.and_then(|time| ratio(amount, seconds(time)));
                out.put(&format!("{what}mib_per_{per}_second"), rate(bytes as f64 / MIB));
                out.put(&format!("{what}ios_per_{per}_second"), rate(count as f64));
            }
        }
        out.put("read_write_ratio", ratio(reads.bytes as f64, writes.bytes as f64));
    }

    fn darshan(&self, out: &mut Out) {
        let (counters, data, meta) = (&self.counters, self.counters.data(), &self.counters.meta);
        let (reads, writes) = (counters.reads(), counters.writes());
        for (name, value) in [
            ("opens", meta.opens),
            ("dups", meta.dups),
            ("reads", reads.count),
            ("writes", writes.count),
            ("seeks", meta.seeks),
            ("stats", meta.stats),
            ("mmaps", meta.mmaps),
            ("fsyncs", meta.fsyncs),
            ("fdsyncs", meta.fdsyncs),
            ("rename_sources", meta.rename_sources),
            ("rename_targets", meta.rename_targets),
            ("bytes_read", reads.bytes),
            ("bytes_written", writes.bytes),
            ("max_byte_read", reads.max_byte),
            ("max_byte_written", writes.max_byte),
            ("consec_reads", reads.consecutive),
            ("consec_writes", writes.consecutive),
            ("seq_reads", reads.sequential),
            ("seq_writes", writes.sequential),
            ("rw_switches", data.switches),
        ] {
            out.put(name, value);
        }
        out.put("mem_not_aligned", self.memory_not_aligned());
        out.put("mem_alignment", self.memory_not_aligned().map(|_| flag::MEMORY_ALIGNMENT as u64));
        out.put("file_not_aligned", data.file_not_aligned);
        out.put("file_alignment", self.block.map(u64::from));
        out.put("max_read_time_size", reads.longest_size);
        out.put("max_write_time_size", writes.longest_size);
        for (side, sizes) in [("read", reads.sizes), ("write", writes.sizes)] {
            for (name, count) in BIN_NAMES.iter().zip(sizes) {
                out.put(&format!("size_{side}_{}", name.to_lowercase()), count);
            }
        }
        for (what, common) in [("stride", &data.stride), ("access", &data.access)] {
            for (at, (value, count)) in common.most().into_iter().enumerate() {
                out.put(&format!("{what}{}_{what}", at + 1), value);
                out.put(&format!("{what}{}_count", at + 1), count);
            }
        }
        for (name, span) in
            [("open", counters.open), ("read", reads.span), ("write", writes.span), ("close", counters.close)]
        {
            out.span(name, span);
        }
        out.put("f_read_time", seconds(reads.time.total));
        out.put("f_write_time", seconds(writes.time.total));
        out.put("f_meta_time", seconds(counters.meta_time.total));
        out.put("f_max_read_time", seconds(reads.longest));
        out.put("f_max_write_time", seconds(writes.longest));
    }

    fn more(&self, out: &mut Out) {
        let (counters, data, meta) = (&self.counters, self.counters.data(), &self.counters.meta);
        out.put("closes", meta.closes);
        out.put("other_syncs", meta.other_syncs);
        out.put("other_metas", meta.others);
        out.put("other_meta_seconds", seconds(counters.other_time.total));
        out.put("failed", meta.failed);
        out.put("without_offset", data.without_offset);
        for (name, side, share) in [
            ("seq_reads_share", counters.reads(), Side::sequential_share as fn(&Side) -> Option<f64>),
            ("seq_writes_share", counters.writes(), Side::sequential_share),
            ("consec_reads_share", counters.reads(), Side::consecutive_share),
            ("consec_writes_share", counters.writes(), Side::consecutive_share),
        ] {
            out.put(name, share(side));
        }
        out.put("overwritten_bytes", data.overwritten);
        out.put("overwritten_share", ratio(data.overwritten as f64, counters.writes().bytes as f64));
        out.put("opens_per_process", ratio(meta.opens as f64, self.processes as f64));
        out.put("files_per_process", ratio(self.files_of_processes as f64, self.processes as f64));
        out.put("io_share_of_run", self.io_share());
        out.put("meta_share_of_io", self.meta_share());
        for (name, quantiles) in [
            ("read", &self.read_latency),
            ("write", &self.write_latency),
            ("sync", &self.sync_latency),
            ("meta", &self.meta_latency),
        ] {
            out.quantiles(name, quantiles);
        }
    }

    fn of_ranks(&self, out: &mut Out) {
        let shared = self.shared.as_ref();
        out.put("shared_by_ranks", shared.map(|shared| shared.ranks));
        out.put("fastest_rank", shared.map(|shared| shared.fastest.rank));
        out.put("fastest_rank_bytes", shared.map(|shared| shared.fastest.bytes));
        out.put("slowest_rank", shared.map(|shared| shared.slowest.rank));
        out.put("slowest_rank_bytes", shared.map(|shared| shared.slowest.bytes));
        out.put("f_fastest_rank_time", shared.map(|shared| seconds(shared.fastest.time)));
        out.put("f_slowest_rank_time", shared.map(|shared| seconds(shared.slowest.time)));
        out.put("f_variance_rank_time", shared.map(|shared| shared.variance_time));
        out.put("f_variance_rank_bytes", shared.map(|shared| shared.variance_bytes));
        let found = self.performance.as_ref();
        out.put("ranks", found.map(|found| found.ranks));
        out.put("nodes", found.map(|found| found.nodes));
        out.put("shared_files", found.map(|found| found.shared_files));
        out.put("total_bytes_of_ranks", found.map(|found| found.bytes));
        out.put("slowest_rank_io_time", found.map(|found| seconds(found.unique_time)));
        out.put("slowest_rank_io_rank", found.map(|found| found.slowest_rank));
        out.put("agg_perf_by_slowest", found.and_then(|found| found.by_slowest));
        out.put("agg_perf_by_cumul", found.and_then(|found| found.by_cumul));
        out.put("agg_perf_by_open", found.and_then(|found| found.by_open));
        out.put("agg_perf_by_open_lastio", found.and_then(|found| found.by_open_lastio));
        out.put("mib_per_second_per_node", found.and_then(|found| found.per_node));
    }
}

impl Side {
    /// Returns the share of requests at an offset above the last byte of the previous one.
    #[must_use]
    pub fn sequential_share(&self) -> Option<f64> {
        ratio(self.sequential as f64, self.placed())
    }

    /// Returns the share of requests right after the previous one.
    #[must_use]
    pub fn consecutive_share(&self) -> Option<f64> {
        ratio(self.consecutive as f64, self.placed())
    }

    fn placed(&self) -> f64 {
        (self.count - self.without_offset) as f64
    }
}

struct Out {
    fields: Vec<(String, Value)>,
    origin: i64,
}

impl Out {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.push((name.to_owned(), value.into()));
    }

    fn span(&mut self, name: &str, span: Span) {
        let since = |time: i64| (!span.is_empty()).then(|| seconds(time.abs_diff(self.origin)));
        let (begin, end) = (since(span.begin), since(span.end));
        self.put(&format!("f_{name}_start_timestamp"), begin);
        self.put(&format!("f_{name}_end_timestamp"), end);
    }

    fn quantiles(&mut self, name: &str, found: &Quantiles) {
        for (which, value) in [
            ("p50", found.p50),
            ("p90", found.p90),
            ("p99", found.p99),
            ("p999", found.p999),
            ("max", found.max),
        ] {
            let value = (found.count > 0).then(|| seconds(value));
            self.put(&format!("{name}_latency_{which}"), value);
        }
    }
}

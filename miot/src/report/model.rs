//! Figures of the page.

use super::accesses::{AccessedFiles, FileAccesses};
use super::pass::Pass;
use crate::source::{Progress, Source};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use miot_proto::op::Layer;
use miot_trace_analysis::block_sizes::BlockSizes;
use miot_trace_analysis::bursts::{Bursts, INTERVAL, Interval, Spread};
use miot_trace_analysis::characterize::fields::Fields;
use miot_trace_analysis::characterize::{By, Characterization, Characterize, CounterRow, Settings};
use miot_trace_analysis::findings::{Collector, Findings};
use miot_trace_analysis::idle::{Idle, Silence};
use miot_trace_analysis::timeline::{Course, Timeline};
use miot_trace_analysis::{Programs, Report, Summary};
use miot_trace_results::regions::{self, RegionSpans, RegionTable};
use miot_trace_store::clocks::{errors, pieces};
use miot_trace_store::{MissingParts, Reader, RemovedParts, Table, UnreadItem};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Duration of a trace, nanoseconds, from which bursts use intervals of a minute, like Carns et al.
/// For shorter traces they use the intervals of the plots.
const LONG: u64 = 3_600_000_000_000;
/// Number of points of a curve.
const POINTS: u64 = 400;
/// Maximum number of ranks or processes in a plot.
const RANKS: usize = 500;

/// Maximum number of batches that one thread may be ahead of the other.
const AHEAD: usize = 4;

/// The figures of the page. Times are nanoseconds since 1970, durations nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    /// The trace directory.
    pub(super) trace: String,
    /// Version of the tool.
    pub(super) version: &'static str,
    /// Options `--since` and `--until`.
    pub(super) since: Option<i64>,
    pub(super) until: Option<i64>,
    /// Output of `miot stat --format json`.
    pub(super) summary: Report,
    pub(super) course: Course,
    /// Bursts, without the series.
    pub(super) bursts: Bursts,
    /// Throughput, bytes per second, that is reached or exceeded in a share of the intervals, for
    /// shares in equal steps from 0 to 1.
    pub(super) curve: Vec<f64>,
    pub(super) idle: Idle,
    pub(super) findings: Findings,
    /// I/O during regions.
    pub(super) regions: RegionTable,
    /// Access sizes by layer.
    pub(super) layers: Vec<LayerSizes>,
    /// Files that moved the most bytes, by layer, as in `miot stat --by file --format json`.
    pub(super) files: Vec<Fields>,
    /// Processes that moved the most bytes, by layer.
    pub(super) ranks: Vec<Fields>,
    /// Jobs, or runs of parallel programs, that moved the most bytes, by layer.
    pub(super) jobs: Vec<Fields>,
    pub(super) rank_times: RankTimes,
    pub(super) notes: FigureLimits,
    /// Accesses of the files that moved the most bytes.
    pub(super) accesses: Vec<FileAccesses>,
    /// Processes by node.
    pub(super) nodes: Vec<ProcessGroup>,
    pub(super) clocks: Vec<Clock>,
    /// Parts of the trace that retention had removed.
    pub(super) removed: Option<String>,
    /// Parts that are missing.
    pub(super) missing_parts: MissingParts,
    /// Everything that could not be read, including missing parts.
    pub(super) unread: Vec<UnreadItem>,
}

/// Access sizes of a layer that moved bytes, in Darshan's ten bins.
#[derive(Debug, Serialize)]
pub(super) struct LayerSizes {
    pub(super) layer: &'static str,
    pub(super) reads: [u64; 10],
    pub(super) writes: [u64; 10],
}

/// Time in I/O of each rank, or of each process if none has a rank, in the layer that
/// [`layer_of_ranks`] returns.
#[derive(Debug, Default, Serialize)]
pub(super) struct RankTimes {
    pub(super) layer: &'static str,
    /// True if the rows are MPI ranks.
    pub(super) are_ranks: bool,
    /// Rows in order of rank or process. If there are too many, each row is the slowest of
    /// `together` neighbors.
    pub(super) rows: Vec<RankTime>,
    /// Number of ranks or processes per row.
    pub(super) together: usize,
}

/// Nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RankTime {
    pub(super) rank: u64,
    pub(super) read: u64,
    pub(super) write: u64,
    pub(super) meta: u64,
    pub(super) bytes: u64,
}

/// Limits of the accuracy of the figures.
#[derive(Debug, Default, Serialize)]
pub(super) struct FigureLimits {
    /// True if alignment was counted with an assumed block size.
    pub(super) block_size_assumed: bool,
    /// True if the number of overwritten bytes is a lower bound.
    pub(super) overwriting_incomplete: bool,
    /// Number of requests through MPI-IO views whose blocks are not in the trace. Only figures
    /// without offsets include them.
    pub(super) views_unknown: u64,
    /// Number of pairs of process and file that were folded together.
    pub(super) folded_pairs: u64,
}

/// Sums over the processes of a node.
#[derive(Debug, Default, Serialize)]
pub(super) struct ProcessGroup {
    pub(super) name: String,
    pub(super) processes: u64,
    pub(super) requests: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) time: u64,
}

/// Accuracy of the times of a node.
#[derive(Debug, Serialize)]
pub(super) struct Clock {
    pub(super) node: String,
    /// Upper bound of the error of times; `None` if unknown.
    pub(super) uncertainty: Option<i64>,
    /// The largest standard error.
    pub(super) estimated_error: Option<i64>,
    /// Number of clock steps that were detected.
    pub(super) steps: u64,
}

/// Reads a trace with two threads besides those that decode.
pub(super) fn gather(source: &Source, rows: usize) -> anyhow::Result<Model> {
    let reader = source.open()?;
    let processes = reader.table(Table::Processes)?;
    let (mut summary, mut timeline) = (Summary::new(), Timeline::default());
    let (mut spread, mut silence) = (Spread::new(INTERVAL), Silence::default());
    let settings = Settings { most_memory: 512 << 20, ..Settings::default() };
    let mut characterize = Characterize::new(settings, reader.files()?, &processes);
    let names = reader.files()?;
    let mut files = AccessedFiles::of(source, &reader, &names)?;
    let mut spans = RegionSpans::default();
    let mut collector = Collector::new(Programs::of(&processes), BlockSizes::new(None, &processes));
    thread::scope(|scope| {
        let (sender, batches) = sync_channel::<RecordBatch>(AHEAD);
        let (summary, characterize) = (&mut summary, &mut characterize);
        scope.spawn(move || {
            for batch in batches {
                summary.add(&batch);
                characterize.add(&batch);
            }
        });
        // The receiver takes all batches.
        let mut others = |batch: &RecordBatch| drop(sender.send(batch.clone()));
        let pass = Pass { batches: &mut others, is_needed: &|_| true };
        pass.read(source, &reader, &names, &mut |event, place, outermost| {
            timeline.add(event, outermost);
            spans.event(event, &names);
            if outermost {
                collector.request(event, place, &names);
                files.add(event, place);
                spread.request(event);
                silence.request(event);
            }
        })
    })?;
    reader.table(Table::Losses)?.iter().for_each(|losses| summary.add_losses(losses));
    let mut summary = summary.finish(&names, &processes, rows);
    let nodes = nodes(&summary);
    summary.processes.truncate(rows);
    let times = summary.totals.begin..summary.totals.end.saturating_add(1);
    let course = timeline.finish();
    let mut bursts = spread.finish();
    if summary.totals.wall < LONG {
        bursts = course.bursts(bursts.begin, bursts.end);
    }
    let idle = silence.finish(&bursts);
    let curve = curve(&bursts);
    bursts.series.clear();
    let mut findings = collector.finish(&names);
    let regions = add_regions(source, &reader, spans, &mut findings)?;
    let found = characterize.finish();
    let (layers, ranked) = layers(&found);
    Ok(Model {
        trace: source.dir.display().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        since: source.since.map(crate::filter::nanoseconds),
        until: source.until.map(crate::filter::nanoseconds),
        course,
        bursts,
        curve,
        idle,
        findings,
        regions,
        layers,
        files: top(&found, By::File, rows),
        ranks: top(&found, By::Process, rows),
        jobs: top(&found, By::Job, rows),
        rank_times: ranked.unwrap_or_default(),
        notes: FigureLimits {
            block_size_assumed: found.is_block_assumed,
            overwriting_incomplete: found.is_overwriting_incomplete,
            views_unknown: found.views_unknown,
            folded_pairs: found.folded,
        },
        accesses: files.accesses(source, &reader, &names)?,
        nodes,
        clocks: clocks(&reader.table(Table::Clocks)?, &times),
        removed: removed(&reader),
        missing_parts: reader.missing_parts()?,
        unread: reader.unread().all(),
        summary,
    })
}

/// Regions, and what they add to the findings.
fn add_regions(
    source: &Source,
    reader: &Reader,
    spans: RegionSpans,
    findings: &mut Findings,
) -> anyhow::Result<RegionTable> {
    let regions = regions::during(&source.input(reader, &Progress::default()), spans)?;
    findings.findings.extend(regions::findings(reader, &regions)?);
    Ok(regions)
}

/// What retention has removed.
fn removed(reader: &Reader) -> Option<String> {
    let removed: RemovedParts = reader.removed().ok()?;
    (removed.parts > 0).then(|| removed.to_string())
}

/// Returns sums of the processes, by node.
fn nodes(summary: &Report) -> Vec<ProcessGroup> {
    let mut nodes = BTreeMap::<&str, ProcessGroup>::new();
    for row in &summary.processes {
        let node = nodes
            .entry(&row.node)
            .or_insert_with(|| ProcessGroup { name: row.node.clone(), ..ProcessGroup::default() });
        node.processes += 1;
        node.requests += row.requests;
        node.bytes_read = node.bytes_read.saturating_add(row.bytes_read);
        node.bytes_written = node.bytes_written.saturating_add(row.bytes_written);
        node.time = node.time.saturating_add(row.time);
    }
    let mut rows: Vec<_> = nodes.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.time));
    rows
}

/// Returns the `most` rows that moved the most bytes; of rows with as many, those with the most
/// time.
fn top(found: &Characterization, by: By, most: usize) -> Vec<Fields> {
    let groups = found.groups(by, &[]);
    let all = groups.all();
    let mut keyed: Vec<_> =
        all.iter().enumerate().map(|(number, group)| (found.bytes(&groups, group), number)).collect();
    // Computing a row takes long: only those that may be among the first.
    if most < keyed.len() {
        let (_, (least, _), _) =
            keyed.select_nth_unstable_by_key(most, |(bytes, _)| std::cmp::Reverse(*bytes));
        let least = *least;
        keyed.retain(|(bytes, _)| *bytes >= least);
    }
    let with_time = |(bytes, number): (u64, usize)| {
        (std::cmp::Reverse((bytes, found.row(&groups, &all[number]).time())), number)
    };
    let mut keyed: Vec<_> = keyed.into_iter().map(with_time).collect();
    keyed.sort_unstable();
    keyed.truncate(most);
    let rows = keyed.into_iter().map(|(_, number)| found.row(&groups, &all[number]));
    rows.map(|row| row.fields(found.span.begin)).collect()
}

/// Sizes by layer, and the times of the ranks in the layer that shows them.
fn layers(found: &Characterization) -> (Vec<LayerSizes>, Option<RankTimes>) {
    let groups = found.groups(By::Layer, &[]);
    let rows: Vec<CounterRow> = groups.all().iter().map(|group| found.row(&groups, group)).collect();
    let moved = rows.iter().filter(|row| row.counters.bytes() > 0);
    let named = moved.clone().filter_map(|row| {
        let layer = Layer::from_name(row.layer)?;
        Some((layer, row.counters.bytes(), rank_times(found, layer)))
    });
    let mut named: Vec<_> = named.collect();
    let bytes = named.iter().map(|(layer, bytes, times)| (*layer, *bytes, times.are_ranks));
    let shown = layer_of_ranks(bytes);
    let shown = named.iter().position(|(layer, ..)| Some(*layer) == shown);
    let times = shown.map(|at| named.swap_remove(at).2);
    let sizes = moved.map(|row| LayerSizes {
        layer: row.layer,
        reads: row.counters.reads().sizes,
        writes: row.counters.writes().sizes,
    });
    (sizes.collect(), times)
}

/// The layer whose times of ranks are shown, of those that moved bytes: MPI-IO if ranks used it,
/// because ranks then wait in its requests. Otherwise the layer that moved the most bytes, and the
/// outermost one of several, because its requests contain those of the others. Each layer comes
/// with its bytes, and whether its processes are ranks.
fn layer_of_ranks(layers: impl Iterator<Item = (Layer, u64, bool)>) -> Option<Layer> {
    let key = |(layer, bytes, are_ranks): &(Layer, u64, bool)| {
        (*layer == Layer::MpiIo && *are_ranks, *bytes, std::cmp::Reverse(*layer as u8))
    };
    layers.max_by_key(key).map(|(layer, ..)| layer)
}

fn rank_times(found: &Characterization, layer: Layer) -> RankTimes {
    let groups = found.groups(By::Process, &[layer]);
    let number = |row: &CounterRow, name: &str| {
        let value = row.labels.iter().find(|(known, _)| *known == name);
        value.and_then(|(_, value)| value.number()).map(|number| number as u64)
    };
    let rows = groups.all().iter().map(|group| found.row(&groups, group));
    let all = rows.map(|row| {
        let counters = &row.counters;
        let time = RankTime {
            rank: 0,
            read: counters.reads().time.total,
            write: counters.writes().time.total,
            meta: counters.meta_time.total.saturating_add(counters.other_time.total),
            bytes: counters.bytes(),
        };
        (number(&row, "rank"), number(&row, "process").unwrap_or(0), time)
    });
    let all: Vec<_> = all.collect();
    let are_ranks = all.iter().any(|(rank, ..)| rank.is_some());
    let numbered = all.into_iter().filter_map(|(rank, process, time)| {
        Some(RankTime { rank: if are_ranks { rank? } else { process }, ..time })
    });
    let mut rows: Vec<RankTime> = numbered.collect();
    rows.sort_by_key(|row| row.rank);
    let together = rows.len().div_ceil(RANKS).max(1);
    let slowest = |rows: &[RankTime]| rows.iter().max_by_key(|row| row.read + row.write + row.meta).cloned();
    RankTimes {
        layer: layer.name(),
        are_ranks,
        rows: rows.chunks(together).filter_map(slowest).collect(),
        together,
    }
}

/// Computes [`Model::curve`].
fn curve(bursts: &Bursts) -> Vec<f64> {
    let mut bytes: Vec<u64> = bursts.series.iter().map(Interval::bytes).collect();
    bytes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let last = bursts.intervals.saturating_sub(1);
    let points = if last == 0 { 0 } else { POINTS.min(last) };
    let at = |point: u64| bytes.get((last as u128 * u128::from(point) / u128::from(points.max(1))) as usize);
    let seconds = bursts.interval as f64 / 1e9;
    (0..=points).map(|point| at(point).map_or(0.0, |bytes| *bytes as f64 / seconds)).collect()
}

/// Returns the worst accuracy of each node's clock in a time range.
fn clocks(batches: &[RecordBatch], times: &Range<i64>) -> Vec<Clock> {
    let mut nodes = BTreeMap::<String, (Option<Clock>, Clock)>::new();
    let nothing =
        |node: &str| Clock { node: node.to_owned(), uncertainty: Some(0), estimated_error: None, steps: 0 };
    for batch in batches {
        let texts =
            ["node", "reason"].map(|name| batch.column_by_name(name).and_then(|c| c.as_string_opt::<i32>()));
        let [Some(names), reasons] = texts else { continue };
        for (row, (piece, error)) in pieces(batch).into_iter().zip(errors(batch)).enumerate() {
            if piece.time >= times.end {
                continue;
            }
            let name = names.value(row);
            let step = reasons.is_some_and(|reasons| reasons.value(row) == "step");
            let known = error.uncertainty < i64::MAX;
            let this = Clock {
                node: name.to_owned(),
                uncertainty: known.then_some(error.uncertainty),
                estimated_error: error.estimated.filter(|_| known),
                steps: u64::from(step),
            };
            let (before, worst) = nodes.entry(name.to_owned()).or_insert_with(|| (None, nothing(name)));
            // A piece is valid until the next one, so the last piece before the range is the first
            // within it.
            if piece.time <= times.start {
                *before = Some(Clock { steps: 0, ..this });
            } else {
                join(worst, this);
            }
        }
    }
    let worst = nodes.into_values().map(|(before, mut worst)| {
        before.into_iter().for_each(|before| join(&mut worst, before));
        worst
    });
    worst.collect()
}

fn join(worst: &mut Clock, other: Clock) {
    worst.uncertainty = worst.uncertainty.zip(other.uncertainty).map(|(a, b)| a.max(b));
    worst.estimated_error = worst.estimated_error.max(other.estimated_error);
    worst.steps += other.steps;
}

#[cfg(test)]
mod tests {
    use super::layer_of_ranks;
    use miot_proto::op::Layer::{self, Block, MpiIo, Posix, Stdio};

    #[test]
    fn ranks_are_shown_in_the_outermost_layer_that_has_them() {
        let shown = |layers: &[(Layer, u64, bool)]| layer_of_ranks(layers.iter().copied());
        assert_eq!(shown(&[(MpiIo, 100, true), (Posix, 100, true)]), Some(MpiIo), "a tie");
        assert_eq!(shown(&[(MpiIo, 100, true), (Posix, 900, true)]), Some(MpiIo), "data sieving");
        assert_eq!(shown(&[(MpiIo, 100, false), (Posix, 900, true)]), Some(Posix));
        assert_eq!(shown(&[(Stdio, 1, true), (Posix, 900, true)]), Some(Posix), "a log file");
        assert_eq!(shown(&[(Stdio, 9, false), (Posix, 9, false), (Block, 9, false)]), Some(Stdio));
        assert_eq!(shown(&[]), None);
    }
}

//! Analyses of a whole trace: bursts, idle periods, cycles, patterns, findings.

use crate::regions::{self, RegionSpans};
use crate::{Error, Input};
use arrow_array::RecordBatch;
use miot_proto::units::parse_duration;
use miot_trace_analysis::block_sizes::BlockSizes;
use miot_trace_analysis::bursts::{Bursts, Spread};
use miot_trace_analysis::cycles::{Cycles, Rates};
use miot_trace_analysis::findings::{Collector, Findings};
use miot_trace_analysis::idle::{Idle, Silence};
use miot_trace_analysis::patterns::{Accesses, Patterns};
use miot_trace_analysis::{Missing, Programs};
use miot_trace_events::events::{FEWEST_COLUMNS, FILE_COLUMNS};
use miot_trace_events::outermost::{OutermostEvents, each_outermost};
use miot_trace_store::{Table, UnreadItem};
use serde::Serialize;

/// An analysis, with what is missing in the trace.
#[derive(Debug, Serialize)]
pub struct AnalysisOutput<'a, T> {
    /// Missing events.
    pub missing: Missing,
    /// What could not be read.
    pub unread: Vec<UnreadItem>,
    /// The analysis.
    #[serde(flatten)]
    pub result: &'a T,
}

/// Parses a duration above zero, nanoseconds.
///
/// # Errors
/// A text for the user.
pub fn interval(text: &str) -> Result<u64, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    let nanoseconds = u64::try_from(duration.as_nanos()).ok().filter(|nanoseconds| *nanoseconds > 0);
    nanoseconds.ok_or_else(|| "expected an interval above 0 and below 500 years".to_owned())
}

/// Returns the throughput by interval.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn bursts(input: &Input<'_>, interval: u64) -> Result<Bursts, Error> {
    let mut spread = Spread::new(interval);
    input.each(FEWEST_COLUMNS, |batch| spread.add(batch))?;
    Ok(spread.finish())
}

/// Times with requests: by interval, and to the nanosecond.
struct Times {
    events: OutermostEvents,
    spread: Spread,
    silence: Silence,
}

impl Times {
    fn add(&mut self, batch: &RecordBatch) {
        each_outermost(
            self,
            |times| &mut times.events,
            batch,
            |times, request| {
                times.spread.request(request);
                times.silence.request(request);
            },
        );
    }
}

/// Returns the idle periods.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn idle(input: &Input<'_>, interval: u64) -> Result<Idle, Error> {
    let (spread, silence) = (Spread::new(interval), Silence::default());
    let mut times = Times { events: OutermostEvents::default(), spread, silence };
    input.each(FEWEST_COLUMNS, |batch| times.add(batch))?;
    Ok(times.silence.finish(&times.spread.finish()))
}

/// Returns the periods of data rates.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn cycles(input: &Input<'_>) -> Result<Cycles, Error> {
    let mut rates = Rates::default();
    input.each(FEWEST_COLUMNS, |batch| rates.add(batch))?;
    Ok(rates.finish())
}

/// Returns file sharing and the order of accesses, with at most `most` files.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn patterns(input: &Input<'_>, system_files: bool, most: usize) -> Result<Patterns, Error> {
    let programs = Programs::of(&input.reader.table(Table::Processes)?);
    let mut accesses = Accesses::new(programs).with_system_files(system_files);
    let paths = input.reader.files()?;
    input.each(FILE_COLUMNS, |batch| accesses.add(batch, &paths))?;
    Ok(accesses.finish(&paths, most))
}

/// Returns inefficient I/O, by rules.
///
/// # Errors
/// [`Error::Option`], [`Error::Trace`], [`Error::Interrupted`].
pub fn findings(input: &Input<'_>, system_files: bool, block_size: Option<&str>) -> Result<Findings, Error> {
    let processes = input.reader.table(Table::Processes)?;
    let blocks = BlockSizes::new(crate::stat::block_size(block_size)?, &processes);
    let mut collector = Collector::new(Programs::of(&processes), blocks).with_system_files(system_files);
    let paths = input.reader.files()?;
    let mut spans = RegionSpans::default();
    input.each(FILE_COLUMNS, |batch| {
        collector.add(batch, &paths);
        spans.add(batch, &paths);
    })?;
    let mut findings = collector.finish(&paths);
    findings.findings.extend(regions::findings(input.reader, &regions::during(input, spans)?)?);
    Ok(findings)
}

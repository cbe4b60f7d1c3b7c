//! Simulations of traced programs on other storage.

mod miller;
pub mod parameters;
pub mod programs;
pub mod sweep;

use crate::Error;
use miot_simulator::{Config, Outcome, presets};
use parameters::{Point, Vary};
use programs::Programs;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the machines of these names, with the parameters that have one value, and the parameters
/// that have several. `overlay` changes each machine before its parameters are set.
///
/// # Errors
/// [`Error::Option`], errors of `overlay`.
pub fn machines<E: From<Error>>(
    storage: &[String],
    parameters: Vec<Vary>,
    overlay: impl Fn(Config) -> Result<Config, E>,
) -> Result<(Vec<Config>, Vec<Vary>), E> {
    let (single, several): (Vec<_>, Vec<_>) = parameters.into_iter().partition(|vary| vary.values.len() == 1);
    let machine = |name: &String| {
        let unknown = || {
            let names = presets::ALL.map(|(name, _)| name);
            Error::Option(format!("--storage {name}: no such storage; there are {}", names.join(", ")))
        };
        let mut config = overlay(presets::named(name).ok_or_else(unknown)?)?;
        for Vary { key, values } in &single {
            config = parameters::set(&config, key, &values[0])?;
        }
        config.check().map_err(Error::from)?;
        Ok(config)
    };
    Ok((storage.iter().map(machine).collect::<Result<_, E>>()?, several))
}

/// Simulations, and what they simulated.
#[derive(Debug)]
pub struct Simulations {
    /// Names of the machines.
    pub storage: Vec<String>,
    /// The machines.
    pub machines: Vec<Config>,
    /// Varied parameters: empty for a single simulation.
    pub vary: Vec<Vary>,
    /// The machine of each simulation.
    pub points: Vec<Point>,
    /// The workload, with notes.
    pub programs: Programs,
    /// The outcome of each simulation.
    pub outcomes: Vec<Outcome>,
}

impl Simulations {
    /// Returns a row for each simulation.
    #[must_use]
    pub fn rows(&self) -> Vec<SimulationRow> {
        let all = self.points.iter().zip(&self.outcomes);
        all.map(|(point, outcome)| SimulationRow::of(&self.vary, point, outcome)).collect()
    }

    /// Returns all figures: of a single simulation with its rates over time.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let notes = &self.programs.notes;
        if self.vary.is_empty() {
            let config = self.points.first().map(|point| &point.config);
            return serde_json::json!({ "config": config, "notes": notes, "outcome": self.outcomes.first() });
        }
        let machines: BTreeMap<_, _> = self.storage.iter().zip(&self.machines).collect();
        serde_json::json!({ "machines": machines, "notes": notes, "simulations": self.rows() })
    }
}

/// Row of a table of several simulations.
#[derive(Debug, Serialize)]
pub struct SimulationRow {
    /// Values of the varied parameters, by name.
    pub parameters: serde_json::Map<String, Value>,
    /// Values of the varied parameters, in the order of the options.
    #[serde(skip)]
    pub values: Vec<Value>,
    /// Nanoseconds from the first start to the last end.
    pub elapsed: u64,
    /// Nanoseconds in which processors computed.
    pub computing: u64,
    /// Nanoseconds of overhead of the system.
    pub overhead: u64,
    /// Nanoseconds in which processors were idle.
    pub idle: u64,
    /// Share of the processors' time in which they computed.
    pub utilization: f64,
    /// Share of the blocks found in a cache.
    pub hit_ratio: Option<f64>,
    /// Reads of disks.
    pub disk_reads: u64,
    /// Bytes read from disks.
    pub disk_bytes_read: u64,
    /// Writes to disks.
    pub disk_writes: u64,
    /// Bytes written to disks.
    pub disk_bytes_written: u64,
}

impl SimulationRow {
    /// Returns the row of a simulation.
    #[must_use]
    pub fn of(vary: &[Vary], point: &Point, outcome: &Outcome) -> SimulationRow {
        let names = vary.iter().map(|vary| vary.key.clone());
        SimulationRow {
            parameters: names.zip(point.values.iter().cloned()).collect(),
            values: point.values.clone(),
            elapsed: outcome.elapsed,
            computing: outcome.run(),
            overhead: outcome.overhead(),
            idle: outcome.idle(),
            utilization: outcome.utilisation(),
            hit_ratio: outcome.cache.hit_ratio(),
            disk_reads: outcome.disk.reads,
            disk_bytes_read: outcome.disk.bytes_read,
            disk_writes: outcome.disk.writes,
            disk_bytes_written: outcome.disk.bytes_written,
        }
    }
}

//! Checks of a model, which may have been edited by hand.

use super::{FORMAT, Loop, Model, Operation, Phase};
use std::fmt;

/// Defect of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub(super) String);

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

fn ensure(is_good: bool, wrong: impl FnOnce() -> String) -> Result<(), Invalid> {
    if is_good { Ok(()) } else { Err(Invalid(wrong())) }
}

impl Model {
    /// Checks that the numbers are consistent.
    ///
    /// # Errors
    /// The first inconsistency, with its phase.
    pub fn check(&self) -> Result<(), Invalid> {
        ensure(self.format == FORMAT, || {
            format!(
                "format is {}, this version reads format {FORMAT}: make the model again from its trace",
                self.format
            )
        })?;
        self.phases.iter().try_for_each(|phase| {
            phase
                .check(self.processes)
                .map_err(|Invalid(wrong)| Invalid(format!("phase {}: {wrong}", phase.numbers)))
        })
    }
}

impl Phase {
    fn check(&self, processes: u64) -> Result<(), Invalid> {
        ensure(!self.numbers.is_empty(), || "numbers is empty".into())?;
        ensure(!self.processes.is_empty(), || "processes is empty".into())?;
        let last = self.processes.last().unwrap_or(0);
        ensure(last < processes, || {
            format!("process {last}, but the application has {processes} (0-{})", processes.saturating_sub(1))
        })?;
        ensure(!self.operations.is_empty(), || "operation is empty".into())?;
        self.operations.iter().try_for_each(|operation| operation.check(self.processes.len()))?;
        let is_exact =
            self.operations.iter().all(|op| op.sizes.is_none() && op.repetitions_between.is_none());
        let sum = self
            .operations
            .iter()
            .fold(0u64, |sum, op| sum.saturating_add(op.bytes().saturating_mul(self.processes.len())));
        ensure(!is_exact || sum == self.weight, || {
            format!("weight is {}, but processes x repetitions x size is {sum}", self.weight)
        })
    }
}

impl Operation {
    fn check(&self, processes: u64) -> Result<(), Invalid> {
        ensure(self.size > 0, || "size must be at least 1".into())?;
        let sizes = self.size_by_process.iter();
        let least = sizes.flat_map(|sizes| (0..processes).map(|place| sizes.at(place))).min();
        ensure(least.is_none_or(|least| least > 0), || "size_by_process must be at least 1".into())?;
        ensure(self.repetitions > 0, || "repetitions must be at least 1".into())?;
        ensure(self.etype > 0, || "etype must be at least 1".into())?;
        ensure(self.piece != Some(0), || "piece must be at least 1".into())?;
        let shares = self.shares();
        let wrong = shares.values().find(|(_, bytes)| *bytes != self.size).filter(|_| self.sizes.is_none());
        ensure(wrong.is_none(), || {
            format!("its pieces have {} bytes, size is {}", wrong.map_or(0, |(_, bytes)| *bytes), self.size)
        })?;
        let places = |loops: &[Loop]| loops.iter().fold(1u64, |all, it| all.saturating_mul(it.count));
        let made = places(&self.displacement).saturating_mul((self.restarts.len() as u64).max(1));
        let has_pattern = !self.displacement.is_empty() || !self.restarts.is_empty();
        ensure(!has_pattern || self.repetitions_between.is_some() || made == self.repetitions, || {
            format!("displacement makes {made} requests, repetitions is {}", self.repetitions)
        })
    }
}

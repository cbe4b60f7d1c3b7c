//! Runs several simulations in parallel.

#![expect(clippy::disallowed_types, reason = "number of the next simulation, for the threads")]

use super::parameters::Point;
use miot_simulator::{ConfigError, Outcome, Workload, simulate};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the outcome of each point, in order. Calls `done_one` after each.
///
/// # Errors
/// If a machine is not possible.
pub fn run(
    points: &[Point],
    workload: &Workload,
    jobs: usize,
    done_one: &(dyn Fn() + Sync),
) -> Result<Vec<Outcome>, ConfigError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(points.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                while let Some((nth, point)) = {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    points.get(nth).map(|point| (nth, point))
                } {
                    let outcome = simulate(&point.config, workload);
                    done_one();
                    if let Ok(mut done) = done.lock() {
                        done.push((nth, outcome));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

//! Events that are missing in a trace.

use crate::{column, text};
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use miot_trace_store::schema::{FILTERED, is_loss};
use serde::Serialize;

/// Numbers of missing events. If any were lost, counts and bytes of an analysis are lower bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Events lost.
    pub lost: u64,
    /// Events filtered on purpose: too short, or not in the sample.
    pub filtered: u64,
}

impl Missing {
    /// Returns the numbers from the rows of the table `losses`.
    #[must_use]
    pub fn of(losses: &[RecordBatch]) -> Missing {
        let mut missing = Missing::default();
        for batch in losses {
            let (Some(counts), Some(places)) = (column::<UInt64Type>(batch, "count"), text(batch, "place"))
            else {
                continue;
            };
            for (place, count) in places.iter().zip(counts.values()) {
                let sum = match place {
                    Some(FILTERED) => &mut missing.filtered,
                    Some(place) if !is_loss(place) => continue,
                    _ => &mut missing.lost,
                };
                *sum = sum.saturating_add(*count);
            }
        }
        missing
    }
}

//! Texts of patterns.

#![allow(clippy::unwrap_used)]

use miot_trace_analysis::Programs;
use miot_trace_analysis::patterns::Accesses;
use miot_trace_events::testing::{EventValues, batch, row};
use miot_trace_store::FileNames;

/// Processes are named by their number in the trace, which may be above their count.
#[test]
fn process_of_most_bytes_is_not_numbered_against_a_count() {
    let mut accesses = Accesses::new(Programs::default());
    let write = |process, bytes, begin| EventValues { process, ..row("write", process, bytes, begin, 5) };
    let names = FileNames::default();
    accesses.add(&batch(&[write(3, 1 << 20, 0), write(9, 1, 10)]), &names);
    let patterns = accesses.finish(&names, 10);
    let program = &patterns.programs[0];
    assert_eq!((program.busiest, program.program.members), (3, 2));
    assert_eq!(program.rule, "100.0 % of the bytes by process 3, one of 2 (at least 95 %)");
}

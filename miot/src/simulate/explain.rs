//! Describes the steps of a simulation as text.

use miot_simulator::observer::Step;
use std::fmt;

/// Formats a step: time in microseconds, then the event.
pub(super) struct StepLine(pub(super) u64, pub(super) Step);

impl fmt::Display for StepLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepLine(time, step) = *self;
        write!(f, "{:>14.3} us  ", time as f64 / 1e3)?;
        let us = |time: u64| time as f64 / 1e3;
        match step {
            Step::Dispatch { processor, process, switch: 0 } => {
                write!(f, "processor {processor} takes process {process}")
            }
            Step::Dispatch { processor, process, switch } => {
                write!(f, "processor {processor} switches to process {process}: {} us", us(switch))
            }
            Step::Compute { process, time } => write!(f, "process {process} computes {} us", us(time)),
            Step::Turn { process, left } => {
                write!(f, "process {process} computes {} us more, to the end of its quantum", us(left))
            }
            Step::Preempt { process } => write!(f, "process {process} has used up its quantum"),
            Step::Call { process, request, overhead } => {
                write!(f, "process {process} makes request {request}: call {} us", us(overhead))
            }
            Step::Cache { process, hits, late, misses, written: 0 } => {
                write!(f, "process {process} finds {hits} blocks, {late} on their way, misses {misses}")
            }
            Step::Cache { process, written, .. } => write!(f, "process {process} writes {written} blocks"),
            Step::Transfer { transfer, file, offset, bytes, write, ahead } => {
                let what = match (write, ahead) {
                    (true, _) => "write",
                    (false, true) => "read-ahead",
                    (false, false) => "read",
                };
                write!(f, "transfer {transfer} begins: {what} {bytes} bytes at {offset} of file {file}")
            }
            Step::Done { transfer, .. } => write!(f, "transfer {transfer} is done"),
            Step::Interrupt { processor, time } => {
                write!(f, "processor {processor} serves the interrupt: {} us", us(time))
            }
            Step::Block { process, transfers } => {
                write!(f, "process {process} waits for {transfers} transfers")
            }
            Step::NoRoom { process } => write!(f, "process {process} waits for space in the cache"),
            Step::Ready { process } => write!(f, "process {process} is ready"),
            Step::End { process } => write!(f, "process {process} has ended"),
        }
    }
}

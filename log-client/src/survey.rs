//! State of the node as the sweeper sees it, counted once a second.

use miot_proto::op::{Layer, Op};
use miot_proto::status::{InFlightStatus, Losses, MAX_IN_FLIGHT};
use std::time::Instant;

/// Maximum bytes of an executable or a job in [`Survey::oldest`].
const MAX_TEXT: usize = 256;

/// A process that is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SurveyedProcess {
    pub(crate) nonce: u64,
    pub(crate) pid: u32,
    pub(crate) job: Vec<u8>,
    pub(crate) exe: Vec<u8>,
}

/// One survey.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Time of the survey; `None` before the first one.
    pub(crate) at: Option<Instant>,
    /// Totals since the start.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) processes_seen: u64,
    pub(crate) lost_full: u64,
    pub(crate) lost_nested: u64,
    pub(crate) lost_no_lane: u64,
    pub(crate) filtered: u64,
    pub(crate) violations: u64,
    pub(crate) spool_full: bool,
    /// Processes and lanes that exist now.
    pub(crate) processes: Vec<SurveyedProcess>,
    pub(crate) lanes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) in_flight: u64,
    pub(crate) oldest: Vec<OldRequest>,
}

/// One of the oldest requests in flight.
#[derive(Clone, Debug)]
pub(crate) struct OldRequest {
    age_ns: u64,
    tid: u32,
    op: Op,
    /// Index in [`Survey::processes`].
    process: usize,
}

impl Survey {
    /// Adds a request in flight of the process that was added last. A region of a program is none:
    /// it may last for hours.
    pub(crate) fn add_request(&mut self, age_ns: u64, tid: u32, op: Op) {
        if op == miot_proto::op::app::REGION {
            return;
        }
        self.in_flight += 1;
        let process = self.processes.len().saturating_sub(1);
        self.oldest.push(OldRequest { age_ns, tid, op, process });
        if self.oldest.len() >= 8 * MAX_IN_FLIGHT {
            self.keep_oldest();
        }
    }

    /// Drops all but the [`MAX_IN_FLIGHT`] oldest requests. Called once per process.
    pub(crate) fn keep_oldest(&mut self) {
        self.oldest.sort_by_key(|request| std::cmp::Reverse(request.age_ns));
        self.oldest.truncate(MAX_IN_FLIGHT);
    }

    /// The oldest requests in flight, oldest first.
    pub(crate) fn oldest(&self) -> Vec<InFlightStatus> {
        let text = |bytes: Option<&Vec<u8>>| {
            let bytes = bytes.map_or(&[][..], Vec::as_slice);
            String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into_owned()
        };
        let status = |request: &OldRequest| {
            let process = self.processes.get(request.process);
            InFlightStatus {
                age_ns: request.age_ns,
                pid: process.map_or(0, |process| process.pid),
                tid: request.tid,
                exe: text(process.map(|process| &process.exe)),
                job: text(process.map(|process| &process.job)),
                op: op_name(request.op),
            }
        };
        self.oldest.iter().map(status).collect()
    }

    /// Losses by place.
    pub(crate) fn losses(&self, given_up: u64) -> Losses {
        let places = [
            ("lane_full", self.lost_full),
            ("nested", self.lost_nested),
            ("no_lane", self.lost_no_lane),
            ("abi_violation", self.violations),
            ("spool_full", given_up),
            ("filtered", self.filtered),
        ];
        places.into_iter().map(|(place, count)| (place.to_owned(), count)).collect()
    }
}

fn op_name(op: Op) -> String {
    let layer =
        Layer::from_number(op.layer).map_or_else(|| op.layer.to_string(), |layer| layer.name().to_owned());
    op.name().map_or_else(|| format!("{layer}.{}", op.number), |name| format!("{layer}.{name}"))
}

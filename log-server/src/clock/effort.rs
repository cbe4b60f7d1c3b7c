//! How often clocks are measured.

use miot_proto::wire::PROMPT_ANSWERS;

/// How often the clock of a node is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEffort {
    /// As often as its stability requires.
    Full,
    /// Less often: no node sends events, so a larger error matters little.
    Relaxed,
    /// Still less often: there are thousands of nodes.
    Low,
}

impl ClockEffort {
    /// Factor of the error between two exchanges, and so about of their distance.
    pub(super) fn factor(self) -> f64 {
        match self {
            ClockEffort::Full => 1.0,
            ClockEffort::Relaxed => 4.0,
            ClockEffort::Low => 64.0,
        }
    }

    /// Number of exchanges of a connection before this effort applies: with many, the fastest was
    /// hardly delayed. With thousands of nodes, the questions themselves would be most messages.
    pub(super) fn after_exchanges(self) -> usize {
        match self {
            ClockEffort::Full => 0,
            ClockEffort::Relaxed => 64,
            ClockEffort::Low => PROMPT_ANSWERS,
        }
    }
}

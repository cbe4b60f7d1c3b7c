//! Options for recording, shared by `run` and `ctl set`.

use clap::Args;
use miot_log_client::config::recording::{Layers, Ops, SampleRate, SettingsChange, parse_when_full};
use miot_proto::control::WhenFull;
use miot_proto::units::parse_duration;
use std::time::Duration;

/// Options that select the recorded requests and the policy for a full lane.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Recording")]
pub(crate) struct Recorded {
    /// Layers: `posix,stdio` only these, `-stdio` all except this, `all`
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) layers: Option<Layers>,
    /// Operations: `posix.read,posix.write` only these, `-posix.lseek` all except this, `posix.*`,
    /// `all`
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) ops: Option<Ops>,
    /// Skip requests shorter than this, e.g. 100us; 0 keeps all
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) min_duration: Option<Duration>,
    /// Keep a random sample of one request in a power of two, e.g. 1/16; 1 keeps all
    #[arg(long, value_name = "1/N")]
    pub(crate) sample: Option<SampleRate>,
    /// Policy for a full lane: drop-newest, overwrite-oldest, or wait (slows the program down)
    #[arg(long, value_name = "POLICY", value_parser = parse_when_full)]
    pub(crate) when_full: Option<WhenFull>,
    /// Maximum time that `wait` delays the program per record, e.g. 2s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
}

impl Recorded {
    /// Converts the options to a change of the log-client's current settings.
    pub(crate) fn change(self) -> SettingsChange {
        let Recorded { layers, ops, min_duration, sample, when_full, wait } = self;
        SettingsChange { layers, ops, min_duration, sample, when_full, wait, ..SettingsChange::default() }
    }
}

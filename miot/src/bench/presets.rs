//! Suites that come with MIOT.

use clap::ValueEnum;
use miot_workload::Suite;

/// Names of the suites.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Preset {
    /// Patterns of pio-bench, small enough for a laptop
    Classic,
}

impl Preset {
    pub(super) fn suite(self) -> anyhow::Result<Suite> {
        Ok(Suite::parse(match self {
            Preset::Classic => include_str!("classic.toml"),
        })?)
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;

    #[test]
    fn the_classic_suite_can_be_run() {
        let suite = Preset::Classic.suite().unwrap();
        let patterns: std::collections::BTreeSet<_> =
            suite.runs.iter().map(|run| run.pattern.name()).collect();
        assert_eq!(patterns.len(), 9);
    }
}

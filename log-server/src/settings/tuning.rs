//! Settings that change at run time.

#![expect(clippy::disallowed_types, reason = "settings that change at run time")]

use crate::error::Error;
use crate::settings::config::Config;
use miot_daemon::settings::differences;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// The current settings.
#[derive(Debug)]
pub struct Tuning {
    current: RwLock<Arc<Config>>,
    /// [`Config::rate`], which is read for each frame of a node.
    rate: AtomicU64,
    /// [`Config::node_rate`], likewise.
    node_rate: AtomicU64,
    changes: AtomicU64,
}

impl Tuning {
    pub(crate) fn new(config: Config) -> Arc<Tuning> {
        let (rate, node_rate, changes) = (config.rate.into(), config.node_rate.into(), AtomicU64::default());
        Arc::new(Tuning { current: RwLock::new(Arc::new(config)), rate, node_rate, changes })
    }

    /// The current settings.
    #[must_use]
    pub fn get(&self) -> Arc<Config> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    pub(crate) fn node_rate(&self) -> u64 {
        self.node_rate.load(Relaxed)
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Applies the keys of `wanted` that can change at run time. Returns the keys that changed, and
    /// the keys that differ but need a restart.
    ///
    /// # Errors
    /// Those of [`Config::check`]; no setting changes then.
    pub fn change(&self, wanted: &Config) -> Result<(Vec<String>, Vec<String>), Error> {
        wanted.check()?;
        let before = self.get();
        let now = Config::clone(&before).with_tunable_keys_of(wanted);
        let (changed, need_restart) = (differences(&*before, &now), differences(&now, wanted));
        self.rate.store(now.rate, Relaxed);
        self.node_rate.store(now.node_rate, Relaxed);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        self.changes.fetch_add(1, Relaxed);
        Ok((changed, need_restart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tunable_keys_change_and_others_are_named() {
        let tuning = Tuning::new(Config::default());
        let wanted = Config {
            rate: 2 << 20,
            node_rate: 1 << 20,
            keep_bytes: 7,
            memory: 64 << 20,
            ..Config::default()
        };
        let (changed, need_restart) = tuning.change(&wanted).unwrap();
        assert_eq!(
            (changed, need_restart),
            (["keep_bytes", "node_rate", "rate"].map(str::to_owned).to_vec(), vec!["memory".into()])
        );
        assert_eq!((tuning.get().keep_bytes, tuning.changes()), (7, 1));
        assert_eq!((tuning.rate(), tuning.node_rate()), (2 << 20, 1 << 20));
        assert!(tuning.change(&Config { node_rate: 1, ..wanted }).is_err());
        assert_eq!((tuning.get().node_rate, tuning.changes()), (1 << 20, 1));
    }
}

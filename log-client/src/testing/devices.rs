//! Device samples of any directory tree.

use crate::devices;
use std::path::Path;
use std::time::Duration;

/// A device sampler.
#[derive(Debug)]
pub struct Devices(devices::Devices);

impl Devices {
    /// `root`: directory that contains `proc` and `sys`.
    #[must_use]
    pub fn under(root: &Path) -> Devices {
        Devices(devices::Devices::under(root, Duration::from_secs(1), 0))
    }

    /// Takes a sample; returns the number of devices in it.
    pub fn sample(&mut self) -> usize {
        self.0.sample().map_or(0, |sample| sample.devices.len())
    }
}

//! Samples of devices, from wherever their counters are.

use crate::devices;
use std::path::Path;
use std::time::Duration;

/// What takes samples.
#[derive(Debug)]
pub struct Devices(devices::Devices);

impl Devices {
    /// `root`: where `proc` and `sys` are.
    #[must_use]
    pub fn under(root: &Path) -> Devices {
        Devices(devices::Devices::under(root, Duration::from_secs(1), 0))
    }

    /// Takes one. How many devices are in it.
    pub fn sample(&mut self) -> usize {
        self.0.sample().map_or(0, |sample| sample.devices.len())
    }
}

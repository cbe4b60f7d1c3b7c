//! Metrics in the text format of Prometheus.
//!
//! A daemon keeps its numbers where they are counted and collects them for each request: each
//! response has its own registry.

use prometheus::core::Collector;
use prometheus::{Counter, CounterVec, Encoder as _, Error, Gauge, GaugeVec, Opts, Registry, TextEncoder};

/// Value of the header `Content-Type` for [`Exposition::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A response being built. Unknown values are left out, as is usual in Prometheus.
#[derive(Debug, Default)]
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// Adds a counter, a number that only grows since the start of the daemon. Its name ends in
    /// `_total`.
    ///
    /// # Errors
    /// If the name was added before or is not valid.
    pub fn counter(&self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let counter = Counter::new(name, help)?;
        counter.inc_by(value as f64);
        self.register(counter)
    }

    /// Adds a gauge, a current value.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn gauge(&self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        let gauge = Gauge::new(name, help)?;
        gauge.set(value);
        self.register(gauge)
    }

    /// Adds counters with labels.
    ///
    /// # Errors
    /// As [`counter`](Self::counter); or if a series does not have one value per label.
    pub fn counters<'a, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        series: impl IntoIterator<Item = ([&'a str; N], u64)>,
    ) -> Result<(), Error> {
        let counters = CounterVec::new(Opts::new(name, help), &labels)?;
        for (values, value) in series {
            counters.get_metric_with_label_values(&values)?.inc_by(value as f64);
        }
        self.register(counters)
    }

    /// Adds gauges with labels.
    ///
    /// # Errors
    /// As [`counters`](Self::counters).
    pub fn gauges<'a, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        series: impl IntoIterator<Item = ([&'a str; N], f64)>,
    ) -> Result<(), Error> {
        let gauges = GaugeVec::new(Opts::new(name, help), &labels)?;
        for (values, value) in series {
            gauges.get_metric_with_label_values(&values)?.set(value);
        }
        self.register(gauges)
    }

    fn register(&self, collector: impl Collector + 'static) -> Result<(), Error> {
        self.registry.register(Box::new(collector))
    }

    /// Returns the text of all metrics, by name.
    ///
    /// # Errors
    /// If a value cannot be encoded.
    pub fn text(&self) -> Result<String, Error> {
        let families: Vec<_> =
            self.registry.gather().into_iter().filter(|family| !family.get_metric().is_empty()).collect();
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_unknown_values_are_absent() {
        let page = Exposition::default();
        page.counter("miot_events_total", "Events.", 3).unwrap();
        page.gauges("miot_lag_seconds", "Lag.", ["node"], [(["a\"\n\\"], 0.5)]).unwrap();
        page.gauges("miot_clock_seconds", "Clock.", ["node"], []).unwrap();
        assert!(page.counter("miot_events_total", "Events.", 3).is_err());
        let text = page.text().unwrap();
        assert!(text.contains("# TYPE miot_events_total counter\nmiot_events_total 3\n"), "{text}");
        assert!(text.contains("miot_lag_seconds{node=\"a\\\"\\n\\\\\"} 0.5\n"), "{text}");
        assert!(!text.contains("miot_clock_seconds"), "{text}");
    }
}

//! Numbers as Prometheus reads them.
//!
//! A daemon keeps its numbers where they are counted, and they are put together when somebody asks: each answer is a
//! registry of its own.

use prometheus::core::Collector;
use prometheus::{Counter, CounterVec, Encoder as _, Error, Gauge, GaugeVec, Opts, Registry, TextEncoder};

/// What [`Exposition::text`] is, for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An answer in the making. A value that is not known is not told: Prometheus has words for what is absent.
#[derive(Debug, Default)]
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// A number that only grows, since the daemon's start. The name ends in `_total`.
    ///
    /// # Errors
    /// The name was told before, or is none.
    pub fn counter(&self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let counter = Counter::new(name, help)?;
        counter.inc_by(value as f64);
        self.tell(counter)
    }

    /// A number of now.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn gauge(&self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        let gauge = Gauge::new(name, help)?;
        gauge.set(value);
        self.tell(gauge)
    }

    /// Numbers that only grow, told apart by labels.
    ///
    /// # Errors
    /// As [`counter`](Self::counter); or a series has not as many values as there are labels.
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
        self.tell(counters)
    }

    /// Numbers of now, told apart by labels.
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
        self.tell(gauges)
    }

    fn tell(&self, collector: impl Collector + 'static) -> Result<(), Error> {
        self.registry.register(Box::new(collector))
    }

    /// All of it, by name.
    ///
    /// # Errors
    /// A number that cannot be written.
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
    fn labels_are_escaped_and_what_is_not_known_is_absent() {
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

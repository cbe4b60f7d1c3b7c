//! Bounds of the offset and the drift of a node's clock from exchanges of messages. Pure.
//!
//! The server sends a question at `sent`; by its own clock, the node receives it at `there` and
//! answers at `answered`; the server receives the answer at `back`. At the node's time `there` the
//! server's clock showed `sent` or more, and at `answered` it showed `back` or less, so the offset
//! (server's time minus node's time) was within `[sent − there, back − answered]` (Cristian 1989;
//! with both times of the node, as in NTP, the time that the node takes to answer does not matter).
//! Nothing else is known: a path with different delays in the two directions is within these
//! bounds, and neither clock can detect it.
//!
//! **Offset.** The bounds of all exchanges are projected to the present, with the bounds of the
//! drift, and intersected (Marzullo 1984). Slow delays of the two directions count separately: the
//! result is the fastest delay there plus the fastest delay back, so an exchange that was queued in
//! one direction still narrows the other side. The two bounds of one exchange are those of
//! different times: a node may answer a question seconds later, with its next message.
//!
//! **Drift.** If one exchange shows that the offset was at least `a` and a later one that it is at
//! most `b`, the rate between them was at most `(b − a) / span`, and vice versa. The least and the
//! greatest of these over all pairs are the steepest and the flattest line that fit between the
//! bounds (Duda, Harrus, Haddad, Bernard 1987; Moon, Skelly, Towsley 1999, who use linear
//! programming; with so few points every pair is checked). Points are removed where they are
//! closest for their age, and of two neighbors the binding one stays; so recent points are closer
//! together.
//!
//! **Assumptions.** The rates of the two clocks never differ by more than [`LIMIT`], and within
//! [`WINDOW`] their difference stays within [`WANDER`] of its mean. Under these assumptions the
//! bounds hold. Exchanges that contradict each other show a violation, and the estimate restarts
//! with the last exchange.

/// Maximum difference in rate: each clock is within 500 ppm of true time, which is also the fastest
/// rate at which the kernel slews a clock (RFC 5905: MAXFREQ).
pub(super) const LIMIT: f64 = 1000e-6;
/// Maximum change of the difference: the frequency tolerance of RFC 5905 (PHI).
pub(super) const WANDER: f64 = 15e-6;
/// Older exchanges do not constrain the present rate, nanoseconds of the node's time.
const WINDOW: i64 = 600_000_000_000;
/// Maximum number of points on either side. Each exchange checks every pair.
const MAX_POINTS: usize = 32;

/// Measurement of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The node's time at which the question arrived, nanoseconds since 1970.
    pub there: i64,
    /// The offset was at least this then, nanoseconds.
    pub low: i64,
    /// The node's time at which it answered, nanoseconds since 1970; not before `there`.
    pub answered: i64,
    /// The offset was at most this then, nanoseconds.
    pub high: i64,
}

impl Exchange {
    /// Evaluates a question sent at `sent` that arrived at `there` and was answered at `answered`,
    /// by the node's clock; the answer arrived at `back`. A node's answer is not trusted: absurd
    /// times give absurd bounds.
    #[must_use]
    pub fn new(sent: i64, (there, answered): (i64, i64), back: i64) -> Exchange {
        let there = there.min(answered);
        let low = sent.saturating_sub(there);
        let mut exchange = Exchange { there, low, answered, high: back.saturating_sub(answered) };
        exchange.high = exchange.high.max(exchange.low_when_answered(-LIMIT));
        exchange
    }

    /// The lower bound at the time of the answer, if the offset has changed at this rate since the
    /// question arrived.
    fn low_when_answered(&self, rate: f64) -> i64 {
        let held = self.answered.saturating_sub(self.there) as f64;
        self.low.saturating_add((held * rate).floor() as i64)
    }

    /// Least and greatest duration from question to answer without the time that the node took,
    /// nanoseconds. `drift`: bounds of the rate meanwhile.
    pub(super) fn round_trip(&self, drift: Bounds<f64>) -> Bounds<i64> {
        let at_rate = |rate| self.high.saturating_sub(self.low_when_answered(rate)).max(0);
        Bounds { low: at_rate(drift.high), high: at_rate(drift.low) }
    }
}

/// Lower and upper bound of a value, `low` ≤ `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds<T> {
    /// Lower bound.
    pub(super) low: T,
    /// Upper bound.
    pub(super) high: T,
}

impl Bounds<f64> {
    /// Middle of the bounds.
    pub(super) fn middle(&self) -> f64 {
        f64::midpoint(self.low, self.high)
    }

    /// Maximum distance from `value`.
    pub(super) fn max_distance(&self, value: f64) -> f64 {
        (self.high - value).max(value - self.low)
    }
}

impl Bounds<i64> {
    /// Middle of the bounds.
    pub(super) fn middle(&self) -> i64 {
        i64::midpoint(self.low, self.high)
    }

    /// Maximum distance from `value`.
    pub(super) fn max_distance(&self, value: i64) -> i64 {
        self.high.saturating_sub(value).max(value.saturating_sub(self.low))
    }
}

/// A bound of the offset at one time.
#[derive(Clone, Copy, Debug)]
struct Point {
    node: i64,
    offset: i64,
}

/// Bounds of offset and drift, see the module.
#[derive(Clone, Debug)]
pub(super) struct ClockEstimate {
    /// Node's time of the last exchange. `offset` are the bounds at this time.
    at: i64,
    offset: Bounds<i64>,
    drift: Bounds<f64>,
    lows: Vec<Point>,
    highs: Vec<Point>,
}

impl ClockEstimate {
    /// Bounds after one exchange.
    pub(super) fn new(exchange: Exchange) -> ClockEstimate {
        ClockEstimate {
            at: exchange.answered,
            offset: Bounds { low: exchange.low_when_answered(-LIMIT), high: exchange.high },
            drift: Bounds { low: -LIMIT, high: LIMIT },
            lows: vec![Point { node: exchange.there, offset: exchange.low }],
            highs: vec![Point { node: exchange.answered, offset: exchange.high }],
        }
    }

    /// Adds an exchange. Returns false if it contradicts the earlier ones: then only the new one
    /// counts.
    pub(super) fn add(&mut self, exchange: Exchange) -> bool {
        let moved = self.offset_at(exchange.answered);
        let low = exchange.low_when_answered(self.drift.low);
        let offset = Bounds { low: moved.low.max(low), high: moved.high.min(exchange.high) };
        if offset.low > offset.high || exchange.there < self.at {
            *self = ClockEstimate::new(exchange);
            return false;
        }
        (self.at, self.offset) = (exchange.answered, offset);
        self.lows.push(Point { node: exchange.there, offset: exchange.low });
        self.highs.push(Point { node: exchange.answered, offset: exchange.high });
        let oldest = exchange.answered.saturating_sub(WINDOW);
        for points in [&mut self.lows, &mut self.highs] {
            points.retain(|point| point.node >= oldest);
        }
        self.narrow_drift();
        true
    }

    /// Node's time of the last exchange.
    pub(super) fn at(&self) -> i64 {
        self.at
    }

    /// Bounds of the offset at a node's time that is not before the last exchange.
    pub(super) fn offset_at(&self, node: i64) -> Bounds<i64> {
        let span = node.saturating_sub(self.at).max(0) as f64;
        let (down, up) = ((self.drift.low * span).floor() as i64, (self.drift.high * span).ceil() as i64);
        Bounds { low: self.offset.low.saturating_add(down), high: self.offset.high.saturating_add(up) }
    }

    /// Bounds of the drift, now and in the near future.
    pub(super) fn drift(&self) -> Bounds<f64> {
        self.drift
    }

    /// Narrows the drift with all pairs, and removes surplus points.
    fn narrow_drift(&mut self) {
        let mean = loop {
            let mean = self.mean_drift();
            // The mean between any two moments of the window is within WANDER of the present.
            if mean.low - mean.high <= 2.0 * WANDER || self.lows.len().max(self.highs.len()) < 2 {
                break mean;
            }
            // The rate was not constant for so long.
            for points in [&mut self.lows, &mut self.highs] {
                points.drain(..points.len().div_ceil(2));
            }
        };
        let (low, high) = (mean.low.min(mean.high) - WANDER, mean.low.max(mean.high) + WANDER);
        self.drift = Bounds { low: low.clamp(-LIMIT, LIMIT), high: high.clamp(-LIMIT, LIMIT) };
        let rate = self.drift.middle();
        thin_out(&mut self.lows, |a, b| a.offset as f64 > b.offset as f64 - rate * (b.node - a.node) as f64);
        thin_out(&mut self.highs, |a, b| {
            (a.offset as f64) < b.offset as f64 - rate * (b.node - a.node) as f64
        });
    }

    /// The flattest and the steepest line between the points; `low` > `high` if there is none.
    fn mean_drift(&self) -> Bounds<f64> {
        let mut drift = Bounds { low: -LIMIT, high: LIMIT };
        for low in &self.lows {
            for high in &self.highs {
                let rise = low.offset.saturating_sub(high.offset) as f64;
                let span = low.node.saturating_sub(high.node) as f64;
                if span > 0.0 {
                    drift.low = drift.low.max(rise / span);
                } else if span < 0.0 {
                    drift.high = drift.high.min(rise / span);
                }
            }
        }
        drift
    }
}

/// Removes one point if there are too many: of the two neighbors that are closest for their age,
/// the one that does not bind. So the window stays covered at any rate of exchanges.
fn thin_out(points: &mut Vec<Point>, first_binds: impl Fn(&Point, &Point) -> bool) {
    let Some(last) = points.last().filter(|_| points.len() > MAX_POINTS) else { return };
    let now = last.node;
    let apart = |pair: &[Point]| match pair {
        [a, b] => (b.node - a.node) as f64 / (now - a.node).max(1) as f64,
        _ => f64::MAX,
    };
    let closest = (0..points.len() - 1)
        .min_by(|a, b| apart(&points[*a..*a + 2]).total_cmp(&apart(&points[*b..*b + 2])));
    if let Some(at) = closest {
        points.remove(if first_binds(&points[at], &points[at + 1]) { at + 1 } else { at });
    }
}

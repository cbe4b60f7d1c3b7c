//! What exchanges tell of a node's clock: bounds of its offset, and of its drift. Pure.
//!
//! The server asks at `sent`; the node has the question at `there` and answers at `answered`, by its clock; the answer is
//! here at `back`. At the node's time `there` the server's clock showed `sent` or more, at `answered` it showed `back` or
//! less, so the offset (server's time minus node's time) was within `[sent − there, back − answered]` (Cristian 1989; with
//! both times of the node, as in NTP, it does not matter how long that takes to answer). Nothing else is known: a path that
//! is slower one way than the other hides in there, and no clock on either side can see it.
//!
//! **Offset.** The bounds of all exchanges are moved to the present, by the bounds of the drift, and
//! intersected (Marzullo 1984). The slow way there and the slow way back of different exchanges count apart: what
//! remains is the fastest way there plus the fastest way back, so exchanges that waited in a queue on one of the
//! ways still narrow the other side.
//!
//! **Drift.** If an exchange says that the offset was at least `a` and a later one that it is at most `b`, the rate
//! between them was at most `(b − a) / span`, and the other way round. The least and the greatest of these over all
//! pairs are the steepest and the flattest line that fit between the bounds (Duda, Harrus, Haddad, Bernard 1987;
//! Moon, Skelly, Towsley 1999, who find them by linear programming; with so few points every pair is looked at).
//! Points are thinned out where they lie closest for their age, and of two neighbours the one that binds stays; so they lie
//! closer the later they are.
//!
//! **What is assumed.** The rates of the two clocks never differ by more than [`LIMIT`], and within [`WINDOW`] their
//! difference stays within [`WANDER`] of its mean. Under this the bounds hold. Exchanges that contradict
//! each other show that it did not, and everything begins anew with the last one.

/// Largest difference in rate: each clock is within 500 ppm of true time, which is also as fast as the kernel slews
/// one (RFC 5905: MAXFREQ).
pub(super) const LIMIT: f64 = 1000e-6;
/// How much the difference may change: the frequency tolerance of RFC 5905 (PHI).
pub(super) const WANDER: f64 = 15e-6;
/// Exchanges that are older say nothing of the present rate, nanoseconds of the node's time.
const WINDOW: i64 = 600_000_000_000;
/// Points kept on either side. Every pair is looked at with every exchange.
const POINTS: usize = 32;

/// What was measured in one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The node's time, nanoseconds since 1970.
    pub node: i64,
    /// The offset was at least this, nanoseconds.
    pub low: i64,
    /// The offset was at most this, nanoseconds.
    pub high: i64,
}

impl Sample {
    /// A question sent at `sent` that was there at `there` and answered at `answered`, by the node's clock; the answer
    /// was here at `back`. What a node answers is not to be trusted: absurd times give absurd bounds.
    #[must_use]
    pub fn new(sent: i64, (there, answered): (i64, i64), back: i64) -> Sample {
        let held = answered.saturating_sub(there).max(0);
        // The bound from below, moved to the time of the answer.
        let drifted = (held as f64 * LIMIT).ceil() as i64;
        let low = sent.saturating_sub(answered).saturating_add(held).saturating_sub(drifted);
        Sample { node: answered, low, high: back.saturating_sub(answered).max(low) }
    }

    /// From question to answer, without the time that the node took, nanoseconds.
    #[must_use]
    pub fn round_trip(&self) -> i64 {
        self.high.saturating_sub(self.low)
    }
}

/// Bounds of something, `low` ≤ `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds<T> {
    /// Not less than this.
    pub(super) low: T,
    /// Not more than this.
    pub(super) high: T,
}

impl Bounds<f64> {
    /// In the middle.
    pub(super) fn middle(&self) -> f64 {
        f64::midpoint(self.low, self.high)
    }

    /// Farthest from `value`.
    pub(super) fn error(&self, value: f64) -> f64 {
        (self.high - value).max(value - self.low)
    }
}

impl Bounds<i64> {
    /// In the middle.
    pub(super) fn middle(&self) -> i64 {
        i64::midpoint(self.low, self.high)
    }

    /// Farthest from `value`.
    pub(super) fn error(&self, value: i64) -> i64 {
        self.high.saturating_sub(value).max(value.saturating_sub(self.low))
    }
}

/// A bound of the offset at one moment.
#[derive(Clone, Copy, Debug)]
struct Point {
    node: i64,
    offset: i64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Estimate {
    /// The last exchange, and the bounds of the offset there.
    at: i64,
    offset: Bounds<i64>,
    drift: Bounds<f64>,
    lows: Vec<Point>,
    highs: Vec<Point>,
}

impl Estimate {
    /// What one exchange tells.
    pub(super) fn new(sample: Sample) -> Estimate {
        let Sample { node, low, high } = sample;
        Estimate {
            at: node,
            offset: Bounds { low, high },
            drift: Bounds { low: -LIMIT, high: LIMIT },
            lows: vec![Point { node, offset: low }],
            highs: vec![Point { node, offset: high }],
        }
    }

    /// Takes in a further exchange. Returns false if it contradicts what came before: then only it counts.
    pub(super) fn add(&mut self, sample: Sample) -> bool {
        let moved = self.offset_at(sample.node);
        let offset = Bounds { low: moved.low.max(sample.low), high: moved.high.min(sample.high) };
        if offset.low > offset.high || sample.node < self.at {
            *self = Estimate::new(sample);
            return false;
        }
        (self.at, self.offset) = (sample.node, offset);
        self.lows.push(Point { node: sample.node, offset: sample.low });
        self.highs.push(Point { node: sample.node, offset: sample.high });
        let oldest = sample.node.saturating_sub(WINDOW);
        for points in [&mut self.lows, &mut self.highs] {
            points.retain(|point| point.node >= oldest);
        }
        self.learn();
        true
    }

    /// The node's time of the last exchange.
    pub(super) fn at(&self) -> i64 {
        self.at
    }

    /// Bounds of the offset at a node's time that is not before the last exchange.
    pub(super) fn offset_at(&self, node: i64) -> Bounds<i64> {
        let span = node.saturating_sub(self.at).max(0) as f64;
        let (down, up) = ((self.drift.low * span).floor() as i64, (self.drift.high * span).ceil() as i64);
        Bounds { low: self.offset.low.saturating_add(down), high: self.offset.high.saturating_add(up) }
    }

    /// Bounds of the drift, now and for a while.
    pub(super) fn drift(&self) -> Bounds<f64> {
        self.drift
    }

    /// Narrows the drift by all pairs, and thins out the points.
    fn learn(&mut self) {
        let mean = loop {
            let mean = self.mean_drift();
            // The mean between any two moments of the window is within WANDER of the present.
            if mean.low - mean.high <= 2.0 * WANDER || self.lows.len().max(self.highs.len()) < 2 {
                break mean;
            }
            // It was not constant for so long.
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

    /// The flattest and the steepest line between the points; crossed, if there is none.
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

/// Takes out one point if there are too many: of the two neighbours that are closest to each other for their age the one
/// that does not bind. So the window stays covered, however often there are exchanges.
fn thin_out(points: &mut Vec<Point>, first_binds: impl Fn(&Point, &Point) -> bool) {
    let Some(last) = points.last().filter(|_| points.len() > POINTS) else { return };
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

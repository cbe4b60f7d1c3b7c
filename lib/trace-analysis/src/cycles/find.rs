//! Periods of a series.
//!
//! A period is a shift at which the series resembles itself, and again at twice and three times the
//! shift: each of these three maxima of the autocorrelation exceeds its mean over one period around
//! it. The contrast of the period is the least of these differences. Among the periods whose
//! contrast exceeds the bound the shortest is selected, its repeating part is subtracted, and the
//! remainder is searched again, so that two superimposed cycles are both found.
//!
//! The bound estimates chance: [`MARGIN`] times the highest contrast in [`SHUFFLES`] series made of
//! the same pieces in random order, but at least [`LEAST`]. A piece is as long as the series
//! resembles itself, so that individual bursts stay intact.

use super::autocorrelation::autocorrelation;

/// Shortest period in samples. Below it a burst and a pause cannot be distinguished.
const SHORTEST: usize = 4;
/// Minimum number of periods in a series, so that three repetitions can be detected.
const REPETITIONS: usize = 4;
/// Minimum number of samples for a search.
const FEWEST: usize = SHORTEST * REPETITIONS;
/// Maximum number of periods of one series.
const PERIODS: usize = 3;
/// Number of shuffled series.
const SHUFFLES: usize = 20;
/// Factor by which the contrast must exceed chance.
const MARGIN: f32 = 1.2;
/// Lowest bound.
const LEAST: f32 = 0.25;
/// Required number of standard errors, with each repetition of a period as one observation.
const OBSERVED: f32 = 1.2;
/// Least share of the variance that a useful period explains.
const WEAKEST: f64 = 0.1;
/// Reciprocal of the tolerance of a multiple of a period, as a share of its position: iterations do
/// not all take the same time.
const JITTER: usize = 50;
/// Number of multiples that are used to measure a period.
const FOLLOWED: usize = 64;

/// A period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Period {
    /// Length in samples.
    pub(super) period: f64,
    /// Autocorrelation at this shift. After the subtraction of stronger periods it is multiplied by
    /// the remaining share of the variance.
    pub(super) strength: f64,
    /// Required contrast.
    pub(super) bound: f64,
}

/// Returns the periods of a series, the strongest first.
pub(super) fn periods(samples: &[u64]) -> Vec<Period> {
    let n = samples.len();
    let raw: Vec<f32> = samples.iter().map(|sample| *sample as f32).collect();
    if n < FEWEST || raw.iter().all(|sample| *sample == raw[0]) {
        return Vec::new();
    }
    let mut rest = prepared(&raw);
    let whole = Correlation::of(&rest);
    let mut correlation = whole.clone();
    let mut found: Vec<Period> = Vec::new();
    let mut bound = None;
    while found.len() < PERIODS {
        let least = bound.unwrap_or(LEAST);
        let Some(mut lag) = correlation.shortest(least) else { break };
        // The bound is computed only if there is a candidate.
        if bound.is_none() {
            let chance = chance(&raw, whole.length(), least);
            bound = Some(chance);
            let Some(still) = correlation.shortest(chance) else { break };
            lag = still;
        }
        let period = correlation.measured(lag);
        let at = period.round() as usize;
        let share = energy(&rest) / n as f32;
        let strength = f64::from((correlation.peak(at, 1).1 * share).clamp(0.0, 1.0));
        let in_whole = f64::from(whole.peak(at, 1).1);
        if strength < WEAKEST || found.iter().any(|before| is_multiple(period, before, in_whole)) {
            break;
        }
        found.push(Period { period, strength, bound: f64::from(bound_at(at, n, bound.unwrap_or(least))) });
        subtract(&mut rest, period);
        correlation = Correlation::of(&rest);
    }
    found.sort_by(|a, b| b.strength.total_cmp(&a.strength));
    found
}

/// Returns the bound for a period of a series: each repetition is one observation, and few may
/// agree by chance.
fn bound_at(lag: usize, n: usize, bound: f32) -> f32 {
    bound.max(OBSERVED / (n as f32 / lag.max(1) as f32).sqrt())
}

/// Returns true if a period is an artifact of an earlier one. The remainder of a cycle whose period
/// is not a whole number of samples may repeat with a multiple of the period.
fn is_multiple(period: f64, before: &Period, strength: f64) -> bool {
    let times = (period / before.period).round().max(1.0);
    let slack = 0.15 + 1.0 / before.period;
    (period / before.period - times).abs() < 0.05 * times && strength < before.strength + slack
}

/// Returns the smoothed samples with mean 0 and variance 1. A period between two samples is then
/// visible at both.
fn prepared(raw: &[f32]) -> Vec<f32> {
    let n = raw.len();
    let mut samples: Vec<f32> =
        (0..n).map(|i| (raw[i.saturating_sub(1)] + 2.0 * raw[i] + raw[(i + 1).min(n - 1)]) / 4.0).collect();
    let mean = samples.iter().map(|sample| f64::from(*sample)).sum::<f64>() / n as f64;
    samples.iter_mut().for_each(|sample| *sample -= mean as f32);
    let deviation = (energy(&samples) / n as f32).sqrt();
    if deviation > 0.0 {
        samples.iter_mut().for_each(|sample| *sample /= deviation);
    }
    samples
}

fn energy(samples: &[f32]) -> f32 {
    samples.iter().map(|sample| sample * sample).sum()
}

/// Subtracts the part that repeats with a period: the mean of all samples at the same position in
/// it.
fn subtract(samples: &mut [f32], period: f64) {
    let places = (period.round() as usize).max(1);
    let place = |i: usize| ((i as f64 / period).fract() * places as f64) as usize % places;
    let mut sums = vec![(0.0f32, 0.0f32); places];
    for (i, sample) in samples.iter().enumerate() {
        let (sum, count) = &mut sums[place(i)];
        (*sum, *count) = (*sum + sample, *count + 1.0);
    }
    for (i, sample) in samples.iter_mut().enumerate() {
        let (sum, count) = sums[place(i)];
        *sample -= sum / count.max(1.0);
    }
}

#[derive(Clone)]
struct Correlation {
    /// Autocorrelation by lag.
    values: Vec<f32>,
    /// Sums of the values below each lag.
    sums: Vec<f32>,
    longest: usize,
}

impl Correlation {
    fn of(samples: &[f32]) -> Correlation {
        let n = samples.len();
        let values = autocorrelation(samples, n * 7 / 8);
        let mut sums = vec![0.0; values.len() + 1];
        for (lag, value) in values.iter().enumerate() {
            sums[lag + 1] = sums[lag] + value;
        }
        Correlation { values, sums, longest: n / REPETITIONS }
    }

    /// Returns the shift up to which the series resembles itself.
    fn length(&self) -> usize {
        self.values.iter().position(|value| *value < 0.3).unwrap_or(1).max(1)
    }

    /// Returns the position and value of the maximum near a multiple of a lag.
    fn peak(&self, lag: usize, multiple: usize) -> (usize, f32) {
        let middle = lag * multiple;
        let width = 1 + middle / JITTER;
        let last = self.values.len() - 1;
        let near = middle.saturating_sub(width).min(last)..=(middle + width).min(last);
        near.map(|lag| (lag, self.values[lag])).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    fn contrast(&self, lag: usize) -> f32 {
        let one = |multiple: usize| {
            let (at, peak) = self.peak(lag, multiple);
            let from = at.saturating_sub(lag / 2);
            let to = (at + lag / 2 + 1).min(self.values.len());
            peak - (self.sums[to] - self.sums[from]) / (to - from) as f32
        };
        one(1).min(one(2)).min(one(3))
    }

    /// Returns the maxima that can be periods.
    fn candidates(&self, least: f32) -> impl Iterator<Item = usize> + '_ {
        (SHORTEST..=self.longest).filter(move |&lag| {
            let value = self.values[lag];
            value >= least && value >= self.values[lag - 1] && value > self.values[lag + 1]
        })
    }

    /// Returns the shortest period whose contrast exceeds a bound.
    fn shortest(&self, bound: f32) -> Option<usize> {
        let n = self.longest * REPETITIONS;
        self.candidates(bound).find(|lag| self.contrast(*lag) > bound_at(*lag, n, bound))
    }

    /// Returns the highest contrast.
    fn highest(&self, least: f32) -> f32 {
        self.candidates(least).map(|lag| self.contrast(lag)).fold(0.0, f32::max)
    }

    /// Returns a period to a fraction of a sample, from the position of its last multiple that can
    /// be found.
    fn measured(&self, lag: usize) -> f64 {
        let mut period = self.refined(lag);
        for multiple in 2..=FOLLOWED {
            let middle = (period * multiple as f64).round() as usize;
            // Half a period away it would be the next multiple.
            let width = (1 + middle / JITTER / multiple.min(8)).min(lag / 4 + 1);
            if middle + width + 1 >= self.values.len() {
                break;
            }
            let near = middle.saturating_sub(width)..=middle + width;
            let Some(at) = near.max_by(|a, b| self.values[*a].total_cmp(&self.values[*b])) else { break };
            if self.values[at] < LEAST {
                break;
            }
            period = self.refined(at) / multiple as f64;
        }
        period
    }

    /// Returns the top of the parabola through a maximum and its neighbors.
    fn refined(&self, lag: usize) -> f64 {
        let [before, here, after] = [lag - 1, lag, lag + 1].map(|lag| f64::from(self.values[lag]));
        let bend = before - 2.0 * here + after;
        let shift = if bend < 0.0 { 0.5 * (before - after) / bend } else { 0.0 };
        lag as f64 + shift.clamp(-0.5, 0.5)
    }
}

/// Returns the highest contrast in shuffled series.
fn chance(raw: &[f32], piece: usize, least: f32) -> f32 {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut highest = 0.0f32;
    for _ in 0..SHUFFLES {
        let mut pieces: Vec<&[f32]> = raw.chunks(piece).collect();
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, random.below(i + 1));
        }
        let correlation = Correlation::of(&prepared(&pieces.concat()));
        highest = highest.max(correlation.highest(least / 2.0));
    }
    (MARGIN * highest).max(least)
}

/// Random numbers that are the same in each run (Marsaglia 2003, xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests;

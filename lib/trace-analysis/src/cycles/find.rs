//! Periods of a series.
//!
//! A period is a shift at which the series is like itself, and at twice and three times of it again: each of these three
//! maxima of the autocorrelation stands out from its mean over one period around it. How far the lowest of them does is
//! the contrast of the period. Of the periods whose contrast is above the bound the shortest is taken, what repeats with
//! it is subtracted, and the rest is searched again, so that two cycles on top of each other are both found.
//!
//! The bound is what chance gives: [`MARGIN`] times the highest contrast in [`SHUFFLES`] series made of the same pieces
//! in random order, but at least [`LEAST`]. A piece is as long as the series resembles itself, so that the bursts
//! themselves stay whole.

use super::autocorrelation::autocorrelation;

/// Shortest period, in samples: below it a burst and a pause could not be told apart.
const SHORTEST: usize = 4;
/// A period has to fit so often, so that three repetitions can be seen.
const REPETITIONS: usize = 4;
/// Fewest samples in which a period is looked for.
const FEWEST: usize = SHORTEST * REPETITIONS;
/// Periods of one series.
const PERIODS: usize = 3;
/// Shuffled series.
const SHUFFLES: usize = 20;
/// How much more than chance it has to be.
const MARGIN: f32 = 1.2;
/// Lowest bound.
const LEAST: f32 = 0.25;
/// Standard errors that it has to be, if each repetition of a period is one observation of it.
const OBSERVED: f32 = 1.2;
/// What repeats less of the variance of the series is of no use to anybody.
const WEAKEST: f64 = 0.1;
/// How far a multiple of a period may be from where it should be, as a share of it: iterations do not all take the same time.
const JITTER: usize = 50;
/// Multiples over which a period is followed to measure it.
const FOLLOWED: usize = 64;

/// A period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Period {
    /// Samples.
    pub(super) period: f64,
    /// Autocorrelation at that shift; of what is left after stronger ones, times the share of the variance that is left.
    pub(super) strength: f64,
    /// How much the contrast had to be.
    pub(super) bound: f64,
}

/// The periods of a series, the strongest first.
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
        // What chance gives is asked only if there is something.
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

/// The bound for a period of a series: each repetition is one observation, of which few may agree by chance.
fn bound_at(lag: usize, n: usize, bound: f32) -> f32 {
    bound.max(OBSERVED / (n as f32 / lag.max(1) as f32).sqrt())
}

/// What is left of a cycle whose period is not a whole number of samples may seem to repeat with a multiple of it.
fn is_multiple(period: f64, before: &Period, strength: f64) -> bool {
    let times = (period / before.period).round().max(1.0);
    let slack = 0.15 + 1.0 / before.period;
    (period / before.period - times).abs() < 0.05 * times && strength < before.strength + slack
}

/// Smoothed, so that a period between two samples is seen at both; mean 0 and variance 1.
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

/// Takes away what repeats with a period: the mean of all samples at the same place in it.
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
    /// By lag.
    values: Vec<f32>,
    /// Of the values below a lag.
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

    /// The shift up to which the series resembles itself.
    fn length(&self) -> usize {
        self.values.iter().position(|value| *value < 0.3).unwrap_or(1).max(1)
    }

    /// The highest value near a multiple of a lag, and where it is.
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

    /// The maxima that are periods at all.
    fn candidates(&self, least: f32) -> impl Iterator<Item = usize> + '_ {
        (SHORTEST..=self.longest).filter(move |&lag| {
            let value = self.values[lag];
            value >= least && value >= self.values[lag - 1] && value > self.values[lag + 1]
        })
    }

    /// The shortest period whose contrast is above a bound.
    fn shortest(&self, bound: f32) -> Option<usize> {
        let n = self.longest * REPETITIONS;
        self.candidates(bound).find(|lag| self.contrast(*lag) > bound_at(*lag, n, bound))
    }

    /// The highest contrast.
    fn highest(&self, least: f32) -> f32 {
        self.candidates(least).map(|lag| self.contrast(lag)).fold(0.0, f32::max)
    }

    /// A period to a fraction of a sample: the place of the last of its multiples that can be followed.
    fn measured(&self, lag: usize) -> f64 {
        let mut period = self.refined(lag);
        for multiple in 2..=FOLLOWED {
            let middle = (period * multiple as f64).round() as usize;
            // Half a period off it would be the next one.
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

    /// The top of the parabola through a maximum and its neighbours.
    fn refined(&self, lag: usize) -> f64 {
        let [before, here, after] = [lag - 1, lag, lag + 1].map(|lag| f64::from(self.values[lag]));
        let bend = before - 2.0 * here + after;
        let shift = if bend < 0.0 { 0.5 * (before - after) / bend } else { 0.0 };
        lag as f64 + shift.clamp(-0.5, 0.5)
    }
}

/// What contrast chance gives.
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

/// Numbers that are random enough, the same in each run (Marsaglia 2003, xorshift).
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

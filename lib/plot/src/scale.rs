//! Coordinates of values, ticks of axes, staircases.

use std::fmt::Write as _;

/// A linear map from values to coordinates.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Least value.
    pub from: f64,
    /// Greatest value.
    pub to: f64,
    /// Coordinate of the least value.
    pub start: f64,
    /// Coordinate of the greatest value.
    pub end: f64,
}

impl Scale {
    /// Returns the coordinate of a value. Values outside the range map to the nearer end.
    #[must_use]
    pub fn at(&self, value: f64) -> f64 {
        let span = self.to - self.from;
        let share = if span > 0.0 { (value - self.from) / span } else { 0.5 };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }
}

/// Returns about `wanted` round numbers from 0 to `most`, in steps of 1, 2 or 5 times a power of
/// ten within a unit. A unit is `unit` times the next smaller one (1000, or 1024 for bytes).
#[must_use]
pub fn ticks(most: f64, wanted: usize, unit: f64) -> Vec<f64> {
    if most <= 0.0 || !most.is_finite() {
        return vec![0.0];
    }
    let rough = most / wanted as f64;
    let power = if rough >= 1.0 { rough.log(unit).floor() } else { 0.0 };
    let within = rough / unit.powf(power);
    let ten = 10f64.powf(within.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * ten >= within).unwrap_or(10.0);
    // Use 1 of the next unit instead of 1000 of this one.
    let step = if step * ten >= 1000.0 { unit } else { step * ten } * unit.powf(power);
    (0..).map(|number| f64::from(number) * step).take_while(|value| *value <= most * 1.000_001).collect()
}

/// Returns the path of the area between two lines over steps of `x`, the first of which begins at
/// 0. The lines are staircases, because each value holds for a whole interval.
#[must_use]
pub fn staircase(x: &Scale, step: f64, from: &[f64], to: &[f64]) -> String {
    let mut path = String::new();
    let mut at = 0;
    while at < to.len() {
        // Steps of height 0 are not drawn.
        if from[at] == to[at] {
            at += 1;
            continue;
        }
        let run = to[at..].iter().zip(&from[at..]).take_while(|(to, from)| to != from).count();
        let _ = write!(path, "M{:.1} {:.1}", x.at(at as f64 * step), from[at]);
        let border = |index: usize| x.at(index as f64 * step);
        for (index, to) in to.iter().enumerate().skip(at).take(run) {
            let _ = write!(path, "V{to:.1}H{:.1}", border(index + 1));
        }
        for index in (at..at + run).rev() {
            let _ = write!(path, "V{:.1}H{:.1}", from[index], border(index));
        }
        path.push('z');
        at += run;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(10.0, 4, 1000.0), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(3_500.0, 4, 1000.0), [0.0, 1000.0, 2000.0, 3000.0]);
        let mebi = 1_048_576.0;
        assert_eq!(ticks(700.0 * mebi, 3, 1024.0), [0.0, 500.0 * mebi]);
        assert_eq!(ticks(3.9 * mebi, 5, 1024.0), [0.0, 1.0, 2.0, 3.0].map(|value| value * mebi));
        assert_eq!(ticks(0.0, 3, 1000.0), [0.0]);
    }

    #[test]
    fn staircases_have_gaps() {
        let x = Scale { from: 0.0, to: 4.0, start: 0.0, end: 4.0 };
        let path = staircase(&x, 1.0, &[9.0; 4], &[5.0, 9.0, 4.0, 3.0]);
        assert_eq!(path, "M0.0 9.0V5.0H1.0V9.0H0.0zM2.0 9.0V4.0H3.0V3.0H4.0V9.0H3.0V9.0H2.0z");
    }
}

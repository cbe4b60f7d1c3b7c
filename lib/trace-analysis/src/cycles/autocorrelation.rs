//! Autocorrelation of a series, by the fast Fourier transform (Wiener–Khinchin; Cooley and Tukey
//! 1965).
//!
//! This is a separate implementation, because the crates for it take longer to build than the rest
//! of the analyses.

use std::f32::consts::TAU;

/// A complex number.
type Complex = (f32, f32);

/// Transforms a series whose length is a power of two, in place.
fn transform(values: &mut [Complex]) {
    let n = values.len();
    let bits = n.trailing_zeros();
    if n < 2 {
        return;
    }
    for i in 0..n {
        let mirrored = i.reverse_bits() >> (usize::BITS - bits);
        if i < mirrored {
            values.swap(i, mirrored);
        }
    }
    let roots: Vec<Complex> = (0..n / 2)
        .map(|i| {
            let (sine, cosine) = (-TAU * i as f32 / n as f32).sin_cos();
            (cosine, sine)
        })
        .collect();
    let mut half = 1;
    while half < n {
        let stride = n / (2 * half);
        for block in values.chunks_exact_mut(2 * half) {
            let (even, odd) = block.split_at_mut(half);
            for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
                let root = roots[i * stride];
                let turned = (odd.0 * root.0 - odd.1 * root.1, odd.0 * root.1 + odd.1 * root.0);
                *odd = (even.0 - turned.0, even.1 - turned.1);
                *even = (even.0 + turned.0, even.1 + turned.1);
            }
        }
        half *= 2;
    }
}

/// Returns the correlation of a series with itself shifted by 0, 1, … up to `lags` samples: the
/// product of the two overlapping parts, divided by the geometric mean of their energies, thus
/// between −1 and 1. The mean of the series must be 0.
pub(super) fn autocorrelation(series: &[f32], lags: usize) -> Vec<f32> {
    let n = series.len();
    let mut values = vec![(0.0, 0.0); (2 * n).next_power_of_two()];
    values.iter_mut().zip(series).for_each(|(value, sample)| value.0 = *sample);
    transform(&mut values);
    values.iter_mut().for_each(|value| *value = (value.0 * value.0 + value.1 * value.1, 0.0));
    // For real, symmetric values the inverse transform equals the transform.
    transform(&mut values);
    let scale = values.len() as f32;
    let mut energy = vec![0.0f64; n + 1];
    for (i, sample) in series.iter().enumerate() {
        energy[i + 1] = energy[i] + f64::from(*sample) * f64::from(*sample);
    }
    let all = energy[n];
    (0..n.min(lags + 1))
        .map(|lag| {
            let product = f64::from(values[lag].0 / scale);
            let energies = (energy[n - lag] * (all - energy[lag])).sqrt();
            // If one part is almost zero, rounding would determine the result.
            if energies > all * 1e-6 { (product / energies).clamp(-1.0, 1.0) as f32 } else { 0.0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::autocorrelation;
    use proptest::prelude::*;

    /// Computes the autocorrelation by its definition.
    fn direct(series: &[f32], lags: usize) -> Vec<f32> {
        let n = series.len();
        let sum = |from: &[f32], to: &[f32]| -> f64 {
            from.iter().zip(to).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        (0..=lags.min(n - 1))
            .map(|lag| {
                let (early, late) = (&series[..n - lag], &series[lag..]);
                let energies = (sum(early, early) * sum(late, late)).sqrt();
                if energies > sum(series, series) * 1e-6 { (sum(early, late) / energies) as f32 } else { 0.0 }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn autocorrelation_matches_its_definition(series in prop::collection::vec(-100.0f32..100.0, 1..300)) {
            let lags = series.len() * 3 / 4;
            let (fast, slow) = (autocorrelation(&series, lags), direct(&series, lags));
            prop_assert_eq!(fast.len(), slow.len());
            for (lag, (fast, slow)) in fast.iter().zip(&slow).enumerate() {
                prop_assert!((fast - slow).abs() < 1e-3, "{}: {} {}", lag, fast, slow);
            }
        }
    }

    #[test]
    fn zeros_do_not_correlate() {
        assert_eq!(autocorrelation(&[0.0; 8], 6), [0.0; 7]);
        assert_eq!(autocorrelation(&[], 3), [0.0; 0]);
    }
}

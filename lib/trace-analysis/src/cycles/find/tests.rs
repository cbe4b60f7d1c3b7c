//! Series whose periods are known.

use super::{Period, Random, periods};

const N: usize = 4096;

/// Returns bursts of `bytes` over `width` samples, one per `period` samples.
fn bursts(n: usize, period: f64, width: usize, bytes: u64) -> Vec<u64> {
    let mut samples = vec![0; n];
    let mut begin = 0.0;
    while (begin as usize) < n {
        let from = begin as usize;
        samples[from..(from + width).min(n)].iter_mut().for_each(|sample| *sample += bytes);
        begin += period;
    }
    samples
}

fn sum(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter().zip(other).map(|(a, b)| a + b).collect()
}

fn close(found: &Period, period: f64) -> bool {
    (found.period - period).abs() < 0.01 * period
}

#[test]
fn periods_of_any_length_are_found() {
    for period in [5.0, 10.5, 37.3, 64.0, 100.0, 333.3, 1000.0] {
        for width in [1, 2, 3, 30] {
            if width as f64 > period * 0.6 {
                continue;
            }
            let found = periods(&bursts(N, period, width, 1000));
            assert!(found.len() == 1 && close(&found[0], period), "{period} {width}: {found:?}");
            assert!(found[0].strength > 0.6, "{period} {width}: {found:?}");
        }
    }
}

#[test]
fn four_repetitions_suffice_and_fewer_do_not() {
    let found = periods(&bursts(450, 100.0, 5, 7));
    assert!(found.len() == 1 && close(&found[0], 100.0), "{found:?}");
    assert_eq!(periods(&bursts(300, 100.0, 5, 7)), []);
}

#[test]
fn two_bursts_in_a_cycle_are_one_cycle() {
    let mut samples = bursts(N, 100.0, 3, 1000);
    let late = bursts(N - 30, 100.0, 3, 1000);
    late.iter().enumerate().for_each(|(i, sample)| samples[i + 30] += sample);
    let found = periods(&samples);
    assert!(found.len() == 1 && close(&found[0], 100.0), "{found:?}");
}

#[test]
fn a_wave_is_found() {
    let wave: Vec<u64> =
        (0..N).map(|i| (1000.0 + 800.0 * (i as f64 * std::f64::consts::TAU / 77.0).sin()) as u64).collect();
    let found = periods(&wave);
    assert!(found.len() == 1 && close(&found[0], 77.0) && found[0].strength > 0.95, "{found:?}");
}

#[test]
fn two_superimposed_cycles_are_both_found() {
    for (one, other, width) in [(70.0, 110.0, 2), (50.0, 320.0, 10), (31.0, 47.0, 1)] {
        let found = periods(&sum(&bursts(N, one, width, 1000), &bursts(N, other, width, 1000)));
        assert!(found.iter().any(|found| close(found, one)), "{one} of {one}, {other}: {found:?}");
        assert!(found.iter().any(|found| close(found, other)), "{other} of {one}, {other}: {found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    }
}

#[test]
fn iterations_of_varying_length_are_a_cycle() {
    let mut random = Random(7);
    let mut samples = vec![0; N];
    let mut begin = 0;
    while begin + 8 < N {
        samples[begin..begin + 8].iter_mut().for_each(|sample| *sample = 100);
        begin += 98 + random.below(5);
    }
    let found = periods(&samples);
    assert!(found.len() == 1 && close(&found[0], 100.0), "{found:?}");
}

#[test]
fn a_cycle_is_found_in_noise() {
    let mut random = Random(11);
    let noise: Vec<u64> = (0..N).map(|_| random.below(1000) as u64).collect();
    let found = periods(&sum(&noise, &bursts(N, 64.0, 4, 2000)));
    assert!(found.len() == 1 && close(&found[0], 64.0), "{found:?}");
}

#[test]
fn a_constant_rate_one_burst_and_nothing_have_no_cycle() {
    assert_eq!(periods(&[]), []);
    assert_eq!(periods(&[5]), []);
    assert_eq!(periods(&[5; N]), []);
    assert_eq!(periods(&[0; N]), []);
    let mut burst = vec![0; N];
    burst[100..140].fill(1 << 20);
    assert_eq!(periods(&burst), []);
    burst[3000..3040].fill(1 << 20);
    assert_eq!(periods(&burst), [], "two bursts");
    let ramp: Vec<u64> = (0..N as u64).collect();
    assert_eq!(periods(&ramp), []);
}

/// Returns rates without a cycle, of several kinds.
fn without_cycle(kind: usize, seed: u64) -> Vec<u64> {
    let mut random = Random(seed * 7919 + 17);
    let n = 500 + random.below(3000);
    let mut samples = vec![0u64; n];
    match kind {
        0 => samples.iter_mut().for_each(|sample| *sample = random.below(1000) as u64),
        1 => {
            // A few large values.
            for _ in 0..5 + random.below(40) {
                samples[random.below(n)] += 1000;
            }
        }
        2 => {
            // Bursts of many samples.
            for _ in 0..4 + random.below(20) {
                let (from, width) = (random.below(n), 5 + random.below(30));
                samples[from..(from + width).min(n)].iter_mut().for_each(|sample| *sample += 1000);
            }
        }
        3 => {
            let mut level = 100_000i64;
            for sample in &mut samples {
                level = (level + random.below(2001) as i64 - 1000).max(0);
                *sample = level as u64;
            }
        }
        _ => {
            // Exponential pauses.
            let mut at = 0.0;
            while (at as usize) < n {
                samples[at as usize] += 1000;
                at += -30.0 * ((1 + random.below(1_000_000)) as f64 / 1e6).ln();
            }
        }
    }
    samples
}

#[test]
fn series_without_a_cycle_have_no_period() {
    for kind in 0..5 {
        let wrong: Vec<_> =
            (1..=40).filter(|seed| !periods(&without_cycle(kind, *seed)).is_empty()).collect();
        assert!(wrong.is_empty(), "kind {kind}: {wrong:?}");
    }
}

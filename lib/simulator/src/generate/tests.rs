//! Compares the models with the paper's tables.

#![allow(clippy::unwrap_used)]

use super::{MODELS, generate};

/// Table 1: MB (10^6) of data (0: missing), MB moved, requests, MB/s, requests/s.
const TABLE_1: [(&str, [f64; 5]); 7] = [
    ("bvi", [171.0, 22_835.0, 1_380_457.0, 18.2, 1097.0]),
    ("ccm", [11.6, 1812.0, 54_125.0, 8.8, 264.0]),
    ("forma", [30.0, 15_155.0, 475_826.0, 73.6, 2310.0]),
    ("gcm", [229.0, 266.2, 7953.0, 0.14, 4.2]),
    ("les", [224.0, 7803.0, 22_384.0, 53.4, 153.0]),
    ("upw", [0.0, 61.5, 1840.0, 0.10, 3.1]),
    ("venus", [55.2, 16_712.0, 34_904.0, 44.1, 92.0]),
];

/// Table 2: MB (2^20) per second read, written, requests per second read, written, average KB,
/// ratio. 0: misprint.
const TABLE_2: [(&str, [f64; 6]); 7] = [
    ("bvi", [12.3, 5.34, 913.0, 185.0, 16.1, 2.31]),
    ("ccm", [4.25, 3.96, 135.0, 128.0, 31.9, 1.07]),
    ("forma", [62.2, 5.68, 1990.0, 300.0, 30.4, 11.0]),
    ("gcm", [0.0107, 0.12, 0.34, 3.85, 31.9, 0.089]),
    ("les", [24.0, 25.2, 74.0, 81.0, 325.0, 0.95]),
    ("upw", [0.0012, 0.0, 0.037, 3.05, 32.7, 0.0]),
    ("venus", [26.4, 14.7, 60.0, 32.0, 456.0, 1.80]),
];

fn near(what: &str, ours: f64, paper: f64, within: f64) {
    if paper != 0.0 {
        assert!((ours / paper - 1.0).abs() <= within, "{what}: ours {ours}, the paper's {paper}");
    }
}

#[test]
fn models_reproduce_the_tables_of_the_paper() {
    for ((model, (name, first)), (_, second)) in MODELS.iter().zip(TABLE_1).zip(TABLE_2) {
        assert_eq!(model.name, name);
        let made = generate(model, None, 1);
        let seconds = (made.requests.iter().map(|request| request.cpu).sum::<u64>() + made.rest) as f64 / 1e9;
        let of = |write: bool| made.requests.iter().filter(move |request| request.write == write);
        let [read, written] = [false, true].map(|write| of(write).map(|r| r.length).sum::<u64>() as f64);
        let [reads, writes] = [false, true].map(|write| of(write).count() as f64);
        let mut ends = vec![0; made.files.len()];
        for request in &made.requests {
            let end = &mut ends[request.file as usize];
            *end = request.end().max(*end);
        }
        let data = ends.iter().sum::<u64>() as f64;
        let (moved, requests) = (read + written, reads + writes);
        near(&format!("{name} seconds"), seconds, model.cpu as f64 / 1e9, 1e-6);
        let ours = [data / 1e6, moved / 1e6, requests, moved / 1e6 / seconds, requests / seconds];
        for (nth, (ours, paper)) in ours.into_iter().zip(first).enumerate() {
            near(&format!("{name}, table 1, {nth}"), ours, paper, 0.1);
        }
        // Parameters of the generator.
        for (nth, within) in [(0, 0.02), (1, 0.001), (2, 0.0)] {
            near(&format!("{name}, given {nth}"), ours[nth], first[nth], within);
        }
        let (mib, kib) = (f64::from(1 << 20), 1024.0);
        let ours = [
            read / mib / seconds,
            written / mib / seconds,
            reads / seconds,
            writes / seconds,
            moved / kib / requests,
            read / written,
        ];
        for (nth, (ours, paper)) in ours.into_iter().zip(second).enumerate() {
            near(&format!("{name}, table 2, {nth}"), ours, paper, 0.1);
        }
    }
}

#[test]
fn seed_determines_the_requests() {
    let venus = super::named("venus").unwrap();
    let made = |seed| generate(venus, Some(20.0), seed).requests;
    assert_eq!(made(7), made(7));
    assert_ne!(made(7), made(8));
    let cpu: u64 = made(7).iter().map(|request| request.cpu).sum();
    assert!((15_000_000_000..=20_000_000_000).contains(&cpu), "{cpu}");
}

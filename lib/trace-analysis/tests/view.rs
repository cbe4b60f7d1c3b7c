//! Compares views with a model that lists every byte.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_trace_analysis::view::{Range, View};
use proptest::prelude::*;
use std::fmt::Write as _;

/// Returns each byte that the view shows, in order: `repetitions` repetitions of gaps and blocks.
fn shown(displacement: u64, extent: u64, blocks: &[(u64, u64)], repetitions: u64) -> Vec<u64> {
    let mut bytes = Vec::new();
    for repetition in 0..repetitions {
        for (offset, length) in blocks {
            for byte in 0..*length {
                bytes.push(displacement + repetition * extent + offset + byte);
            }
        }
    }
    bytes
}

fn text(blocks: &[(u64, u64)]) -> String {
    let mut text = String::from("native ");
    for (i, (offset, bytes)) in blocks.iter().enumerate() {
        let _ = write!(text, "{}{offset}:{bytes}", if i == 0 { "" } else { "," });
    }
    text
}

proptest! {
    #[test]
    fn ranges_match_the_bytes_of_the_view(
        displacement in 0u64..1000,
        parts in prop::collection::vec((0u64..20, 1u64..20), 1..6),
        tail in 0u64..20,
        etype in 1u64..9,
        etypes in 0u64..30,
        length in 0u64..300,
    ) {
        let mut at = 0;
        let blocks: Vec<(u64, u64)> = parts
            .iter()
            .map(|(gap, bytes)| {
                let offset = at + gap;
                at = offset + bytes;
                (offset, *bytes)
            })
            .collect();
        let extent = at + tail;
        let view = View::new(displacement, etype, extent, &text(&blocks)).unwrap();
        let first = (etypes * etype) as usize;
        let all = shown(displacement, extent, &blocks, etypes * etype + length + 1);
        let expected = &all[first..first + length as usize];
        let ranges = view.ranges(etypes, length).unwrap();
        let found: Vec<u64> = ranges.iter().flat_map(|r| r.offset..r.offset + r.bytes).collect();
        prop_assert_eq!(&found, expected);
        prop_assert!(ranges.windows(2).all(|two| two[0].offset + two[0].bytes != two[1].offset));
    }
}

#[test]
fn blocks_in_loops_are_blocks() {
    let view = |text: &str| View::new(100, 1, 1000, &format!("native {text}")).unwrap();
    let (short, long) = (view("8:4*3+10*2+100,300:7"), view("8:4,18:4,28:4,108:4,118:4,128:4,300:7"));
    assert_eq!(short, long);
    assert_eq!(short.ranges(30, 2).unwrap()[0].offset, 100 + 306);
    for text in ["0:4*0+8", "0:4*3", "0:4*3+", "0:4*2000000+8", "0:4*3+18446744073709551615"] {
        assert_eq!(View::new(0, 1, 1000, &format!("native {text}")), None, "{text}");
    }
}

#[test]
fn a_file_without_a_view_shows_its_bytes() {
    let ranges = View::default().ranges(1 << 40, 1 << 40).unwrap();
    assert_eq!(ranges, [Range { offset: 1 << 40, bytes: 1 << 40 }]);
}

#[test]
fn impossible_file_types_are_refused() {
    for text in
        ["", "native", "native ", "native x:1", "native 1:-1", "native 0:0", "native 1:18446744073709551615"]
    {
        assert_eq!(View::new(0, 1, 1, text), None, "{text}");
    }
    assert_eq!(View::new(0, 8, 8, "native 0:8").unwrap().ranges(u64::MAX, 1), None);
    assert_eq!(View::new(u64::MAX, 1, 4, "native 0:4").unwrap().ranges(0, 1), None);
}

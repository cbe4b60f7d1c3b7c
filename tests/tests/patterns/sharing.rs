//! Patterns of sharing (N:N, N:1, N:M, one rank) and of order (consecutive, strided, sequential,
//! random).

use crate::{PatternProgram, Trace, of_file, of_program};
use miot_tests::mpi;
use miot_tests::test_dir::fresh;
use serde_json::Value;

/// Row of the program.
fn pattern(trace: &Trace, exe: &str) -> Value {
    of_program(&trace.json("patterns", &[])["programs"], exe).clone()
}

#[test]
fn ranks_share_files_as_requested() {
    let place = PatternProgram::new("sharing");
    const BYTES: u64 = 16 * 4096;
    // Mode and numbers; pattern, active ranks; files and bytes that are unique, shared, partially
    // shared.
    let cases = [
        ("own 16 4096", "N:N", 4, [(4, 4 * BYTES), (0, 0), (0, 0)]),
        ("shared 16 4096", "N:1", 4, [(0, 0), (1, 4 * BYTES), (0, 0)]),
        ("some 16 4096 2", "N:M", 4, [(0, 0), (0, 0), (2, 4 * BYTES)]),
        ("one 16 4096 0", "one rank", 1, [(1, BYTES), (0, 0), (0, 0)]),
        ("one 16 4096 2", "one rank", 1, [(1, BYTES), (0, 0), (0, 0)]),
        ("half 16 4096", "mixed", 4, [(4, 4 * BYTES), (1, 4 * BYTES), (0, 0)]),
    ];
    for (words, expected, active, parts) in cases {
        let trace = place.traced(4, words);
        let row = pattern(&trace, "/pattern");
        assert_eq!(row["pattern"], expected, "{words}: {row:#}");
        assert_eq!((&row["members"], &row["active"]), (&4.into(), &active.into()), "{words}: {row:#}");
        assert_eq!(row["job"], "known");
        let bytes: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(row["bytes"], bytes, "{words}");
        for (name, (files, of)) in ["unique", "shared", "partial"].into_iter().zip(parts) {
            assert_eq!(
                (&row[name]["files"], &row[name]["bytes"]),
                (&files.into(), &of.into()),
                "{words}: {row:#}"
            );
            assert_eq!(row[name]["share"].as_f64().unwrap(), of as f64 / bytes as f64);
        }
        if expected == "one rank" {
            let rank: u64 = words.rsplit(' ').next().unwrap().parse().unwrap();
            assert_eq!((&row["busiest"], &row["busiest_bytes"]), (&rank.into(), &bytes.into()));
            let rule = row["rule"].as_str().unwrap();
            assert!(rule.contains(&format!("rank {rank} of 4")) && rule.contains("at least 95 %"), "{rule}");
        }
    }
    // The text output has the same figures, and the shared file.
    let told = place.traced(4, "shared 16 4096").shown("patterns", &[]).success().stdout;
    let line = told.lines().find(|line| line.contains("/pattern")).unwrap();
    assert!(
        line.starts_with("N:1 ") && line.contains("100.0 % of the bytes in files of all 4 ranks"),
        "{told}"
    );
    assert!(told.lines().any(|line| line.contains("/data ") && line.contains("4 (N:1)")), "{told}");
}

#[test]
fn one_process_is_one_to_one() {
    let place = PatternProgram::new("single");
    let row = pattern(&place.traced(0, "strided 3 10 10 0"), "/pattern");
    assert_eq!((&row["pattern"], &row["members"], &row["bytes"]), (&"1:1".into(), &1.into(), &30.into()));
}

#[test]
fn order_of_accesses_is_classified() {
    let place = PatternProgram::new("order");
    // Order; consecutive, forward, strided, backward; the most frequent strides with their counts.
    type Case<'a> = (&'a str, &'a str, [u64; 4], &'a [(u64, u64)]);
    let cases: [Case<'_>; 7] = [
        ("strided 50 100 100 0", "consecutive", [49, 0, 0, 0], &[]),
        ("strided 50 100 4096 17", "strided", [0, 49, 49, 0], &[(4096, 49)]),
        // In each of 10 rows 4 steps of 1000, then one of 100000 - 4 * 1000 from the last to the
        // first of the next.
        ("nested 10 5 100 1000 100000", "strided", [0, 49, 49, 0], &[(1000, 40), (96_000, 9)]),
        ("growing 50 100", "sequential", [0, 49, 0, 0], &[]),
        ("strided 1 100 0 0", "single", [0, 0, 0, 0], &[]),
        // Blocks 0, 20, 40, 9, 29, 49, 18, …, 11, 31: from each of the 31 blocks below 31 forward
        // by 20, from the 20 others back by 31, except from 31, the last one.
        ("random 51 100 20", "random", [0, 31, 31, 19], &[(2000, 31)]),
        ("writes 50 1 100", "random", [0, 0, 0, 49], &[]),
    ];
    for (words, order, [consecutive, forward, strided, backward], strides) in cases {
        let _ = std::fs::remove_file(place.data());
        let trace = place.traced(0, words);
        let file = of_file(&trace.json("patterns", &[])["files"], "/data").clone();
        assert_eq!(file["order"], order, "{words}: {file:#}");
        let counts =
            ["consecutive", "forward", "strided", "backward"].map(|name| file[name].as_u64().unwrap());
        assert_eq!(counts, [consecutive, forward, strided, backward], "{words}");
        let found: Vec<_> = file["strides"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["bytes"].as_u64().unwrap(), one["count"].as_u64().unwrap()))
            .collect();
        assert_eq!(found, strides, "{words}");
    }
}

/// With collective buffering one rank writes for all, but all ranks share the file.
#[test]
fn mpi_ranks_share_a_file_with_collective_buffering() {
    let place = fresh("patterns-mpi");
    let program = mpi::compile(&place, "patterns", "patterns.c", &[]);
    for mode in ["direct", "collective"] {
        let trace = Trace(place.join(mode));
        let data = place.join(format!("{mode}.dat"));
        let words = [program.as_os_str(), mode.as_ref(), data.as_os_str()];
        let _ = mpi::traced(&trace.0, 4, &[], &words).success();
        let row = pattern(&trace, "/patterns");
        // 64 rows of 128 bytes from each of 4 ranks.
        let expected = (&"N:1".into(), &4.into(), &4.into(), &(4 * 64 * 128).into());
        assert_eq!(
            (&row["pattern"], &row["members"], &row["active"], &row["shared"]["bytes"]),
            expected,
            "{row:#}"
        );
    }
}

//! Each pattern of `tests/programs/known.c` compared with figures derived by hand from its source.

use super::{assert_figures, row, stat};
use miot_tests::compile::compile;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, traced};
use serde_json::Value;
use std::sync::OnceLock;

const PATTERNS: [&str; 7] =
    ["sequential", "strided", "scattered", "unaligned", "overwriting", "mixed", "threads"];

/// The table by file of one trace of all patterns, alignment 4096.
fn table() -> &'static Value {
    static TABLE: OnceLock<Value> = OnceLock::new();
    TABLE.get_or_init(|| {
        let place = fresh(&format!("characterize-known-{}", std::process::id()));
        let program = compile(&place, "known", &["known.c"], &[]);
        let each = format!(
            "for p in {}; do {} $p $PWD/file.$p || exit 9; done",
            PATTERNS.join(" "),
            program.display()
        );
        let trace = place.join("trace");
        let _ = traced(&place, &trace, &["sh", "-c", &each]).success();
        assert_good(&trace);
        stat(&trace, &["--by", "file", "--layer", "posix", "--path", "**/file.*", "--block-size", "4096"])
    })
}

#[track_caller]
fn of(pattern: &str, expected: &[(&str, u64)]) -> &'static Value {
    let row = row(table(), "path", &format!("file.{pattern}"));
    assert_figures(row, expected);
    row
}

/// 10 blocks written and read, and a read at the end of the file. A first access at 0 is not
/// sequential.
#[test]
fn sequential() {
    let row = of(
        "sequential",
        &[
            ("opens", 1),
            ("closes", 1),
            ("fsyncs", 1),
            ("seeks", 1),
            ("writes", 10),
            ("reads", 11),
            ("bytes_read", 40_960),
            ("bytes_written", 40_960),
            ("bytes", 81_920),
            ("ios", 21),
            ("data_size", 40_960),
            ("max_byte_read", 40_959),
            ("max_byte_written", 40_959),
            ("seq_writes", 9),
            ("consec_writes", 9),
            ("seq_reads", 10),
            ("consec_reads", 10),
            ("rw_switches", 1),
            ("file_alignment", 4096),
            ("file_not_aligned", 0),
            ("mem_not_aligned", 0),
            ("size_write_1k_10k", 10),
            ("size_read_1k_10k", 10),
            ("size_read_0_100", 1),
            ("access1_access", 4096),
            ("access1_count", 20),
            ("access2_count", 0),
            ("stride1_count", 0),
            ("overwritten_bytes", 0),
            ("failed", 0),
            ("processes", 1),
            ("files", 1),
            ("max_write_time_size", 4096),
        ],
    );
    assert_eq!(row["read_write_ratio"], 1.0);
    assert_eq!(row["files_per_process"], 1.0);
    assert_eq!(row["average_size"].as_f64(), Some(81_920.0 / 21.0));
    let number = |name: &str| row[name].as_f64().unwrap();
    let wall = number("wall_seconds");
    assert!((number("mib_per_wall_second") - 81_920.0 / 1_048_576.0 / wall).abs() < 1e-6);
    assert!((number("read_ios_per_wall_second") - 11.0 / wall).abs() < 1e-6);
    assert!(number("f_write_time") >= number("f_max_write_time"));
}

/// Gaps of 900 bytes, then of 1900 bytes. The second round overwrites existing bytes.
#[test]
fn strided() {
    let row = of(
        "strided",
        &[
            ("writes", 15),
            ("bytes_written", 1500),
            ("max_byte_written", 9099),
            ("data_size", 9100),
            ("seq_writes", 13),
            ("consec_writes", 0),
            ("stride1_stride", 900),
            ("stride1_count", 9),
            ("stride2_stride", 1900),
            ("stride2_count", 4),
            ("stride3_count", 0),
            ("access1_access", 100),
            ("access1_count", 15),
            ("size_write_0_100", 15),
            ("overwritten_bytes", 500),
            ("file_not_aligned", 13),
            ("rw_switches", 0),
            ("reads", 0),
        ],
    );
    assert_eq!(row["overwritten_share"].as_f64(), Some(500.0 / 1500.0));
    assert_eq!(row["seq_writes_share"].as_f64(), Some(13.0 / 15.0));
}

/// Blocks 3 8 13 2 7 12 1 6 11 0 5 10 15 4 9 14 of 512 bytes: four backward steps, and forward
/// steps with gaps of four blocks.
#[test]
fn scattered() {
    let row = of(
        "scattered",
        &[
            ("reads", 16),
            ("bytes_read", 8192),
            ("max_byte_read", 8191),
            ("seq_reads", 12),
            ("consec_reads", 0),
            ("stride1_stride", 2048),
            ("stride1_count", 11),
            ("stride2_count", 0),
            ("file_not_aligned", 14),
            ("other_metas", 1),
            ("writes", 0),
        ],
    );
    assert!(row["read_write_ratio"].is_null() && row["overwritten_share"].is_null());
}

/// Small writes from an unaligned address and from an aligned one, and a vector whose first buffer
/// is unaligned.
#[test]
fn unaligned() {
    let _ = of(
        "unaligned",
        &[
            ("writes", 56),
            ("bytes_written", 185),
            ("mem_not_aligned", 51),
            ("mem_alignment", 8),
            ("file_not_aligned", 50),
            ("seq_writes", 54),
            ("consec_writes", 0),
            ("stride1_stride", 4),
            ("stride1_count", 49),
            ("stride2_stride", 4093),
            ("stride2_count", 4),
            ("access1_access", 3),
            ("access1_count", 55),
            ("access2_access", 20),
            ("access2_count", 1),
            ("max_byte_written", 16_386),
            ("overwritten_bytes", 5),
        ],
    );
}

/// The second open empties the file.
#[test]
fn overwriting() {
    let row = of(
        "overwriting",
        &[
            ("opens", 2),
            ("writes", 4),
            ("bytes_written", 4000),
            ("overwritten_bytes", 1000),
            ("seq_writes", 1),
            ("consec_writes", 1),
            ("data_size", 1500),
        ],
    );
    assert_eq!(row["overwritten_share"], 0.25);
}

/// One access of each size at both ends of the bins. Each is written and read.
#[test]
fn mixed() {
    let _ = of(
        "mixed",
        &[
            ("writes", 10),
            ("reads", 11),
            ("rw_switches", 19),
            ("seq_writes", 9),
            ("consec_writes", 9),
            ("seq_reads", 10),
            ("consec_reads", 10),
            ("failed", 1),
            ("stats", 1),
            ("file_not_aligned", 19),
            ("size_write_0_100", 2),
            ("size_write_100_1k", 2),
            ("size_write_1k_10k", 2),
            ("size_write_10k_100k", 1),
            ("size_write_100k_1m", 2),
            ("size_write_1m_4m", 1),
            ("size_write_4m_10m", 0),
            ("size_read_0_100", 3),
            ("size_read_1m_4m", 1),
            ("access1_access", 1_048_577),
            ("access1_count", 2),
            ("access2_access", 1_048_576),
            ("access3_access", 102_401),
            ("access4_access", 102_400),
            ("access4_count", 2),
        ],
    );
}

/// Four threads write in any order.
#[test]
fn threads() {
    let _ = of(
        "threads",
        &[
            ("opens", 5),
            ("closes", 5),
            ("writes", 100),
            ("bytes_written", 100_000),
            ("max_byte_written", 99_999),
            ("overwritten_bytes", 0),
            ("file_not_aligned", 99),
            ("access1_access", 1000),
            ("access1_count", 100),
            ("processes", 1),
        ],
    );
}

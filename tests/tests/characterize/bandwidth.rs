//! Bandwidth computed from the events compared with the bandwidth that the program prints, as in
//! table I of Carns et al. 2011. Their rules make the comparison fair: one direction, a duration of
//! a second or more, the layer that the program calls.

use super::stat;
use miot_tests::mpi::{compile, traced};
use miot_tests::test_dir::fresh;
use miot_tests::traced::assert_good;
use std::path::Path;

/// Largest permitted deviation.
const MOST: f64 = 0.03;

/// Runs the program. Returns the ratio of the estimate to the program's bandwidth, minus 1.
fn deviation(program: &Path, files: &str, layer: &str, estimate: &str, trace: &Path) -> f64 {
    // In memory, so that no disk makes the test slow.
    let data = tempfile::tempdir_in("/dev/shm").unwrap();
    let words = [program.as_os_str(), files.as_ref(), "30".as_ref(), data.path().as_os_str()];
    let printed = traced(trace, 2, &[], &words).success().stdout;
    assert_good(trace);
    let own: f64 =
        printed.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{printed}"));
    let glob = format!("{}/*", data.path().display());
    let table = stat(trace, &["--by", "job", "--layer", layer, "--path", &glob]);
    let row = &table["rows"][0];
    assert_eq!(row["bytes_written"], 2 * 30 * 64 * 1_048_576_u64, "{row:#}");
    let derived = row[estimate].as_f64().unwrap();
    println!("{files}: {own:.1} MiB/s by the program, {derived:.1} by the trace");
    derived / own - 1.0
}

fn assert_close(files: &str, layer: &str, estimate: &str) {
    let place = fresh(&format!("characterize-bandwidth-{files}"));
    let program = compile(&place, "bandwidth", "bandwidth.c", &["-O2"]);
    let run =
        |number: u32| deviation(&program, files, layer, estimate, &place.join(format!("trace.{number}")));
    // A busy machine may stop a rank between two requests. In that case the median of three runs is
    // used.
    let first = run(0);
    if first.abs() > MOST {
        let mut all = [first, run(1), run(2)];
        all.sort_by(f64::total_cmp);
        assert!(all[1].abs() <= MOST, "{files}: deviations of {estimate}: {all:?}");
    }
}

#[test]
fn bandwidth_of_a_file_per_rank_agrees() {
    assert_close("own", "posix", "agg_perf_by_slowest");
}

#[test]
fn bandwidth_of_a_shared_file_agrees() {
    assert_close("shared", "posix", "agg_perf_by_open");
}

#[test]
fn bandwidth_of_a_shared_file_by_mpi_io_agrees() {
    assert_close("mpi", "mpi-io", "agg_perf_by_open");
}

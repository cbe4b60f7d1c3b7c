//! Rows by program, rank, host and operation.

use crate::stat;
use miot_tests::built::built;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use serde_json::Value;
use std::process::Command;

const RANKS: u64 = 3;

fn rows(table: &Value) -> &[Value] {
    table["rows"].as_array().unwrap()
}

#[test]
fn rows_by_program_rank_host_and_operation() {
    let place = fresh("characterize-dimensions");
    let trace = place.join("trace");
    // Rank r writes r + 1 blocks of 1000 bytes with dd. cat, which has no rank, reads one file.
    let script = "for rank in 0 1 2; do
            MIOT_RANK=$rank dd if=/dev/zero of=$1/out$rank bs=1000 count=$((rank + 1)) status=none & all=\"$all $!\"
        done
        wait $all; cat $1/out2 > $1/copy";
    let mut miot = Command::new(&built().miot);
    miot.env("MIOT_JOB", "known").args(["run", "--quiet", "-o"]).arg(&trace);
    let _ = run(miot.args(["--", "sh", "-ec", script, "sh"]).arg(&place)).success();

    let options = |by: &'static str| ["--by", by, "--layer", "posix", "--path", "**/out*"];
    let programs = stat(&trace, &options("program"));
    let program = |name: &str| {
        let mut found = rows(&programs).iter().filter(|row| row["program"].as_str().unwrap().ends_with(name));
        found.next().unwrap_or_else(|| panic!("no {name} in {programs:#}"))
    };
    assert_eq!(program("/dd")["bytes_written"], 6000);
    assert_eq!(program("/cat")["bytes_read"], 3000);

    let ranks = stat(&trace, &options("rank"));
    for rank in 0..RANKS {
        let row = rows(&ranks).iter().find(|row| row["rank"] == rank).unwrap();
        assert_eq!(row["bytes_written"], 1000 * (rank + 1), "{row:#}");
        assert_eq!(row["job"], "known");
    }
    let without: Vec<_> = rows(&ranks).iter().filter(|row| row["rank"].is_null()).collect();
    assert_eq!(without.len(), 1, "{ranks:#}");
    assert_eq!(without[0]["bytes_read"], 3000);

    let [hosts, nodes] = ["host", "node"].map(|by| stat(&trace, &options(by)));
    assert_eq!(rows(&hosts), rows(&nodes));
    assert_eq!(rows(&hosts)[0]["bytes_written"], 6000);

    let operations = stat(&trace, &options("operation"));
    let write = rows(&operations).iter().find(|row| row["op"] == "write").unwrap();
    assert_eq!((write["count"].as_u64(), write["bytes"].as_u64()), (Some(6), Some(6000)));
    let sorted = stat(&trace, &[&options("operation")[..], &["--sort", "count", "--top", "2"]].concat());
    let counts: Vec<u64> = rows(&sorted).iter().map(|row| row["count"].as_u64().unwrap()).collect();
    assert!(counts.len() == 2 && counts[0] >= counts[1], "{counts:?}");
    let none = stat(&trace, &["--by", "operation", "--job", "another"]);
    assert!(rows(&none).is_empty(), "{none:#}");
}

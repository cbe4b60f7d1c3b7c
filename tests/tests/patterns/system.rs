//! Files of the system are left out by default, counted, and included on request.

use crate::shown;
use miot_tests::built::built;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const STATS: u64 = 3000;
const BLOCKS: u64 = 40;

/// `STATS` times `stat` of /etc/passwd, `BLOCKS` writes of 4096 bytes into a file of /dev/shm.
const PROGRAM: &str = "import os, sys
for _ in range(int(sys.argv[1])): os.stat('/etc/passwd')
fd = os.open(sys.argv[3], os.O_CREAT | os.O_WRONLY)
for _ in range(int(sys.argv[2])): os.write(fd, bytes(4096))
os.close(fd)
os.unlink(sys.argv[3])";

fn json(trace: &Path, what: &str, options: &[&str]) -> Value {
    let out = shown(trace, what, &[&["--format", "json"], options].concat()).success().stdout;
    serde_json::from_str(&out).unwrap()
}

fn rules(findings: &Value) -> Vec<&str> {
    findings["findings"].as_array().unwrap().iter().map(|found| found["rule"].as_str().unwrap()).collect()
}

#[test]
fn requests_to_system_files_are_counted_and_optional() {
    let place = fresh("patterns-system");
    let trace = place.join("trace");
    let data = format!("/dev/shm/miot-patterns-system-{}", std::process::id());
    let mut miot = Command::new(&built().miot);
    miot.args(["run", "--quiet", "-o"]).arg(&trace).args(["--", "/usr/bin/python3", "-c", PROGRAM]);
    let _ = run(miot.args([STATS.to_string(), BLOCKS.to_string(), data.clone()])).success();

    let without = json(&trace, "findings", &[]);
    assert!(!rules(&without).contains(&"redundant_stats"), "{without:#}");
    let left_out = without["system_files_left_out"]["requests"].as_u64().unwrap();
    // The interpreter reads files of the system as well.
    assert!(left_out >= STATS, "{left_out}");
    let said = shown(&trace, "findings", &[]).success().stdout;
    assert!(
        said.contains(&format!("left out: {left_out} requests")) && said.contains("--system-files"),
        "{said}"
    );

    let with = json(&trace, "findings", &["--system-files"]);
    assert!(rules(&with).contains(&"redundant_stats"), "{with:#}");
    assert_eq!(with["system_files_left_out"]["requests"], 0);

    // /dev/shm holds data of programs.
    let patterns = json(&trace, "patterns", &[]);
    let row = crate::of_file(&patterns["files"], &data);
    assert_eq!(
        (row["bytes_written"].as_u64(), row["accesses"].as_u64()),
        (Some(BLOCKS * 4096), Some(BLOCKS))
    );
}

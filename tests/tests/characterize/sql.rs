//! The same figures by SQL alone, without `miot`.

use miot_tests::built::{built, root};
use miot_tests::compile::compile;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced::command;
use std::process::Command;

/// Two ranks of a job, with two processes of two threads each, make thousands of requests of all
/// kinds on three files.
#[test]
fn sql_over_parquet_gives_every_figure() {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    let place = fresh("characterize-sql");
    let program = compile(&place, "known", &["known.c"], &[]);
    let trace = place.join("trace");
    let script = format!(
        "for rank in 0 1; do SLURM_PROCID=$rank {} mixture $PWD/mixture || exit 9 & done; wait",
        program.display()
    );
    let mut job = command(&place, &trace, &["sh", "-c", &script]);
    let _ = run(job.envs([("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "0")])).success();

    let mut check = Command::new(python);
    check.arg(root().join("tests/programs/characterize.py")).arg(&trace).args(["%/mixture.%", "4096"]);
    for by in ["job", "process", "file", "node"] {
        let options = ["--by", by, "--layer", "posix", "--path", "**/mixture.*", "--block-size", "4096"];
        let stat = |more: &[&str]| {
            let mut stat = Command::new(&built().miot);
            run(stat.arg("stat").arg(&trace).args(options).args(more)).success().stdout
        };
        let file = place.join(by);
        std::fs::write(&file, stat(&["--format", "json"])).unwrap();
        check.arg(format!("{by}={}", file.display()));
        // Each view shows some of these figures.
        for view in ["miller", "darshan", "usage", "latency", "performance", "ranks"] {
            let shown = stat(&["--view", view]);
            let is_of_another = match view {
                "performance" => by != "job",
                "ranks" => by != "file",
                _ => false,
            };
            assert_eq!(shown.contains("posix"), !is_of_another, "--by {by} --view {view}: {shown}");
        }
    }
    let report = run(&mut check).success().stdout;
    let compared = report.lines().last().and_then(|line| line.strip_prefix("compared "));
    let compared = compared.and_then(|count| count.parse::<u32>().ok());
    // A row for the job, one for the node, three files, and at least four processes.
    assert!(compared.is_some_and(|count| count >= 9 * 140), "{report}");
}

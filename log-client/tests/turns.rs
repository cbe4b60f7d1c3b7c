//! Several processes that change different settings at once: each stores the whole page, so without turns one would undo
//! what another has just changed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_log_client::config::recorded::{Change, Sample};
use miot_log_client::{Config, Control, LogClient};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Set in a process that steers: the MIOT directory.
const DIR: &str = "MIOT_TEST_TURNS_DIR";
/// Which setting it changes.
const WHAT: &str = "MIOT_TEST_TURNS_WHAT";
/// Enough for thousands of undone changes if nobody took turns.
const CHANGES: u32 = 20_000;

#[test]
fn who_steer_at_once_do_not_undo_each_other() {
    if let Some(dir) = std::env::var_os(DIR) {
        return steer(Path::new(&dir), &std::env::var(WHAT).unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("miot");
    let _client = LogClient::prepare(Config { dir: dir.clone(), ..Config::default() }).unwrap();
    let processes = ["sample", "wait", "duration"].map(|what| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "who_steer_at_once_do_not_undo_each_other", "--nocapture"]);
        process.env(DIR, &dir).env(WHAT, what).spawn().unwrap()
    });
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
}

/// Changes one setting again and again, and finds it as it was left each time.
fn steer(dir: &Path, what: &str) {
    let control = Control::of_node(dir).unwrap();
    let mut before = None;
    for turn in 1..=CHANGES {
        let shift = turn % 8;
        let time = Some(Duration::from_nanos(turn.into()));
        let change = match what {
            "sample" => Change { sample: Some(Sample { shift }), ..Change::default() },
            "wait" => Change { wait: time, ..Change::default() },
            _ => Change { min_duration: time, ..Change::default() },
        };
        let settings = control.settings();
        let own = |settings: &miot_proto::control::Settings| match what {
            "sample" => u64::from(settings.sample_shift),
            "wait" => settings.wait_ns,
            _ => settings.min_duration_ns,
        };
        assert!(
            before.is_none_or(|before| before == own(&settings)),
            "{what} was undone before change {turn}"
        );
        before = Some(own(&control.change(&change).unwrap()));
    }
}

//! Several processes change different settings at once. Each stores the whole page, so without a
//! lock one would undo the changes of another.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_log_client::config::recording::{SampleRate, SettingsChange};
use miot_log_client::{Config, Control, LogClient};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Environment variable of the started processes: the MIOT directory.
const DIR: &str = "MIOT_TEST_TURNS_DIR";
/// Environment variable of the started processes: the setting to change.
const WHAT: &str = "MIOT_TEST_TURNS_WHAT";
/// Without a lock this many changes would undo each other thousands of times.
const CHANGES: u32 = 20_000;

#[test]
fn concurrent_changes_do_not_undo_each_other() {
    if let Some(dir) = std::env::var_os(DIR) {
        return steer(Path::new(&dir), &std::env::var(WHAT).unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("miot");
    let _client = LogClient::prepare(Config { dir: dir.clone(), ..Config::default() }).unwrap();
    let processes = ["sample", "wait", "duration"].map(|what| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "concurrent_changes_do_not_undo_each_other", "--nocapture"]);
        process.env(DIR, &dir).env(WHAT, what).spawn().unwrap()
    });
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
}

/// Changes one setting repeatedly, and checks that it is unchanged each time.
fn steer(dir: &Path, what: &str) {
    let control = Control::of_node(dir).unwrap();
    let mut before = None;
    for turn in 1..=CHANGES {
        let shift = turn % 8;
        let time = Some(Duration::from_nanos(turn.into()));
        let change = match what {
            "sample" => SettingsChange { sample: Some(SampleRate { shift }), ..SettingsChange::default() },
            "wait" => SettingsChange { wait: time, ..SettingsChange::default() },
            _ => SettingsChange { min_duration: time, ..SettingsChange::default() },
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

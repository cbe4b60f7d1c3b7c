//! The program `log-server`: options, exit codes, signals.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use miot_trace_store::fsck;
use std::net::TcpListener;
use std::process::{Command, Output};
use support::daemon::{log_server, start};

fn outcome(command: &mut Command) -> (i32, String) {
    let Output { status, stderr, stdout } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap() + &String::from_utf8(stdout).unwrap())
}

#[test]
fn help_shows_every_setting_with_its_default() {
    let (code, text) = outcome(log_server().arg("--help"));
    assert_eq!(code, 0);
    let example: String = text
        .lines()
        .filter(|line| line.starts_with("    ") && line.contains(" = "))
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("example.toml");
    std::fs::write(&file, &example).unwrap();
    let none: [(&str, &str); 0] = [];
    let shown = miot_log_server::Config::load(Some(&file), std::collections::BTreeMap::from(none)).unwrap();
    assert_eq!(shown, miot_log_server::Config::default());
    // Keys without a default are comments.
    let http = Some("127.0.0.1:4748".into());
    let store = Some("s3://bucket/prefix".into());
    let all = miot_log_server::Config {
        node_memory: Some(128 << 20),
        http,
        transport: Some("nats://broker:4222".into()),
        store,
        register: vec!["PROGRAM".into()],
        ..shown
    };
    let keys = figment::value::Value::serialize(&all).unwrap().into_dict().unwrap();
    for key in keys.keys() {
        let said = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
        assert!(example.lines().any(said), "{key} in {example}");
    }
    assert_eq!(example.lines().count(), keys.len(), "{example}");
}

#[test]
fn wrong_settings_exit_with_2_and_name_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::write(&file, "lisen = \"127.0.0.1:0\"\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let trace = dir.path().join("trace");
    let mut with_file = log_server();
    with_file.arg("--config").arg(&file);
    let mut with_environment = log_server();
    with_environment.env("MIOT_SERVER_MEMORY", "1 MiB").arg("--trace").arg(&trace);
    let mut strange_environment = log_server();
    strange_environment.env("MIOT_SERVER_COLOUR", "red").arg("--trace").arg(&trace);
    let mut with_flag = log_server();
    with_flag.args(["--listen", "0.0.0.0:0", "--trace"]).arg(&trace);
    let mut in_use = log_server();
    in_use.args(["--listen", &taken, "--trace"]).arg(&trace);
    let mut strange = log_server();
    strange.args(["--listen", "127.0.0.1:0", "--trace"]).arg(dir.path());
    for (command, part) in [
        (&mut with_file, "lisen"),
        (&mut with_environment, "at least 32 MiB"),
        (&mut strange_environment, "MIOT_SERVER_COLOUR: there is no such key"),
        (&mut with_flag, "allow_insecure"),
        (&mut in_use, "in use"),
        (&mut strange, "is not a MIOT trace"),
        (log_server().arg("--no-such-option"), "no-such-option"),
    ] {
        let (code, text) = outcome(command);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(part), "{text}");
    }
    assert!(!trace.exists());
}

#[test]
fn signal_stops_it_with_a_complete_trace() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    for signal in ["-TERM", "-INT"] {
        let (mut child, _) = start(&mut log_server(), &trace);
        let sent = Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(fsck::check(&trace).is_good());
    }
}

#[test]
fn second_server_on_the_same_trace_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let (mut first, _) = start(&mut log_server(), &trace);
    let (code, text) = outcome(log_server().args(["--listen", "127.0.0.1:0", "--trace"]).arg(&trace));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(code, 2);
    assert!(text.contains("another process"), "{text}");
}

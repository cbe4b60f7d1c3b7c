//! Checks strace as a reference: the parser and the position model handle strace's output of every
//! program of the truth tests, and the kernel never contradicts them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::scenario::{SCENARIOS, ScenarioDirs};
use miot_tests::strace;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

#[test]
fn strace_output_is_parsed_for_every_program() {
    for scenario in SCENARIOS {
        let place = ScenarioDirs::new(&format!("witness-{}", scenario.name));
        place.prepare(scenario);
        let before = place.contents();
        let output = place.evidence.join("strace.out");
        let mut wrapper: Vec<OsString> = vec!["strace".into()];
        wrapper.extend(strace::FLAGS.iter().map(OsString::from));
        wrapper.extend(["-o".into(), output.clone().into(), "--".into()]);
        let _ = place.run(scenario, &wrapper).success();
        let text = fs::read_to_string(output).unwrap();
        let at_start =
            |path: &[u8]| before.get(Path::new(OsStr::from_bytes(path))).map_or(0, |m| m.len() as i64);
        let witness = strace::witness(&text, place.work.as_os_str().as_bytes(), &at_start).unwrap();
        let seen: usize = witness.threads.iter().map(|(_, seen)| seen.len()).sum();
        println!("{}: {} threads, {seen} requests", scenario.name, witness.threads.len());
        assert!(seen > 10, "{scenario:?}");
        assert_eq!(witness.doubts, Vec::<String>::new(), "{scenario:?}");
    }
}

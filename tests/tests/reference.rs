//! The generated pages of `docs/reference` match the current commands and configurations.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::process::run;
use std::fs;
use std::process::Command;

#[test]
fn generated_reference_pages_are_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let manuals = built().folder.join("miot-manuals");
    let _ = run(Command::new(manuals).arg("--reference").arg(dir.path())).success();
    for page in ["commands.md", "configuration.md"] {
        let (there, made) = (root().join("docs/reference").join(page), dir.path().join(page));
        let [there, made] = [there, made].map(|page| fs::read_to_string(page).unwrap());
        let differs = there.lines().zip(made.lines()).find(|(there, made)| there != made);
        assert!(
            there == made,
            "docs/reference/{page} is out of date, run `cargo run -p miot-manuals -- --reference docs/reference`: {differs:?}"
        );
    }
}

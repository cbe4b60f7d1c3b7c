//! docs/start/ten-minutes.md, line by line: all its `sh` blocks in one shell that stops at the
//! first failing line. Only the build is skipped, because it exists already.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use std::fs;
use std::process::Command;

/// Lines of the page's blocks that start with ```` ```sh ````.
fn lines(page: &str) -> Vec<String> {
    let (mut lines, mut inside) = (Vec::new(), false);
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

#[test]
fn every_line_of_the_page_works() {
    let page = fs::read_to_string(root().join("docs/start/ten-minutes.md")).unwrap();
    let place = fresh("ten-minutes");
    let mut all = lines(&page);
    assert!(all.len() > 20, "{all:?}");
    let build = ["cargo build --release", "export PATH=\"$PWD/target/release:$PATH\""];
    let before = all.len();
    all.retain(|line| !build.contains(&line.as_str()));
    assert_eq!(all.len(), before - build.len(), "the lines that install are as this test expects them");
    // Remove the leftovers of a killed run. This run must leave none.
    let clean = "rm -rf /dev/shm/miot-n1 /dev/shm/miot-n2";
    let mut script = format!(
        "set -eEm\ntrap 'echo \"failed: $BASH_COMMAND\" >&2; kill $(jobs -p); {clean}' ERR\n{clean}\n"
    );
    for line in &all {
        script.push_str(&format!("printf '%s\\n' {}\n{line}\n", quoted(&format!("$ {line}"))));
    }
    let path = format!("{}:{}", built().folder.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.arg("-c")
        .arg(script)
        .current_dir(&place)
        .env("PATH", path)
        .env_remove("MIOT_DIR")
        .env_remove("LD_PRELOAD");
    let output = run(&mut bash);
    let text = format!("{}\n{}", output.stdout, output.stderr);
    let logs =
        ["server.log", "n1.log", "n2.log"].map(|log| fs::read_to_string(place.join(log)).unwrap_or_default());
    assert_eq!(output.code(), 0, "{text}\n{}", logs.join("\n"));
    // The results that the page promises, besides the success of every line.
    let of = |command: &str| {
        let start =
            output.stdout.rfind(&format!("$ {command}")).unwrap_or_else(|| panic!("no {command}\n{text}"));
        let rest = &output.stdout[start..];
        let rest = &rest[rest.find('\n').unwrap() + 1..];
        rest.lines().take_while(|line| !line.starts_with("$ ")).collect::<Vec<_>>().join("\n")
    };
    assert!(of("miot doctor").contains(" 0 problems"), "{text}");
    assert!(of("timeout 2 miot tail").contains(" n1 "), "the events of the node came over TLS\n{text}");
    assert!(
        of("miot stat trace").contains("2 processes") && of("miot stat trace").contains("events lost: 0"),
        "{text}"
    );
    assert_eq!(
        of("miot cat trace --job 8").lines().filter(|line| line.contains("/two")).count(),
        3,
        "{text}"
    );
    assert!(!output.stdout.contains("/unseen"), "switched off\n{text}");
    assert!(of("miot fsck trace").contains("good:"), "{text}");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

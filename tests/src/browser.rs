//! A real browser, without a screen: headless Chromium.

use crate::process::run;
use std::path::Path;
use std::process::Command;

/// What a page has become after it ran for so many milliseconds of its own time, as HTML.
///
/// # Panics
/// If it cannot be loaded, or wrote anything to its console.
#[must_use]
pub fn page(url: &str, milliseconds: u32, screenshot: Option<&Path>) -> String {
    let profile = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let mut chromium = Command::new("chromium");
    // Tests may be run as root and in containers; neither is a display.
    chromium
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
        ])
        .args(["--window-size=1280,1000", "--no-first-run", "--disable-background-networking"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--virtual-time-budget={milliseconds}"));
    match screenshot {
        Some(file) => chromium.arg(format!("--screenshot={}", file.display())),
        None => chromium.arg("--dump-dom"),
    };
    let ended = run(chromium.arg(url)).success();
    let console: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{url}: {}", console.join("\n"));
    ended.stdout
}

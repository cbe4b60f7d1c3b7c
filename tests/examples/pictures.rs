//! Creates the pictures of screens in `docs/images` from real runs, for developers who change a
//! screen. `cargo run -p miot-tests --example pictures` creates all; arguments select some, e.g.
//! `report.png`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::browser::Browser;
use miot_tests::built::{built, root};
use miot_tests::daemons::{client, free_port, preloaded, ready, server_command};
use miot_tests::process::{Background, run};
use miot_tests::tmux::Terminal;
use miot_tests::traced::traced;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Run time of the programs before `miot top` and the page are drawn: half of the seconds that
/// their rates cover.
const LOADED: Duration = Duration::from_secs(5);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let place = tempfile::tempdir().unwrap();
    if wants("report.png") || wants("report-accesses.png") {
        report(place.path());
    }
    if wants("top.png") || wants("page.png") {
        watching(place.path());
    }
}

fn picture(name: &str) -> PathBuf {
    root().join("docs/images").join(name)
}

/// Opens a file, and waits until it can be drawn.
fn open(browser: &mut Browser, page: &Path) {
    browser.open(&format!("file://{}", page.display())).unwrap();
    browser.shows("document.readyState === 'complete'");
}

/// The report of fio, which writes in bursts and reads random and alternate blocks.
fn report(place: &Path) {
    let (folder, trace, page) = (place.join("data"), place.join("fio"), place.join("fio.html"));
    std::fs::create_dir(&folder).unwrap();
    let jobs = "--size=32m --ioengine=psync --time_based --runtime=8 --name=checkpoint --rw=write --bs=256k --rate=24m --thinktime=1500ms --thinktime_blocks=40 --name=lookup --rw=randread --bs=8k --rate=3m --name=columns --rw=read:64k --bs=64k --rate=6m";
    let mut words = vec!["fio".to_owned(), format!("--directory={}", folder.display())];
    words.extend(jobs.split(' ').map(str::to_owned));
    let mut create = Command::new(&words[0]);
    let _ = run(create.args(&words[1..]).arg("--create_only=1").current_dir(place)).success();
    let _ = traced(place, &trace, &words).success();
    let _ = run(Command::new(&built().miot).args(["report", "-o"]).arg(&page).arg(&trace)).success();
    let mut browser = Browser::start();
    open(&mut browser, &page);
    browser.picture(None, &picture("report.png"));
    // Only the accesses, so that they fit the screen.
    let _ = browser.value(
        "document.querySelectorAll('main > :not(#accesses), header, footer').forEach((e) => e.remove())",
    );
    browser.picture(Some("#accesses"), &picture("report-accesses.png"));
}

/// `miot top` and the page of a log-server while eight programs write, read and remove files.
fn watching(place: &Path) {
    let (port, http, node) = (free_port(), free_port(), place.join("node"));
    let address = format!("127.0.0.1:{port}");
    let mut server = server_command(&address, &place.join("trace"));
    let _server = ready(server.arg("--http").arg(format!("127.0.0.1:{http}")));
    let _client = client(port, "node-1", &node);
    // The script ends when its directory is removed, even if this program fails.
    let script = "for n in 1 2 3 4 5 6 7 8; do
            (while [ -d \"$PWD\" ]; do dd if=/dev/zero of=data-$n bs=${n}k count=50; cat data-* > all-$n; rm -f data-$n; done) &
        done; wait";
    let load = &mut preloaded("timeout", &node);
    let load = Background::start(
        load.args(["60", "sh", "-c", script]).env("SLURM_JOB_ID", "4711").current_dir(place),
    );
    let terminal = Terminal::new(110, 22);
    terminal.line(&format!("{} top {address}", built().miot.display()));
    let _ = terminal.shows("1 of 1 nodes connected");
    terminal.keys(&["5"]);
    let _ = terminal.shows("data-8");
    let mut browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{http}/")).unwrap();
    browser.shows("document.querySelector('#state').textContent.includes('1 of 1 nodes connected')");
    std::thread::sleep(LOADED);
    browser.picture(None, &picture("page.png"));
    let page = place.join("top.html");
    std::fs::write(&page, terminal.html()).unwrap();
    open(&mut browser, &page);
    browser.picture(Some("pre"), &picture("top.png"));
    let _ = load.stop(Signal::TERM);
}

//! A running log-server: `miot top` and the page in a browser show what `miot stat` says of the trace.

use miot_tests::browser::page;
use miot_tests::built::{built, root};
use miot_tests::daemons::{client, free_port, preloaded, server_command};
use miot_tests::process::{Background, run, until};
use miot_tests::tmux::Terminal;
use serde_json::Value;
use std::net::TcpStream;
use std::process::Command;

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&run(command).success().stdout).unwrap()
}

/// The number in the first element with these words before it.
fn number(html: &str, after: &str) -> u64 {
    let rest = html.split_once(after).unwrap_or_else(|| panic!("no {after} in {html}")).1;
    let value = rest.split_once("data-value=\"").unwrap().1;
    value.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn top_and_the_page_show_what_is_in_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, node) = (dir.path().join("trace"), dir.path().join("node"));
    let (port, http) = (free_port(), free_port());
    let mut command = server_command(&format!("127.0.0.1:{port}"), &trace);
    let _server = Background::start(command.arg("--http").arg(format!("127.0.0.1:{http}")));
    until("the log-server answers HTTP", || TcpStream::connect(("127.0.0.1", http)).is_ok());
    let _client = client(port, "node-1", &node);
    let file = dir.path().join("written");
    let mut dd = preloaded("dd", &node);
    dd.arg("if=/dev/zero").arg(format!("of={}", file.display())).args([
        "bs=1000",
        "count=500",
        "status=none",
    ]);
    let _ = run(&mut dd).success();

    let address = format!("127.0.0.1:{port}");
    let miot = || Command::new(&built().miot);
    let stat = || json(miot().arg("stat").arg(&trace).args(["--files", "1000", "--format", "json"]));
    until("all of it is in the trace", || stat()["totals"]["bytes_written"] == 500_000);
    let top = || json(miot().args(["top", &address, "--window", "all", "--format", "json"]));
    until("all of it is counted", || top()["events"] == stat()["totals"]["events"]);
    let (top, stat) = (top(), stat());
    for key in ["requests", "bytes_read", "bytes_written"] {
        assert_eq!(top["cluster"][key], stat["totals"][key], "{key}");
        assert_eq!(top["nodes"]["rows"][0][key], stat["totals"][key], "{key}");
    }
    assert_eq!(top["nodes"]["rows"][0]["name"], "node-1");

    let url = |view: &str| format!("http://127.0.0.1:{http}/?window=all#{view}");
    let overview = page(&url("overview"), 3000, None);
    assert_eq!(Value::from(number(&overview, "id=\"events\"")), stat["totals"]["events"]);
    assert!(overview.contains("1 of 1 nodes connected"), "{overview}");
    let nodes = page(&url("nodes"), 3000, None);
    assert!(nodes.contains("data-node=\"node-1\""), "the health of the node\n{nodes}");
    let files = page(&url("files"), 3000, None);
    let row = format!("data-name=\"{}\"", file.display());
    let row = files.split_once(&row).unwrap_or_else(|| panic!("{files}")).1;
    assert_eq!(number(row, "data-column=\"bytes_written\""), 500_000);

    let terminal = Terminal::new(100, 24);
    terminal.line(&format!("{} top {address} --window all", built().miot.display()));
    let _ = terminal.shows("1 of 1 nodes connected");
    terminal.keys(&["2"]);
    let _ = terminal.shows("node-1");
    terminal.keys(&["7"]);
    let _ = terminal.shows("in flight; the oldest of each node");
    terminal.keys(&["q"]);
    let _ = terminal.shows("ready>");
    if std::env::var_os("MIOT_SCREENSHOTS").is_some() {
        let _ = page(&url("overview"), 3000, Some(&root().join("docs/images/page.png")));
    }
}

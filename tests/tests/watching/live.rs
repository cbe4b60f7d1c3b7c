//! A running log-server: `miot top` and the page in a browser show the figures of `miot stat`, and
//! current events.

use miot_tests::browser::Browser;
use miot_tests::built::built;
use miot_tests::daemons::{client, free_port, preloaded, ready, server_command};
use miot_tests::process::{Background, run, until};
use miot_tests::steered::Steered;
use miot_tests::tmux::Terminal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A log-server with its page, and a node.
struct Site {
    dir: TempDir,
    trace: PathBuf,
    node: PathBuf,
    port: u16,
    http: u16,
    server: Option<Background>,
    _client: Background,
}

impl Site {
    fn start() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let (trace, node) = (dir.path().join("trace"), dir.path().join("node"));
        let (port, http) = (free_port(), free_port());
        let server = Some(served(port, http, &trace));
        let client = client(port, "node-1", &node);
        Site { dir, trace, node, port, http, server, _client: client }
    }

    /// Stops the log-server.
    fn stop(&mut self) {
        self.server.take().unwrap().end();
    }

    /// Starts a new log-server.
    fn go_on(&mut self) {
        self.server = Some(served(self.port, self.http, &self.trace));
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Address of the page.
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.http)
    }

    fn top(&self) -> Value {
        let mut top = Command::new(&built().miot);
        json(top.args(["top", &self.address(), "--window", "all", "--format", "json"]))
    }

    fn stat(&self) -> Value {
        let mut stat = Command::new(&built().miot);
        json(stat.arg("stat").arg(&self.trace).args(["--files", "1000", "--format", "json"]))
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Starts a traced program that writes to `name` on request.
    fn program(&self, name: &str) -> Steered {
        Steered::start(preloaded(env!("CARGO_BIN_EXE_steered"), &self.node).arg(self.path(name)))
    }
}

fn served(port: u16, http: u16, trace: &Path) -> Background {
    let mut command = server_command(&format!("127.0.0.1:{port}"), trace);
    ready(command.arg("--http").arg(format!("127.0.0.1:{http}")))
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&run(command).success().stdout).unwrap()
}

/// Expression: an element shows the number.
fn has(selector: &str, number: &Value) -> String {
    format!("document.querySelector({selector:?})?.dataset.value === '{number}'")
}

/// Expression: the text of an element contains `text`.
fn says(selector: &str, text: &str) -> String {
    format!("document.querySelector({selector:?})?.textContent.includes({text:?}) ?? false")
}

/// Expression: this number of elements is visible.
fn count(selector: &str, number: usize) -> String {
    format!(
        "[...document.querySelectorAll({selector:?})].filter((e) => e.checkVisibility()).length === {number}"
    )
}

#[test]
fn top_and_the_page_show_the_trace() {
    let site = Site::start();
    let file = site.dir.path().join("written");
    let mut dd = preloaded("dd", &site.node);
    dd.args(["if=/dev/zero", "bs=1000", "count=500", "status=none"]).arg(format!("of={}", file.display()));
    let _ = run(&mut dd).success();
    until("all of it is in the trace", || site.stat()["totals"]["bytes_written"] == 500_000);
    until("all of it is counted", || site.top()["events"] == site.stat()["totals"]["events"]);
    let (top, stat) = (site.top(), site.stat());
    for key in ["requests", "bytes_read", "bytes_written"] {
        assert_eq!(top["cluster"][key], stat["totals"][key], "{key}");
        assert_eq!(top["nodes"]["rows"][0][key], stat["totals"][key], "{key}");
    }
    assert_eq!(top["nodes"]["rows"][0]["name"], "node-1");

    let mut browser = Browser::start();
    browser.open(&format!("{}?window=all", site.url())).unwrap();
    browser.shows(&says("#state", "1 of 1 nodes connected"));
    for (id, key) in
        [("events", "events"), ("requests", "requests"), ("read", "bytes_read"), ("written", "bytes_written")]
    {
        browser.shows(&has(&format!("#{id}"), &stat["totals"][key]));
    }
    browser.click("a[href='#files']");
    let cell = format!("#rows tr[data-name='{}'] [data-column=bytes_written]", file.display());
    browser.shows(&has(&cell, &Value::from(500_000)));
    assert_eq!(browser.complaints(), Vec::<String>::new());

    let terminal = Terminal::new(100, 24);
    terminal.line(&format!("{} top {} --window all", built().miot.display(), site.address()));
    let _ = terminal.shows("1 of 1 nodes connected");
    terminal.keys(&["2"]);
    let _ = terminal.shows("node-1");
    terminal.keys(&["7"]);
    let _ = terminal.shows("in flight; the oldest of each node");
    terminal.keys(&["q"]);
    let _ = terminal.shows("ready>");
}

/// Expression: a row of the tail shows this write of one byte.
fn tells(path: &str, offset: u64) -> String {
    format!(
        "[...document.querySelectorAll({ROWS:?})].map((row) => [...row.cells].map((cell) => cell.textContent))
            .some(([, node, , op, length, at, result, , path]) => node === 'node-1' && op === 'posix.pwrite'
                && length === '1' && at === '{offset}' && result === '1' && path === {path:?})"
    )
}

/// Selector of the rows of the tail.
const ROWS: &str = "#tail-rows tbody tr";

fn rows(browser: &mut Browser) -> u64 {
    browser.value(&format!("document.querySelectorAll({ROWS:?}).length")).as_u64().unwrap()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario from start to end")]
fn page_works_and_contacts_no_other_server() {
    let site = Site::start();
    let (mut first, mut second) = (site.program("first"), site.program("second"));
    let _ = first.tell("pwrite 30");
    let _ = second.tell("pwrite 20");

    let mut browser = Browser::start();
    browser.open(&site.url()).unwrap();
    browser.shows(&says("#state", "1 of 1 nodes connected"));
    browser.shows(&count("canvas", 3));
    browser.choose("#range", "10:360");
    browser.choose("#window", "all");
    let written = format!("#top-files tr[data-name='{}'] [data-column=bytes_written]", site.path("first"));
    browser.shows(&has(&written, &Value::from(30)));

    browser.click("a[href='#nodes']");
    browser.shows(&count("#rows tr[data-name=node-1]", 1));
    browser.shows(&says("#health tr[data-node=node-1]", "yes"));
    browser.shows(&count("canvas", 0));
    browser.click("a[href='#operations']");
    browser.shows(&count("#rows tr[data-name='posix.pwrite']", 1));
    browser.click("a[href='#jobs']");
    browser.shows(&says("#rows tbody", "(no job)"));
    browser.click("a[href='#processes']");
    browser.shows(&count("#rows td[data-column=pid]", 2));

    // One click on a column sorts, a second one reverses the order, and a filter selects rows.
    browser.click("a[href='#files']");
    let row = |name: &str| format!("#rows tr[data-name='{}']", site.path(name));
    let above = |upper: &str, lower: &str| {
        let [upper, lower] = [upper, lower].map(|name| format!("document.querySelector({:?})", row(name)));
        format!("{upper}.compareDocumentPosition({lower}) === Node.DOCUMENT_POSITION_FOLLOWING")
    };
    for name in ["first", "second"] {
        browser.shows(&count(&row(name), 1));
    }
    browser.click("#rows button[data-key=bytes_written]");
    browser.shows(&count("th[aria-sort=descending] button[data-key=bytes_written]", 1));
    browser.shows(&above("first", "second"));
    // The page is redrawn once a second, but not while a button is held.
    let held = browser.press("#rows button[data-key=bytes_written]");
    let answers =
        "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/watch')).length";
    let before = browser.value(answers);
    browser.shows(&format!("{answers} >= {before} + 2"));
    browser.release(&held);
    browser.shows(&count("th[aria-sort=ascending] button[data-key=bytes_written]", 1));
    browser.shows(&above("second", "first"));
    browser.write("#filter", "/SECOND");
    browser.shows(&count("#rows tbody tr", 1));
    browser.shows(&count(&row("second"), 1));

    // New events appear in the tail: all of them, then those of one file, then none for a while.
    browser.click("a[href='#tail']");
    browser.shows(&count("#tail", 1));
    let (mut of_first, mut of_second) = (30, 20);
    until("the tail is live", || {
        of_first += 1;
        let _ = first.tell("pwrite 1");
        rows(&mut browser) > 0
    });
    browser.shows(&tells(&site.path("first"), of_first - 1));
    of_second += 1;
    let _ = second.tell("pwrite 1");
    browser.shows(&tells(&site.path("second"), of_second - 1));

    browser.write("input[name=path]", "**/second");
    browser.click("#tail-form button:not([type])");
    browser.shows(&format!("document.querySelectorAll({ROWS:?}).length === 0"));
    until("the tail is live again", || {
        of_second += 1;
        let _ = first.tell("pwrite 1");
        let _ = second.tell("pwrite 1");
        rows(&mut browser) > 0
    });
    browser.shows(&tells(&site.path("second"), of_second - 1));
    let is_second = format!("({{ cells }}) => cells[8].textContent === {:?}", site.path("second"));
    assert_eq!(browser.value(&format!("[...document.querySelectorAll({ROWS:?})].every({is_second})")), true);

    browser.click("#pause");
    browser.shows("document.getElementById('pause').getAttribute('aria-pressed') === 'true'");
    let held = rows(&mut browser);
    of_second += 5;
    let _ = second.tell("pwrite 5");
    until("that is merged", || {
        let top = site.top();
        let files = top["files"]["rows"].as_array().unwrap();
        files.iter().any(|file| file["name"] == site.path("second") && file["bytes_written"] == of_second)
    });
    assert_eq!(rows(&mut browser), held);
    browser.click("#pause");
    until("the tail goes on", || {
        of_second += 1;
        let _ = second.tell("pwrite 1");
        rows(&mut browser) > held
    });
    browser.shows(&tells(&site.path("second"), of_second - 1));
    assert_eq!(browser.complaints(), Vec::<String>::new());

    browser.write("input[name=layer]", "nonsense");
    browser.click("#tail-form button:not([type])");
    browser.shows(&says("#tail-state", "there is no layer `nonsense`; there are "));

    // No other server was contacted.
    let elsewhere = |browser: &Browser| -> Vec<String> {
        let asked = browser.asked().iter();
        asked.filter(|url| !url.starts_with(&site.url()) && *url != "about:blank").cloned().collect()
    };
    assert!(browser.asked().iter().any(|url| url.contains("/api/events")), "{:?}", browser.asked());
    assert_eq!(elsewhere(&browser), Vec::<String>::new());
    // The page could not contact another server. Another page can, which the log detects.
    let _ = browser.complaints();
    let other = format!("http://localhost:{}/", site.http);
    let ask = format!("fetch({other:?}, {{ mode: 'no-cors' }}).then(() => 'answered', () => 'forbidden')");
    assert_eq!(browser.value(&ask), "forbidden");
    let complaints = browser.complaints();
    assert!(complaints.iter().any(|text| text.contains("Content Security Policy")), "{complaints:?}");
    browser.open("about:blank").unwrap();
    let _ = browser.value(&ask);
    assert_eq!(elsewhere(&browser), [other]);
}

#[test]
fn top_and_the_page_survive_a_log_server_restart() {
    let mut site = Site::start();
    let mut program = site.program("file");
    let terminal = Terminal::new(120, 24);
    terminal.line(&format!("{} top {} --window all; echo code $?", built().miot.display(), site.address()));
    let _ = terminal.shows("1 of 1 nodes connected");
    let mut browser = Browser::start();
    browser.open(&format!("{}#tail", site.url())).unwrap();
    browser.shows(&says("#state", "1 of 1 nodes connected"));
    until("the tail is live", || {
        let _ = program.tell("pwrite 1");
        rows(&mut browser) > 0
    });

    site.stop();
    let away = terminal.shows("; trying again (q quits)");
    assert!(away.contains("log-server"), "{away}");
    browser.shows(&says("#state", "no answer: "));
    browser.shows(&says("#tail-state", "no connection; trying again"));
    // Keys work meanwhile.
    terminal.keys(&["6"]);
    let _ = terminal.shows("[6 operations]");

    site.go_on();
    let _ = terminal.shows("? help  q quit");
    browser.shows(&says("#state", "1 of 1 nodes connected"));
    let before = rows(&mut browser);
    until("the tail continues", || {
        let _ = program.tell("pwrite 1");
        rows(&mut browser) > before
    });
    let _ = terminal.shows("posix.pwrite");
    let _ = terminal.shows("1 of 1 nodes connected");
    terminal.keys(&["q"]);
    let _ = terminal.shows("code 0");
}

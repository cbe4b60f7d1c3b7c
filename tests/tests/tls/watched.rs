//! Those with the right papers who look: `miot top`, and the page in a browser.

use crate::site::{Site, top_command};
use miot_tests::browser::{Browser, home, show_certificates};
use miot_tests::built::built;
use miot_tests::daemons::free_port;
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{run, until};
use miot_tests::tmux::Terminal;
use serde_json::Value;

#[test]
fn a_reader_watches_the_cluster() {
    let site = Site::start("top");
    let clients = [site.honest("good"), site.honest("other")];
    let alice = site.papers("reader/alice");
    let top = || -> Value {
        let mut top = top_command(site.port, Some(&alice));
        serde_json::from_str(&run(top.args(["--window", "all"])).success().stdout).unwrap()
    };
    // It counts while somebody asks.
    until("what is written is counted", || {
        site.write("good", 10);
        top()["cluster"]["bytes_written"].as_u64() >= Some(5120)
    });

    let terminal = Terminal::new(100, 24);
    let options = alice.options().join(" ");
    terminal.line(&format!("{} top localhost:{} {options}", built().miot.display(), site.port));
    let _ = terminal.shows("2 of 2 nodes connected");
    terminal.keys(&["2"]);
    let _ = terminal.shows("good");
    terminal.keys(&["q"]);
    let _ = terminal.shows("ready>");
    let _ = site.end(clients);
}

#[test]
fn a_reader_looks_at_the_page() {
    let Some(room) = Namespaces::new(&["--mount"]) else { return };
    let http = free_port();
    let site = Site::with("page", |server| {
        server.args(["--http", &format!("127.0.0.1:{http}")]);
    });
    let url = format!("https://localhost:{http}/");
    show_certificates(&room, &url);
    let mut stranger = Browser::of(&room, &home(&site.place.join("stranger"), &site.pki, None));
    // To Chromium a connection is there before its certificate was looked at: it may only see that
    // it has ended.
    until("a stranger receives the reason", || {
        let refused = stranger.open(&url).unwrap_err();
        let why = refused.contains("CLIENT_AUTH");
        assert!(why || refused == "net::ERR_SOCKET_NOT_CONNECTED", "{refused}");
        why
    });

    let clients = [site.honest("good"), site.honest("other")];
    let mut alice = Browser::of(&room, &home(&site.place.join("alice"), &site.pki, Some("alice")));
    alice.open(&url).unwrap();
    alice.shows("document.getElementById('state')?.textContent.includes('2 of 2 nodes connected')");
    alice.click("a[href='#nodes']");
    alice.shows("document.querySelector('#health tr[data-node=other]') !== null");
    alice.click("a[href='#tail']");
    until("what is written appears", || {
        site.write("good", 1);
        alice.value("[...document.querySelectorAll('#tail-rows tr')].some((row) => row.cells[6].textContent === '512')")
            == true
    });
    assert!(alice.asked().iter().all(|asked| asked.starts_with(&url) || asked == "about:blank"));
    assert_eq!(alice.complaints(), Vec::<String>::new());
    let _ = site.end(clients);
}

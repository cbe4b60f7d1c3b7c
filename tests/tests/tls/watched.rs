//! Readers with valid certificates: `miot top`, and the page in a browser.

use crate::site::{Site, top_command};
use miot_tests::browser::{Browser, home, show_certificates};
use miot_tests::built::built;
use miot_tests::daemons::free_port;
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{run, until};
use miot_tests::tmux::Terminal;
use serde_json::Value;

#[test]
fn reader_watches_the_cluster() {
    let site = Site::start("top");
    let clients = [site.honest("good"), site.honest("other")];
    let alice = site.papers("reader/alice");
    let top = || -> Value {
        let mut top = top_command(site.port, Some(&alice));
        serde_json::from_str(&run(top.args(["--window", "all"])).success().stdout).unwrap()
    };
    // Counting is active only while a reader queries it.
    until("the writes are counted", || {
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
fn reader_opens_the_page() {
    let Some(room) = Namespaces::new(&["--mount"]) else { return };
    let http = free_port();
    let site = Site::with("page", |server| {
        server.args(["--http", &format!("127.0.0.1:{http}")]);
    });
    let url = format!("https://localhost:{http}/");
    show_certificates(&room, &url);
    let mut stranger = Browser::of(&room, &home(&site.place.join("stranger"), &site.pki, None));
    // To Chromium the connection exists before the server has checked the certificate, so it may
    // only see that the connection has ended.
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
    until("the writes appear", || {
        site.write("good", 1);
        alice.value("[...document.querySelectorAll('#tail-rows tr')].some((row) => row.cells[6].textContent === '512')")
            == true
    });
    assert!(alice.asked().iter().all(|asked| asked.starts_with(&url) || asked == "about:blank"));
    assert_eq!(alice.complaints(), Vec::<String>::new());
    let _ = site.end(clients);
}

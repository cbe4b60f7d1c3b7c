//! Those with the right papers who look: `miot top`, and the page in a browser.

use crate::site::{Site, top_command};
use miot_tests::browser::Browser;
use miot_tests::built::built;
use miot_tests::daemons::free_port;
use miot_tests::process::{run, until};
use miot_tests::room::Room;
use miot_tests::tmux::Terminal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

fn done(command: &mut Command) {
    let _ = run(command).success();
}

/// The home of somebody whose browser trusts the authority, and has the certificate of a reader, if there is one.
fn home(site: &Site, name: &str, reader: Option<&str>) -> PathBuf {
    let home = site.place.join(format!("home-{name}"));
    let store = home.join(".pki/nssdb");
    fs::create_dir_all(&store).unwrap();
    let at = format!("sql:{}", store.display());
    done(Command::new("certutil").args(["-N", "--empty-password", "-d", &at]));
    let authority = site.pki.join("ca.pem");
    done(Command::new("certutil").args(["-A", "-n", "MIOT", "-t", "C,,", "-d", &at, "-i"]).arg(authority));
    if let Some(reader) = reader {
        let file = |end| site.pki.join(format!("reader/{reader}.{end}"));
        let both = home.join("reader.p12");
        let mut openssl = Command::new("openssl");
        openssl.args(["pkcs12", "-export", "-passout", "pass:reader", "-in"]).arg(file("pem"));
        done(openssl.arg("-inkey").arg(file("key")).arg("-out").arg(&both));
        done(Command::new("pk12util").args(["-d", &at, "-K", "", "-W", "reader", "-i"]).arg(&both));
    }
    home
}

/// A browser that shows the certificate it has without asking, by a policy that this test alone sees.
fn browser(room: &Room, home: &Path) -> Browser {
    Browser::within(|mut chromium| room.inside(chromium.env("HOME", home)))
}

#[test]
fn a_reader_looks_at_the_page() {
    let Some(room) = Room::new(&["--mount"]) else { return };
    let http = free_port();
    let site = Site::with("page", |server| {
        server.args(["--http", &format!("127.0.0.1:{http}")]);
    });
    let url = format!("https://localhost:{http}/");
    room.shell("mount -t tmpfs tmpfs /etc/chromium && mkdir -p /etc/chromium/policies/managed");
    let policy = serde_json::json!({ "pattern": url, "filter": {} }).to_string();
    let policy = serde_json::json!({ "AutoSelectCertificateForUrls": [policy] }).to_string();
    fs::write(room.seen(Path::new("/etc/chromium/policies/managed/miot.json")), policy).unwrap();

    let mut stranger = browser(&room, &home(&site, "stranger", None));
    let refused = stranger.open(&url).unwrap_err();
    assert!(refused.contains("CLIENT_AUTH"), "{refused}");

    let clients = [site.honest("good"), site.honest("other")];
    let mut alice = browser(&room, &home(&site, "alice", Some("alice")));
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

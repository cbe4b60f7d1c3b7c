//! Clients with valid certificates.

use crate::site::{Site, tail_command, writes};
use miot_tests::process::{Background, until};
use miot_tests::trace::{PrintedEvent, rows};
use rustix::process::Signal;

fn printed(tail: &Background) -> Vec<PrintedEvent> {
    let text = tail.printed();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    rows(whole).unwrap()
}

#[test]
fn nodes_deliver_and_a_reader_follows() {
    let site = Site::start("served");
    let clients = [site.honest("good"), site.honest("other")];
    // The certificates are named by environment variables.
    let mut tail = tail_command(site.port, None);
    let papers = site.papers("reader/alice");
    for (key, file) in ["CERTIFICATE", "KEY", "AUTHORITY"].into_iter().zip(&papers.0) {
        tail.env(format!("MIOT_TLS_{key}"), file);
    }
    let mut tail = Background::start(&mut tail);
    let mut rounds = 0;
    until("tail shows both nodes", || {
        assert!(tail.running(), "{}", tail.printed());
        rounds += 1;
        site.write("good", 10);
        site.write("other", 20);
        let shown = printed(&tail);
        writes(&shown, "good") > 0 && writes(&shown, "other") > 0
    });
    // More bytes than TLS and the network buffer, to a connected reader.
    let before = writes(&printed(&tail), "good");
    site.write("good", 20_000);
    until("tail shows everything", || writes(&printed(&tail), "good") >= before + 20_000);
    let (_, text) = tail.stop(Signal::TERM);
    site.no_secrets(&text);
    let (rows, _) = site.end(clients);
    assert_eq!((writes(&rows, "good"), writes(&rows, "other")), (rounds * 10 + 20_000, rounds * 20));
    assert!(rows.is_sorted_by_key(|row| row.time));
}

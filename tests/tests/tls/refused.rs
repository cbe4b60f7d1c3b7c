//! Real programs with wrong certificates receive the reason, and a valid node beside them is not
//! affected.

use crate::site::{
    Papers, Site, authority, get, pki, place, server_command, tail_command, top_command, writes,
};
use miot_tests::built::built;
use miot_tests::daemons::{free_port, ready};
use miot_tests::process::{run, until};
use rustix::process::Signal;
use std::process::Command;

#[test]
fn wrong_log_clients_are_refused() {
    let http = free_port();
    let site = Site::with("refused", |server| {
        server.args(["--http", &format!("127.0.0.1:{http}")]);
    });
    let refused = || {
        let text = get(http, "/metrics");
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("miot_server_connections_refused_total "));
        count.unwrap_or_else(|| panic!("no such count in {text}")).parse::<u64>().unwrap()
    };
    assert_eq!(refused(), 0);
    let strange = site.place.join("strange");
    authority(&strange);
    let _ = pki(&["node"], &site.pki, &["late", "--not-after", "2026-01-01"]).success();
    let _ = pki(&["node"], &site.pki, &["soon", "--days", "20"]).success();
    let client = site.honest("good");
    site.write("good", 10);

    let good = || site.papers("node/good");
    let wrong_authority = Papers::new(&strange, "node/other").with_authority_of(&site.pki);
    // Exit code 3: refused by the log-server. Exit code 2: detected by the log-client itself.
    for (node, papers, code, part) in [
        ("other", Some(wrong_authority), 3, "does not know the authority"),
        ("late", Some(site.papers("node/late")), 3, "has expired"),
        ("other", None, 3, "speaks TLS only"),
        ("other", Some(good()), 2, "for `good`, not for the node `other`"),
        ("other", Some(site.papers("reader/alice")), 2, "one of a node is required"),
        ("other", Some(site.papers("server/localhost")), 2, "one of a node is required"),
    ] {
        let ended = site.ended(node, papers.as_ref());
        assert_eq!(ended.code(), code, "{node}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        site.no_secrets(&ended.stderr);
    }
    let server = site.server().printed();
    for part in
        ["signed by none of the authorities", "has expired by this machine's clock", "does not speak TLS"]
    {
        let lines = server.lines().filter(|line| line.contains(part)).count();
        assert_eq!(lines, 1, "{part}: {server}");
    }
    // Clients that never connected are not among them.
    until("each of them is in the metrics", || refused() >= 3);
    assert_eq!(refused(), 3);

    // A log-client that cannot verify the log-server keeps its batches and retries.
    let distrustful = Papers::new(&site.pki, "node/other").with_authority_of(&strange);
    let other = site.client("other", &distrustful);
    until("the log-client distrusts the server", || {
        other.printed().contains("its certificate is signed by none of the authorities")
    });
    drop(other.stop(Signal::KILL));

    // A certificate that expires soon is accepted, with a warning.
    let soon = site.honest("soon");
    assert!(soon.printed().contains("expires soon"), "{}", soon.printed());
    site.write("soon", 5);
    site.write("good", 10);
    let (rows, _) = site.end([client, soon]);
    assert_eq!((writes(&rows, "good"), writes(&rows, "soon")), (20, 5));
    assert!(rows.iter().all(|row| ["good", "soon"].contains(&row.node.as_str())));
}

#[test]
fn wrong_readers_are_refused() {
    let site = Site::start("readers");
    let strange = site.place.join("strange");
    authority(&strange);
    let wrong_authority = Papers::new(&strange, "reader/alice").with_authority_of(&site.pki);
    let distrustful = site.papers("reader/alice").with_authority_of(&strange);
    for (papers, part) in [
        (None, "speaks TLS only"),
        (Some(site.papers("node/good")), "one of a reader is required"),
        (Some(wrong_authority), "does not know the authority"),
        (Some(distrustful), "signed by none of the authorities"),
    ] {
        for mut command in [tail_command(site.port, papers.as_ref()), top_command(site.port, papers.as_ref())]
        {
            let ended = run(&mut command);
            assert_eq!(ended.code(), 1, "{}", ended.stderr);
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
    }
    let _ = site.end([]);
}

#[test]
fn wrong_server_is_refused() {
    let place = place("elsewhere");
    let (dir, port) = (place.join("pki"), free_port());
    authority(&dir);
    let _ = pki(&["server"], &dir, &["--name", "logs.example.org"]).success();
    let alice = Papers::new(&dir, "reader/alice");
    let node = Papers::new(&dir, "node/good");
    let ended = run(&mut server_command(port, &place.join("trace"), Some(&node)));
    assert_eq!(ended.code(), 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("one of a server is required"), "{}", ended.stderr);

    let elsewhere = Papers::new(&dir, "server/logs.example.org");
    let server = ready(&mut server_command(port, &place.join("trace"), Some(&elsewhere)));
    let ended = run(&mut tail_command(port, Some(&alice)));
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("not for localhost, but for"), "{}", ended.stderr);
    server.end();
}

#[test]
fn tls_on_one_side_only_is_reported() {
    let place = place("half");
    let (dir, port) = (place.join("pki"), free_port());
    authority(&dir);
    let server = ready(&mut server_command(port, &place.join("trace"), None));
    let ended = run(&mut tail_command(port, Some(&Papers::new(&dir, "reader/alice"))));
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("does not speak TLS"), "{}", ended.stderr);
    let text = server.end();
    assert!(text.contains("has no `tls_certificate`"), "{text}");
}

#[test]
fn remote_access_needs_tls_or_an_explicit_option() {
    let place = place("words");
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut client = Command::new(&built().log_client);
    client.args(["--node", "x", "--server", "192.0.2.1:4747", "--dir"]).arg(shared.path().join("miot"));
    let mut server = Command::new(&built().log_server);
    server.args(["--listen", "0.0.0.0:0", "--trace"]).arg(place.join("trace"));
    for mut command in [client, server] {
        let ended = run(&mut command);
        assert_eq!(ended.code(), 2, "{}", ended.stderr);
        assert!(ended.stderr.contains("miot pki"), "{}", ended.stderr);
        assert!(ended.stderr.contains("allow_insecure = true"), "{}", ended.stderr);
    }
}

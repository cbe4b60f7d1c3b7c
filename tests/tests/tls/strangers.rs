//! Peers that are not programs of MIOT: false claims with a valid certificate, garbage, and
//! stalling peers.

use crate::site::{Papers, Site, connected, get, pki, writes};
use miot_proto::wire::{
    FRAME_HEADER, GREETING, MAX_FRAME, Message, Process, ProcessKey, Role as Wanted, Stream, StreamKey,
    VERSION, frame_header,
};
use miot_tests::daemons::free_port;
use miot_tests::process::until;
use miot_tls::Role;
use std::io::{Read, Write as _};

/// First message of a log-client of `node`, with a process and a stream.
fn introduction(node: &str, role: Wanted) -> Vec<u8> {
    let hello = Message::Hello { greeting: GREETING, version: VERSION, role, node: node.into(), session: 7 };
    let key = ProcessKey { boot: 1, nonce: 2, pid: 3 };
    let (exe, cmdline, job, cwd) = (b"/bin/evil".to_vec(), Vec::new(), Vec::new(), Vec::new());
    let process = Process { key, ppid: 1, uid: 0, started: 1, rank: None, exe, cmdline, job, cwd };
    let stream = Stream {
        number: 0,
        key: StreamKey { process: key, lane: 0, incarnation: 1 },
        tid: 3,
        comm: Vec::new(),
    };
    let mut bytes = Vec::new();
    for message in [
        hello,
        Message::Process { seq: 1, process },
        Message::Stream { seq: 2, stream },
        Message::Heartbeat { watermark: i64::MAX },
    ] {
        message.append_frame(&mut bytes);
    }
    bytes
}

/// Receives the next message, if there is one.
fn receive(stream: &mut impl Read) -> Option<Message> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).ok()?;
    let (length, crc) = frame_header(header, MAX_FRAME).unwrap();
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).unwrap();
    Some(Message::from_payload(&payload, crc).unwrap())
}

/// Answer of a log-server to these bytes from the owner of a certificate.
fn answer(site: &Site, papers: &Papers, own: Role, bytes: &[u8]) -> Option<Message> {
    let client = papers.client(own);
    let mut stream = client.connect_blocking("localhost:0", connected(site.port)).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.flush();
    receive(&mut stream)
}

#[test]
fn certificate_is_valid_only_for_its_owner() {
    let site = Site::start("liars");
    let _ = pki(&["node"], &site.pki, &["Other"]).success();
    let clients = [site.honest("good"), site.honest("other")];
    let (good, alice) = (site.papers("node/good"), site.papers("reader/alice"));
    for (papers, own, name, wanted, part) in [
        (&good, Role::Node, "other", Wanted::Node, "for `good`, not for the node `other`"),
        (&good, Role::Node, "Good", Wanted::Node, "not for the node `Good`"),
        (&good, Role::Node, "new", Wanted::Node, "not for the node `new`"),
        (&site.papers("node/Other"), Role::Node, "other", Wanted::Node, "for `Other`"),
        (&good, Role::Node, "good", Wanted::Tail, "is for a node, but this requires a reader"),
        (&alice, Role::Reader, "alice", Wanted::Node, "is for a reader, but this requires a node"),
        (&alice, Role::Reader, "other", Wanted::Node, "is for a reader, but this requires a node"),
    ] {
        let said = answer(&site, papers, own, &introduction(name, wanted));
        let Some(Message::Refused { reason, .. }) = said else { panic!("{name} as {wanted:?}: {said:?}") };
        assert!(reason.contains(part), "{reason}");
        let said_in_log = || site.server().printed().contains(part);
        until("the log contains it as well", said_in_log);
    }
    // The same bytes from the right owner are accepted.
    let said = answer(&site, &site.papers("node/Other"), Role::Node, &introduction("Other", Wanted::Node));
    assert!(matches!(said, Some(Message::Welcome { .. })), "{said:?}");

    site.write("good", 10);
    site.write("other", 20);
    let (rows, _) = site.end(clients);
    assert_eq!((writes(&rows, "good"), writes(&rows, "other")), (10, 20));
    assert!(rows.iter().all(|row| ["good", "other"].contains(&row.node.as_str())));
}

#[test]
fn stalled_page_requests_release_their_places() {
    /// Number of requests that are served at a time.
    const PLACES: usize = 128;
    let http = free_port();
    let site = Site::with("stalled-page", |server| {
        server.args(["--http", &format!("127.0.0.1:{http}")]);
    });
    let stall = |_| {
        let mut stream = connected(http);
        stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").unwrap();
        stream
    };
    let stalled: Vec<_> = (0..PLACES + 8).map(stall).collect();
    // This request waits for those before it.
    let answer = get(http, "/healthz");
    assert!(answer.ends_with("ok\n"), "{answer}");
    for mut stream in stalled {
        let ended = stream.read(&mut [0; 64]);
        assert!(matches!(ended, Ok(0) | Err(_)), "an unfinished handshake was answered: {ended:?}");
    }
    let (_, log) = site.end([]);
    assert!(log.contains("TLS handshake timed out"), "{log}");
}

#[test]
fn garbage_around_the_handshake_does_no_harm() {
    let site = Site::start("garbage");
    let client = site.honest("good");
    let hello = introduction("good", Wanted::Node);
    let mut torn_record = b"\x16\x03\x01\xff\xff\x01".to_vec();
    torn_record.resize(70_000, 0xee);
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        torn_record,
        b"\x16".to_vec(),
        b"\x15\x03\x03\x00\x02\x02\x50".to_vec(),
        vec![0xff; 100_000],
        vec![0; 100_000],
        hello.clone(),
    ] {
        let mut stream = connected(site.port);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // A reset is accepted as an end.
        let _ = stream.read_to_end(&mut answer);
        if bytes == hello {
            let Some(Message::Refused { reason, .. }) = receive(&mut answer.as_slice()) else {
                panic!("{answer:?}")
            };
            assert!(reason.contains("speaks TLS only"), "{reason}");
        }
    }
    // Inside an encrypted connection.
    for bytes in
        [vec![0xff; 100_000], vec![0; 5000], Message::Bye.frame(), [&hello[..], &[0xff; 4096]].concat()]
    {
        let _ = answer(&site, &site.papers("node/good"), Role::Node, &bytes);
    }
    site.write("good", 50);
    let (rows, _) = site.end([client]);
    assert_eq!(writes(&rows, "good"), 50);
}

#[test]
fn stalled_peers_delay_no_node_and_are_disconnected() {
    let site = Site::with("stalled", |server| {
        server.env("MIOT_SERVER_CONNECTIONS", "4");
    });
    let client_hello_begins = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let stall = |n: usize| {
        let mut stream = connected(site.port);
        stream.write_all(&client_hello_begins[..n % client_hello_begins.len()]).unwrap();
        stream
    };
    let stalled: Vec<_> = (0..30).map(stall).collect();
    // Meanwhile a node delivers, before the stalled peers time out.
    let good = site.honest("good");
    site.write("good", 10);
    until("the node is connected", || good.printed().contains("connected to the log-server"));

    // More than the permitted number of silent peers: the one that has waited longest is
    // disconnected, and nodes connect.
    let more: Vec<_> = (0..300).map(stall).collect();
    let other = site.honest("other");
    until("another node is connected", || other.printed().contains("connected to the log-server"));
    for mut stream in stalled.into_iter().chain(more) {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    site.write("other", 20);
    let (rows, log) = site.end([good, other]);
    assert_eq!((writes(&rows, "good"), writes(&rows, "other")), (10, 20));
    assert!(log.contains("no TLS handshake within"), "{log}");
}

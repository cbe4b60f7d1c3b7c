//! A log-server with hostile and broken peers: a port in use, garbage, half-open connections.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::wire::{GREETING, Message, Role, VERSION, Version};
use miot_tests::built::built;
use miot_tests::daemons::{client, free_port, preloaded, server};
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, events};
use rustix::process::Signal;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

fn place(name: &str) -> PathBuf {
    fresh(&format!("network-{name}"))
}

#[test]
fn port_in_use_is_reported() {
    let place = place("in-use");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut server = Command::new(&built().log_server);
    let ended = run(server.args(["--listen", &address, "--trace"]).arg(place.join("trace")));
    assert_eq!(ended.code(), 2, "{}", ended.stderr);
    assert!(ended.stderr.contains(&address) && ended.stderr.contains("in use"), "{}", ended.stderr);
}

/// Returns the server's answer to `bytes`. The server must close the connection.
fn answer(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // A watchdog. The server has its own limit for silent peers.
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    // A reset is accepted as an end.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    answer
}

fn hello(greeting: [u8; 8], version: Version) -> Vec<u8> {
    Message::Hello { greeting, version, role: Role::Node, node: "evil".into(), session: 1 }.frame()
}

#[test]
fn garbage_on_the_server_port_does_no_harm() {
    let place = place("garbage");
    let (trace, port) = (place.join("trace"), free_port());
    let server = server(port, &trace);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = folder.path().join("miot");
    let client = client(port, "good", &dir);

    let wrong_version = hello(GREETING, Version { major: VERSION.major + 1, minor: 0 });
    let mut flipped = hello(GREETING, VERSION);
    flipped[12] ^= 1;
    let mut after_hello = hello(GREETING, VERSION);
    after_hello.extend_from_slice(&[0xff; 4096]);
    let mut batch_of_nobody = hello(GREETING, VERSION);
    Message::Batch { seq: 1, stream: 77, after: 0, columns: vec![1, 2, 3] }
        .append_frame(&mut batch_of_nobody);
    let mut backwards = hello(GREETING, VERSION);
    Message::Heartbeat { watermark: i64::MAX }.append_frame(&mut backwards);
    Message::Heartbeat { watermark: i64::MIN }.append_frame(&mut backwards);
    Message::Ack { through: u64::MAX }.append_frame(&mut backwards);
    let garbage: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        vec![0xff; 100_000],
        vec![0; 100_000],
        Vec::new(),
        hello(*b"NOTAGREE", VERSION),
        wrong_version.clone(),
        flipped,
        after_hello,
        batch_of_nobody,
        backwards,
        Message::Bye.frame(),
    ];
    for bytes in &garbage {
        let _ = answer(port, bytes);
        // Half of it, too.
        let _ = answer(port, &bytes[..bytes.len() / 2]);
    }
    let refused = answer(port, &wrong_version);
    assert!(String::from_utf8_lossy(&refused).contains("version"), "says why: {refused:02x?}");

    // The good node works during the whole test.
    let mut dd = preloaded("dd", &dir);
    let out = format!("of={}", place.join("out").display());
    let _ = run(dd.args(["if=/dev/zero", "bs=512", "count=50", &out])).success();
    client.end();
    server.end();
    let rows = events(&trace);
    assert_eq!(rows.iter().filter(|row| row.op == "write" && row.result == 512).count(), 50);
    assert!(rows.iter().all(|row| row.node == "good"), "the garbage adds no events");
    assert_good(&trace);
}

#[test]
fn missing_server_does_not_delay_a_program() {
    let place = place("no-server");
    let port = free_port();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = folder.path().join("miot");
    let client = client(port, "alone", &dir);
    let mut dd = preloaded("dd", &dir);
    let out = format!("of={}", place.join("out").display());
    let _ = run(dd.args(["if=/dev/zero", "bs=512", "count=20000", &out])).success();
    assert_eq!(fs::metadata(place.join("out")).unwrap().len(), 512 * 20_000);
    let (status, text) = client.stop(Signal::TERM);
    assert!(
        !status.success() || text.contains("undelivered"),
        "undelivered events are reported: {status} {text}"
    );
}

//! New certificates for running daemons.

use crate::site::{Site, authority, connected, pki, writes};
use miot_tests::process::{signal_id, until};
use miot_tls::Role;
use miot_tls::files::certificates_of;
use rustix::process::Signal;
use std::fs;

/// Serial number of the certificate that the log-server presents.
fn shown(site: &Site) -> String {
    let client = site.papers("reader/alice").client(Role::Reader);
    let stream = client.connect_blocking("localhost:0", connected(site.port)).unwrap();
    let first = stream.conn.peer_certificates().unwrap()[0].clone();
    miot_tls::Certificate::parse(&first).unwrap().serial
}

fn stored(site: &Site) -> String {
    certificates_of(&site.pki.join("server/localhost.pem")).unwrap()[0].serial.clone()
}

#[test]
fn server_loads_valid_new_certificates_only() {
    let site = Site::start("renewed");
    let client = site.honest("good");
    site.write("good", 10);
    let first = stored(&site);
    assert_eq!(shown(&site), first);

    let renew = || pki(&["server"], &site.pki, &["--name", "localhost", "--renew"]).success();
    let _ = renew();
    let second = stored(&site);
    assert_ne!(second, first);
    signal_id(site.server().id(), Signal::HUP);
    until("the new certificate is shown", || shown(&site) == second);

    // A key of another pair, and an empty file.
    let key = site.pki.join("server/localhost.key");
    let right = fs::read(&key).unwrap();
    for (wrong, part) in [
        (fs::read(site.pki.join("node/good.key")).unwrap(), "does not belong to the certificate"),
        (Vec::new(), "the file is empty"),
    ] {
        fs::write(&key, wrong).unwrap();
        signal_id(site.server().id(), Signal::HUP);
        until("the mistake is logged", || site.server().printed().contains(part));
        assert_eq!(shown(&site), second);
    }
    fs::write(&key, right).unwrap();
    let _ = renew();
    let third = stored(&site);
    signal_id(site.server().id(), Signal::HUP);
    until("the next one is shown", || shown(&site) == third);

    // The earlier connection still works.
    site.write("good", 20);
    let (rows, _) = site.end([client]);
    assert_eq!(writes(&rows, "good"), 30);
}

#[test]
fn deployment_can_move_to_a_new_authority() {
    let mut site = Site::start("moved");
    let client = site.honest("good");
    site.write("good", 10);
    until("delivered", || client.printed().contains("connected to the log-server"));

    // The files are replaced in place. The log-client receives no signal.
    let new = site.place.join("new");
    authority(&new);
    for file in ["ca.pem", "node/good.key", "node/good.pem", "server/localhost.key", "server/localhost.pem"] {
        fs::copy(new.join(file), site.pki.join(file)).unwrap();
    }
    site.restart();
    site.write("good", 20);
    let (rows, _) = site.end([client]);
    assert_eq!(writes(&rows, "good"), 30);
}

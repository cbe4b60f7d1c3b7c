//! Files that cannot be used, and certificates that were revoked.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tls::server::Rejection;
use miot_tls::{Error, Files, Role, TlsClient, TlsServer};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

/// A directory with an authority and the certificates that it signed.
struct TestAuthority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> TestAuthority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let made = TestAuthority { dir, issuer: Issuer::new(params, key) };
        made.issue(Role::Server, 1);
        made.issue(Role::Node, 2);
        made.issue(Role::Reader, 3);
        made
    }

    fn issue(&self, role: Role, serial: u64) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(role.uri().try_into().unwrap()));
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![match role {
            Role::Server => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file(role, "pem"), certificate.pem()).unwrap();
        fs::write(self.file(role, "key"), key.serialize_pem()).unwrap();
        fs::set_permissions(self.file(role, "key"), fs::Permissions::from_mode(0o640)).unwrap();
    }

    fn file(&self, role: Role, end: &str) -> PathBuf {
        self.dir.path().join(format!("{role}.{end}"))
    }

    fn authority(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn files(&self, role: Role) -> Files {
        files(&self.file(role, "pem"), &self.file(role, "key"), &self.authority())
    }
}

fn files(certificate: &Path, key: &Path, authority: &Path) -> Files {
    Files::new(Some(certificate), Some(key), Some(authority)).unwrap().unwrap()
}

fn error(files: Files) -> String {
    TlsServer::load(files).unwrap_err().to_string()
}

#[test]
fn unusable_files_are_named() {
    let made = TestAuthority::new();
    let (pem, key, authority) =
        (made.file(Role::Server, "pem"), made.file(Role::Server, "key"), made.authority());
    TlsServer::load(made.files(Role::Server)).unwrap();
    let missing = made.dir.path().join("missing");
    let text = made.dir.path().join("text");
    fs::write(&text, "hello").unwrap();
    let broken = made.dir.path().join("broken");
    fs::write(&broken, fs::read_to_string(&pem).unwrap().replace("-----END", "END")).unwrap();
    let no_der = made.dir.path().join("no-der");
    fs::write(&no_der, "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n").unwrap();
    let large = made.dir.path().join("large");
    fs::write(&large, vec![b'x'; 2 << 20]).unwrap();
    for (files, parts) in [
        (files(&missing, &key, &authority), ["tls_certificate", "missing: No such file"]),
        (files(&pem, &missing, &authority), ["tls_key", "missing: No such file"]),
        (files(&pem, &key, &missing), ["tls_authority", "missing: No such file"]),
        (files(&text, &key, &authority), ["tls_certificate", "no PEM at all"]),
        (files(&key, &key, &authority), ["tls_certificate", "a private key"]),
        (files(&broken, &key, &authority), ["tls_certificate", "PEM"]),
        (files(&no_der, &key, &authority), ["tls_certificate", "cannot be read"]),
        (files(&large, &key, &authority), ["tls_certificate", "longer than"]),
        (files(&pem, &pem, &authority), ["tls_key", "by others than its owner"]),
        (files(&pem, &made.file(Role::Node, "key"), &authority), ["node.key", "does not belong"]),
        (files(&pem, &key, &pem), ["tls_authority", "may not sign others"]),
        (files(&pem, &key, &text), ["tls_authority", "no PEM at all"]),
        (made.files(Role::Node), ["one of a server is required", "miot pki server"]),
    ] {
        let error = error(files);
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        let secret = fs::read_to_string(&key).unwrap();
        assert!(!secret.lines().filter(|line| !line.starts_with('-')).any(|line| error.contains(line)));
    }
    assert!(TlsClient::load(made.files(Role::Node), Role::Reader).is_err());
}

#[test]
fn keys_are_readable_by_owner_and_group_only() {
    let made = TestAuthority::new();
    for (mode, fine) in
        [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o660, false), (0o604, false)]
    {
        fs::set_permissions(made.file(Role::Server, "key"), fs::Permissions::from_mode(mode)).unwrap();
        match TlsServer::load(made.files(Role::Server)) {
            Ok(_) => assert!(fine, "{mode:o}"),
            Err(Error::Exposed { mode: found, .. }) => assert!(!fine && found == mode, "{mode:o}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the serial number of the client's certificate, or why the server refuses it.
async fn meet(server: &TlsServer, client: &TlsClient) -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let calling = async {
        let stream = TcpStream::connect(address).await.unwrap();
        client.connect("localhost:1", stream).await
    };
    let answering = async {
        match server.accept(listener.accept().await.unwrap().0).await {
            Ok((_, certificate)) => Ok(certificate.serial),
            Err(Rejection::Failed(_, reason)) => Err(reason),
            Err(other) => Err(format!("{other:?}")),
        }
    };
    tokio::join!(calling, answering).1
}

/// A node that has waited too long. After a restart of the log-server there may be thousands.
#[tokio::test]
async fn peer_that_has_given_up_costs_no_handshake() {
    let made = TestAuthority::new();
    let server = TlsServer::load(made.files(Role::Server)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    // The beginning of a handshake.
    stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    drop(stream);
    let accepted = listener.accept().await.unwrap().0;
    accepted.readable().await.unwrap();
    let rejection = server.accept(accepted).await.unwrap_err();
    assert!(matches!(rejection, Rejection::Gone), "{rejection:?}");
}

#[tokio::test]
async fn the_revoked_are_out_once_the_files_are_read_again() {
    let made = TestAuthority::new();
    let server = TlsServer::load(made.files(Role::Server)).unwrap();
    let node = TlsClient::load(made.files(Role::Node), Role::Node).unwrap();
    let reader = TlsClient::load(made.files(Role::Reader), Role::Reader).unwrap();
    assert_eq!(meet(&server, &node).await, Ok("02".into()));
    assert_eq!(meet(&server, &reader).await, Ok("03".into()));

    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(2),
        revocation_time: date_time_ymd(2026, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2026, 1, 1),
        next_update: date_time_ymd(2026, 2, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&made.issuer).unwrap().pem().unwrap();
    let both = format!("{}{list}", fs::read_to_string(made.authority()).unwrap());
    fs::write(made.authority(), both).unwrap();
    assert_eq!(meet(&server, &node).await, Ok("02".into()), "not read again yet");
    server.reload().unwrap();
    assert_eq!(meet(&server, &node).await, Err("its certificate was revoked".into()));
    assert_eq!(meet(&server, &reader).await, Ok("03".into()));
}

#[test]
fn bad_files_leave_the_good_ones_in_force() {
    let made = TestAuthority::new();
    let server = TlsServer::load(made.files(Role::Server)).unwrap();
    let serial = server.own().serial;
    made.issue(Role::Server, 77);
    let key = fs::read(made.file(Role::Server, "key")).unwrap();
    fs::write(made.file(Role::Server, "key"), "").unwrap();
    assert!(server.reload().is_err());
    assert_eq!(server.own().serial, serial);
    fs::write(made.file(Role::Server, "key"), key).unwrap();
    server.reload().unwrap();
    assert_eq!(server.own().serial, "4d");
}

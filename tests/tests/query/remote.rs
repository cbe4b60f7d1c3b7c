//! Traces in an object store: an S3 server (moto) and a WebDAV server (wsgidav) on this machine,
//! and `file://`.

use crate::{asked, parts, place, python, query};
use miot_tests::daemons::free_port;
use miot_tests::process::{Background, run, until};
use std::path::PathBuf;
use std::process::Command;

const SQL: &str = "SELECT count(*), sum(bytes), max(path), max(exe), min(trace) FROM io";

/// Creates sealed parts, one of which is removed, and a live one.
fn trace(name: &str) -> PathBuf {
    let place = place(name);
    let trace = place.join("a trace");
    drop(parts(&trace, &[300, 200, 100], true));
    place
}

fn serves(port: u16) {
    until("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
}

fn answer(command: &mut Command) -> String {
    run(command).success().stdout.lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn file_address_is_a_directory() {
    let place = trace("file");
    let address = format!("file://{}/a%20trace", place.display());
    assert_eq!(
        answer(&mut query(&[&address, SQL, "--format", "csv"])),
        "600,2457600,/data/1,/bin/cp,a trace"
    );
}

#[test]
fn sealed_parts_are_read_from_s3() {
    let place = trace("s3");
    let port = free_port();
    let moto = python().with_file_name("moto_server");
    let _server = Background::start(Command::new(moto).args(["-H", "127.0.0.1", "-p", &port.to_string()]));
    serves(port);
    let endpoint = format!("http://127.0.0.1:{port}");
    let upload = "
import boto3, pathlib, sys
s3 = boto3.client('s3', endpoint_url=sys.argv[1], aws_access_key_id='k', aws_secret_access_key='s', region_name='us-east-1')
s3.create_bucket(Bucket='traces')
root = pathlib.Path(sys.argv[2])
for file in root.rglob('*'):
    if file.is_file():
        s3.upload_file(str(file), 'traces', 'runs/' + str(file.relative_to(root)))
";
    let _ = run(Command::new(python()).args(["-c", upload, &endpoint]).arg(&place)).success();
    let s3 = |address: &str, sql: &str| {
        let mut command = query(&[address, sql, "--format", "csv"]);
        command.envs([
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
        ]);
        command.envs([("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")]);
        command
    };
    assert_eq!(answer(&mut s3("s3://traces/runs/a%20trace", SQL)), "500,2048000,/data/1,/bin/cp,a trace");
    let missing = run(&mut s3("s3://traces/elsewhere", SQL));
    assert_eq!(missing.code(), 1);
    assert!(missing.stderr.contains("s3://traces/elsewhere is not a MIOT trace"), "{}", missing.stderr);
}

#[test]
fn sealed_parts_are_read_by_webdav() {
    let place = trace("webdav");
    let port = free_port();
    let served = place.to_str().unwrap().to_owned();
    let arguments = [
        "--host",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--root",
        &served,
        "--auth",
        "anonymous",
        "--no-config",
    ];
    let _server = Background::start(Command::new(python().with_file_name("wsgidav")).args(arguments));
    serves(port);
    let address = format!("http://127.0.0.1:{port}/a%20trace");
    assert_eq!(
        answer(&mut query(&[&address, SQL, "--format", "csv"])),
        "500,2048000,/data/1,/bin/cp,a trace"
    );
}

#[test]
fn unknown_address_is_refused() {
    for (address, said) in [
        ("gopher://a/b", "gopher:// is not supported"),
        ("http://127.0.0.1:1/trace", "cannot be read"),
        ("file://", "is not a MIOT trace"),
    ] {
        let ended = asked(&[address, "SELECT 1"]);
        assert_eq!(ended.code(), 1, "{}", ended.stdout);
        assert!(ended.stderr.contains(said), "{address}: {}", ended.stderr);
    }
}

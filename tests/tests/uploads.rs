//! Sealed parts in an object store: every call killed, other people's servers, retention, and what
//! a store refuses.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../lib/trace-store/tests/common/mod.rs"]
mod common;

use miot_tests::built::{built, program, root};
use miot_tests::daemons::{client, free_port, preloaded, ready, server_command};
use miot_tests::google_store::GoogleStore;
use miot_tests::object_store::{BUCKET, KEYS, KillAt, KillingProxy, S3, S3Server, environment, python, tool};
use miot_tests::process::{Background, Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::uploads::{Files, assert_complete, files, uploader, uploader_to};
use miot_trace_store::{Options, Table, Writer};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Creates a trace of sealed parts with these numbers of events.
fn parts(dir: &Path, counts: &[u64]) {
    let mut writer = Writer::create(dir, Options::default()).unwrap();
    common::sides(&mut writer);
    let mut at = 0;
    let mut random = fastrand::Rng::with_seed(7);
    for count in counts {
        let events = common::events(&common::turn(at, at + count));
        writer.append(Table::Events, &common::incompressible(&events, &mut random)).unwrap();
        at += count;
        writer.commit().unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
}

fn upload(trace: &Path, prefix: &str, port: u16) -> Ended {
    run(uploader(trace, prefix, port).arg("--once"))
}

/// Compares downloaded objects with the files of the trace.
#[track_caller]
fn assert_equal(copy: &Path, trace: &Files) {
    let there = files(copy);
    let copy = copy.display();
    assert_eq!(there.keys().collect::<Vec<_>>(), trace.keys().collect::<Vec<_>>(), "{copy}");
    assert!(there == *trace, "an object in {copy} differs from its file");
}

#[test]
fn upload_that_is_killed_at_any_call_ends_once_and_whole() {
    let place = fresh("uploads-killed");
    let trace = place.join("trace");
    // More than one request for the events of the first part.
    parts(&trace, &[600_000, 200]);
    let sealed = files(&trace);
    let s3 = S3::start(S3Server::Moto, &place);
    let kills = killed(|prefix, port| uploader(&trace, prefix, port), s3.port);
    check_copies(&s3, &place, &kills, &sealed);
}

#[test]
fn upload_that_is_killed_by_the_protocol_of_google_ends_once_and_whole() {
    let place = fresh("uploads-google-killed");
    let trace = place.join("trace");
    parts(&trace, &[600_000, 200]);
    let sealed = files(&trace);
    let s3 = S3::start(S3Server::Moto, &place);
    let google = GoogleStore::start(s3.port, &place);
    let kills = killed(
        |prefix, port| {
            let mut command = uploader_to(&trace, &format!("gs://{BUCKET}/{prefix}"));
            command.envs(google.environment(port));
            command
        },
        google.port,
    );
    check_copies(&s3, &place, &kills, &sealed);
}

/// Numbers of calls at which an upload was killed.
type Kills = [(KillAt, usize); 2];

/// Uploads to a prefix for each call of an upload, and kills the uploader at that call. Then it
/// uploads once more.
fn killed(uploader: impl Fn(&str, u16) -> Command, port: u16) -> Kills {
    let mut kills = [(KillAt::Request, 0), (KillAt::Answer, 0)];
    for (at, count) in &mut kills {
        loop {
            let prefix = prefix(*at, *count);
            let proxy = KillingProxy::start(port, *at, *count);
            let mut interrupted = Background::start(uploader(&prefix, proxy.port).arg("--once"));
            proxy.set_client(interrupted.id());
            until("it ends", || !interrupted.running());
            if !proxy.has_killed() {
                break;
            }
            let ended = run(uploader(&prefix, port).arg("--once")).success();
            assert!(ended.stderr.contains("has all parts that are sealed"), "{}", ended.stderr);
            *count += 1;
        }
    }
    println!("killed at {kills:?} calls");
    kills
}

fn prefix(at: KillAt, call: usize) -> String {
    format!("killed/{at:?}-{call}")
}

/// Checks that the store has the whole trace once for each kill.
fn check_copies(s3: &S3, place: &Path, kills: &Kills, sealed: &Files) {
    // At once: a download for each would spend most of its time on the start of Python.
    s3.download("killed", &place.join("killed"));
    for (at, count) in kills {
        assert!(*count >= 17, "{kills:?}: are all calls seen?");
        (0..*count).for_each(|call| assert_equal(&place.join(prefix(*at, call)), sealed));
    }
    assert_complete(&place.join(prefix(KillAt::Request, 0)));
}

#[test]
fn large_files_arrive_whole_on_servers_that_others_have_written() {
    let place = fresh("uploads-servers");
    let trace = place.join("trace");
    parts(&trace, &[600_000, 10]);
    let events = fs::metadata(trace.join("events/part-000000.parquet")).unwrap().len();
    assert!(events > 9 << 20, "{events} bytes are put by one request");
    let sealed = files(&trace);
    let copies = place.join("copies");
    for server in [S3Server::Moto, S3Server::SeaweedFs, S3Server::Rclone] {
        let s3 = S3::start(server, &place);
        let prefix = format!("site/{server:?}");
        let first = upload(&trace, &prefix, s3.port);
        assert!(first.code() == 0 && first.stderr.contains("2 parts copied"), "{server:?}: {}", first.stderr);
        let again = upload(&trace, &prefix, s3.port).success();
        assert!(again.stderr.contains("0 parts copied"), "{server:?}: {}", again.stderr);
        let copy = copies.join(format!("{server:?}"));
        s3.download(&prefix, &copy);
        assert_equal(&copy, &sealed);
        let rows = "
import os, pyarrow.dataset, pyarrow.fs, sys
s3 = pyarrow.fs.S3FileSystem(endpoint_override='127.0.0.1:' + sys.argv[2], scheme='http')
print(pyarrow.dataset.dataset(sys.argv[1] + '/events', filesystem=s3).count_rows())
";
        let mut reader = Command::new(python());
        reader.args(["-c", rows, &format!("{BUCKET}/{prefix}"), &s3.port.to_string()]);
        let read = run(reader.envs(environment(s3.port))).success();
        assert_eq!(read.stdout.trim(), "600010", "{server:?}");
    }
    assert_complete(&copies.join("Moto"));
}

/// Azurite is Microsoft's own emulator, and rclone reads what it holds.
#[test]
fn parts_arrive_whole_in_azure_blob_storage() {
    const ACCOUNT: &str = "account";
    const KEY: &str = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";
    let place = fresh("uploads-azure");
    let trace = place.join("trace");
    parts(&trace, &[600_000, 10]);
    let port = free_port();
    let mut azurite = Command::new(root().join("target/test-azurite/node_modules/.bin/azurite-blob"));
    azurite.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--location"]).arg(&place);
    azurite.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
    let _azurite = Background::start(azurite.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}")));
    let endpoint = format!("http://127.0.0.1:{port}/{ACCOUNT}");
    let rclone = |words: &[&str]| {
        let mut command = Command::new(tool("test-stores", "rclone"));
        command.args(["--config", "/dev/null", "--azureblob-account", ACCOUNT, "--azureblob-key", KEY]);
        run(command.args(["--azureblob-endpoint", &endpoint]).args(words))
    };
    until("the container exists", || rclone(&["mkdir", ":azureblob:traces"]).status.success());
    let environment = [
        ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
        ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
        ("AZURE_ENDPOINT", &endpoint),
        ("AZURE_ALLOW_HTTP", "true"),
    ];
    for copied in ["2 parts copied", "0 parts copied"] {
        let ended = run(uploader_to(&trace, "az://traces/a site").arg("--once").envs(environment)).success();
        assert!(ended.stderr.contains(copied), "{}", ended.stderr);
    }
    let copy = place.join("copy");
    let _ = rclone(&["copy", ":azureblob:traces/a site", copy.to_str().unwrap()]).success();
    assert!(files(&copy) == files(&trace), "an object differs from its file");
    let mut query = Command::new(program("miot-query"));
    query.args(["az://traces/a%20site", "SELECT count(*) AS n FROM events", "--format", "csv"]);
    assert_eq!(run(query.envs(environment)).success().stdout, "n\n600010\n");
}

/// The judge reads what the S3 server behind the gateway holds.
#[test]
fn parts_arrive_whole_by_the_protocol_of_google() {
    let place = fresh("uploads-google");
    let trace = place.join("trace");
    parts(&trace, &[600_000, 10]);
    let s3 = S3::start(S3Server::Moto, &place);
    let google = GoogleStore::start(s3.port, &place);
    let upload = |trace: &Path, address: &str| {
        let mut upload = uploader_to(trace, address);
        upload.arg("--once").envs(google.environment(google.port));
        upload
    };
    let address = format!("gs://{BUCKET}/a site");
    for copied in ["2 parts copied", "0 parts copied"] {
        let ended = run(&mut upload(&trace, &address)).success();
        assert!(ended.stderr.contains(copied), "{}", ended.stderr);
    }
    assert!(google.created() > 0, "no object was put on a condition");
    let copy = place.join("copy");
    s3.download("a site", &copy);
    assert_equal(&copy, &files(&trace));
    let mut query = Command::new(program("miot-query"));
    query.args([&format!("gs://{BUCKET}/a%20site"), "SELECT count(*) AS n FROM events", "--format", "csv"]);
    let count = run(query.envs(google.environment(google.port))).success().stdout;
    assert_eq!(count, "n\n600010\n");

    let other = place.join("other");
    parts(&other, &[30]);
    let refused = run(&mut upload(&other, &address));
    assert!(refused.code() == 1 && refused.stderr.contains("holds another trace"), "{}", refused.stderr);
    let missing = run(&mut upload(&other, "gs://no-such-bucket/prefix"));
    assert!(missing.code() == 1 && missing.stderr.contains("no such bucket"), "{}", missing.stderr);
    let denied = run(upload(&other, "gs://traces/other").env("GOOGLE_SKIP_SIGNATURE", "true"));
    assert!(denied.code() == 1 && denied.stderr.contains("access is denied"), "{}", denied.stderr);
}

#[test]
fn refused_uploads_are_explained() {
    let place = fresh("uploads-refused");
    let (one, other) = (place.join("one"), place.join("other"));
    parts(&one, &[30]);
    parts(&other, &[30]);
    let s3 = S3::start(S3Server::Moto, &place);
    let _ = upload(&one, "shared", s3.port).success();
    let refused = upload(&other, "shared", s3.port);
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr.contains("holds another trace (partition 0, begun "), "{}", refused.stderr);

    let mut command = uploader(&other, "prefix", s3.port);
    command.args(["--once", "--store", "s3://no-such-bucket/prefix"]);
    let missing = run(&mut command);
    assert_eq!(missing.code(), 2, "an option is given twice: {}", missing.stderr);
    let mut command = uploader_to(&other, "s3://no-such-bucket/prefix");
    let missing = run(command.arg("--once").envs(environment(s3.port)));
    assert_eq!(missing.code(), 1);
    assert!(missing.stderr.contains("there is no such bucket"), "{}", missing.stderr);

    let denying = S3::start(S3Server::SeaweedFs, &place);
    let mut command = uploader(&other, "prefix", denying.port);
    let denied = run(command.arg("--once").env("AWS_SECRET_ACCESS_KEY", "a-wrong-secret"));
    assert_eq!(denied.code(), 1);
    assert!(denied.stderr.contains("access is denied"), "{}", denied.stderr);
    assert!(
        !denied.stderr.contains("a-wrong-secret") && !denied.stderr.contains(KEYS.1),
        "{}",
        denied.stderr
    );

    // What cannot be copied is not marked: it is there with the right address.
    assert_eq!(upload(&other, "other", s3.port).success().stderr.matches("1 parts copied").count(), 1);

    let no_store = run(Command::new(program("miot-uploader")).arg("--trace").arg(&one));
    assert_eq!(no_store.code(), 2);
    assert!(no_store.stderr.contains("no store: set `store"), "{}", no_store.stderr);
}

#[test]
fn damaged_part_is_not_copied_and_does_not_hold_back_others() {
    let place = fresh("uploads-damaged");
    let trace = place.join("trace");
    parts(&trace, &[300, 200, 100]);
    let damaged = trace.join("events/part-000001.parquet");
    let sound = fs::read(&damaged).unwrap();
    let mut bytes = sound.clone();
    bytes[100] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let s3 = S3::start(S3Server::Moto, &place);
    let ended = upload(&trace, "damaged", s3.port);
    assert_eq!(ended.code(), 1);
    assert!(
        ended.stderr.contains("part-000001.parquet is not what was sealed (expected "),
        "{}",
        ended.stderr
    );
    let copy = place.join("copy");
    s3.download("damaged", &copy);
    let there = files(&copy);
    let has = |name: &str| there.contains_key(Path::new(name));
    assert!(has("ledger/part-000000.sealed") && has("ledger/part-000002.sealed"), "{:?}", there.keys());
    assert!(!has("ledger/part-000001.sealed") && !has("events/part-000001.parquet"), "{:?}", there.keys());
    fs::write(&damaged, sound).unwrap();
    let _ = upload(&trace, "damaged", s3.port).success();
    let whole = place.join("whole copy");
    s3.download("damaged", &whole);
    assert_equal(&whole, &files(&trace));
    assert_complete(&whole);
}

#[test]
fn local_parts_leave_after_their_upload_and_not_before() {
    let place = fresh("uploads-retention");
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let (trace, dir, port, http) =
        (place.join("trace"), shared.path().join("miot"), free_port(), free_port());
    let store_port = free_port();
    let store = format!("s3://{BUCKET}/cluster");
    let configuration = place.join("log-server.toml");
    let text = format!(
        "trace = \"{}\"\nstore = \"{store}\"\nseal_after = \"500ms\"\nkeep_bytes = \"1 B\"\nhttp = \"127.0.0.1:{http}\"\n",
        trace.display()
    );
    fs::write(&configuration, text).unwrap();
    let mut command = server_command(&format!("127.0.0.1:{port}"), &trace);
    let server = ready(command.arg("--config").arg(&configuration));
    let node = client(port, "node", &dir);
    let mut service = Command::new(program("miot-uploader"));
    let service =
        Background::start(service.arg("--config").arg(&configuration).envs(environment(store_port)));

    let sealed = || {
        let names = fs::read_dir(trace.join("events")).into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().ends_with(".parquet")).count()
    };
    let mut written = 0;
    until("three parts are sealed", || {
        let command = "for i in 1 2 3 4 5 6 7 8 9 10; do echo x; done > out";
        let _ = run(preloaded("sh", &dir).args(["-c", command]).current_dir(&place)).success();
        written += 10;
        sealed() >= 3
    });
    until("the service says why parts wait", || service.printed().contains("sealed parts wait"));
    until("the log-server counts them", || {
        let page = run(Command::new("curl").args(["-s", &format!("http://127.0.0.1:{http}/metrics")]));
        let waiting = |line: &&str| line.starts_with("miot_server_upload_waiting_parts ");
        let line = page.stdout.lines().find(waiting).unwrap_or_default();
        line.rsplit(' ').next().is_some_and(|count| count.parse::<f64>().is_ok_and(|count| count >= 3.0))
    });
    assert!(sealed() >= 3, "parts left before their upload");

    let s3 = S3::start_at(S3Server::Moto, &place, store_port);
    until("the parts are copied and all but the newest leave", || sealed() <= 1);
    assert!(service.printed().contains("the part is copied"), "{}", service.printed());
    node.end();
    server.end();
    let _ = service.end();
    let mut last = Command::new(program("miot-uploader"));
    last.arg("--once").arg("--config").arg(&configuration).envs(environment(store_port));
    let _ = run(&mut last).success();
    let copy = place.join("copy");
    s3.download("cluster", &copy);
    let text = run(Command::new(&built().miot).args(["cat", "--format", "csv"]).arg(&copy)).success().stdout;
    let writes = text.lines().filter(|line| line.contains(",write,")).count();
    assert_eq!(writes, written, "writes in the store");
    assert_complete(&copy);
}

#[test]
fn doctor_names_parts_that_wait_too_long() {
    let place = fresh("uploads-doctor");
    let trace = place.join("trace");
    parts(&trace, &[30, 20]);
    let store = place.join("store");
    fs::create_dir(&store).unwrap();
    let configuration = place.join("log-server.toml");
    let text = format!("trace = \"{}\"\nstore = \"file://{}\"\n", trace.display(), store.display());
    fs::write(&configuration, text).unwrap();
    let doctor = || {
        let mut command = Command::new(&built().miot);
        run(command.args(["doctor", "--server-config"]).arg(&configuration)).stdout
    };
    assert!(doctor().contains("no sealed part has waited longer than 15 min"), "{}", doctor());
    let sealed = trace.join("events/part-000001.parquet");
    let _ = run(Command::new("touch").args(["-d", "1 hour ago"]).arg(&sealed)).success();
    assert!(doctor().contains("2 sealed parts ("), "{}", doctor());
    let mut uploader = Command::new(program("miot-uploader"));
    let _ = run(uploader.arg("--once").arg("--config").arg(&configuration)).success();
    assert!(doctor().contains("no sealed part has waited longer than 15 min"), "{}", doctor());
    assert!(files(&store) == files(&trace));
}

#[test]
fn parts_are_registered_once_in_a_table_catalog() {
    let place = fresh("uploads-lake");
    let trace = place.join("trace");
    parts(&trace, &[300, 200, 100]);
    let s3 = S3::start(S3Server::Moto, &place);
    let script = root().join("deploy/register/register-ducklake");
    let catalog = format!("sqlite:{}", place.join("catalog.sqlite").display());
    // Registers, and fails afterwards the first time, as if it had been killed before its end.
    let fails_once = place.join("fails-once");
    let text = "#!/bin/sh\n\"$@\" && if [ -e seen ]; then exit 0; else touch seen; echo interrupted >&2; exit 7; fi\n";
    fs::write(&fails_once, text).unwrap();
    let _ = run(Command::new("chmod").arg("+x").arg(&fails_once)).success();
    let configuration = place.join("log-server.toml");
    let text = format!(
        "trace = {trace:?}\nstore = \"s3://{BUCKET}/lake\"\nregister = [{fails_once:?}, {:?}, {script:?}, {catalog:?}]\n",
        tool("test-lake", "python"),
    );
    fs::write(&configuration, text).unwrap();
    let upload = || {
        let mut command = Command::new(program("miot-uploader"));
        command.arg("--once").arg("--config").arg(&configuration).current_dir(&place);
        run(command.envs(environment(s3.port)))
    };
    let failed = upload();
    assert_eq!(failed.code(), 1);
    assert!(
        failed.stderr.contains("part 0 is copied, but ") && failed.stderr.contains("interrupted"),
        "{}",
        failed.stderr
    );
    let ended = upload().success();
    assert!(ended.stderr.contains("3 parts copied"), "{}", ended.stderr);
    assert!(upload().success().stderr.contains("0 parts copied"));
    let mut ask = Command::new(tool("test-lake", "python"));
    ask.arg(root().join("tests/lake.py")).arg(&script).arg(&catalog).envs(environment(s3.port)).args([
        "SELECT count(*), sum(result) FROM lake.events",
        "SELECT count(*) FROM ducklake_list_files('lake', 'events')",
        "SELECT count(DISTINCT process) FROM lake.events JOIN lake.processes USING (process)",
    ]);
    let lake = run(&mut ask).success().stdout;
    let mut ask = Command::new(python());
    let local = "
import duckdb, sys
rows, total, processes = duckdb.sql(f\"SELECT count(*), sum(result), count(DISTINCT process) FROM '{sys.argv[1]}/events/*.parquet'\").fetchone()
print(f'[[{rows}, {total}]]\\n[[3]]\\n[[{processes}]]')
";
    let local = run(ask.args(["-c", local]).arg(&trace)).success().stdout;
    assert_eq!(lake, local);
    assert!(lake.starts_with("[[600, "), "{lake}");
}

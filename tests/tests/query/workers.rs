//! `miot query --workers`: rows as of one process; what workers refuse; workers that end.

use crate::{common, place, query};
use miot_tests::built::{built, program};
use miot_tests::object_store::{BUCKET, S3, S3Server, environment};
use miot_tests::process::{Background, Ended, run, until};
use miot_trace_store::{Options, Table, Writer};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Events of each part, about 15 bytes each: more than the engine gives to one worker.
const EVENTS: u64 = 100_000;
const PARTS: u64 = 4;

/// Queries whose rows have an order.
const QUERIES: [&str; 7] = [
    "SELECT count(*), min(time), max(time), sum(offset / 1000), count(DISTINCT seq) FROM events",
    "SELECT op, layer, stream, count(*), sum(length / 1000), approx_distinct(offset) > 0 FROM events \
     GROUP BY op, layer, stream ORDER BY 1, 2, 3",
    "SELECT seq, count(*) AS n FROM events GROUP BY seq ORDER BY n DESC, seq LIMIT 10",
    "SELECT time, stream, seq FROM events WHERE offset % 1000 = 7 ORDER BY time, stream, seq",
    "SELECT time, path, exe, comm, bytes FROM io WHERE offset % 5000 = 7 ORDER BY time, stream",
    "SELECT * FROM file_stats ORDER BY path",
    "SELECT t.comm, count(*) FROM events e JOIN threads t ON e.stream = t.stream AND e.trace = t.trace \
     GROUP BY t.comm ORDER BY t.comm",
];

/// Creates a trace of several parts.
fn trace(place: &Path) -> PathBuf {
    let trace = place.join("traces/mon");
    std::fs::create_dir_all(place.join("traces")).unwrap();
    let mut writer = Writer::create(&trace, Options::default()).unwrap();
    common::sides(&mut writer);
    let mut random = fastrand::Rng::with_seed(7);
    for part in 0..PARTS {
        let events = common::events(&common::turn(part * EVENTS, (part + 1) * EVENTS));
        writer.append(Table::Events, &common::incompressible(&events, &mut random)).unwrap();
        writer.commit().unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
    trace
}

struct Worker {
    running: Background,
    address: String,
}

impl Worker {
    /// Starts `miot query worker` on a free port with these arguments.
    fn start(words: &[&str], environment: &[(&str, String)]) -> Worker {
        let mut command = Command::new(program("miot-query"));
        command.args(["worker", "--listen", "127.0.0.1:0"]).args(words);
        command.envs(environment.iter().map(|(key, value)| (*key, value)));
        let mut running = Background::start(&mut command);
        let mut address = None;
        until("the worker is ready", || {
            assert!(running.running(), "the worker has ended\n{}", running.printed());
            address = running.printed().split("address=").nth(1).and_then(|rest| {
                let (address, _) = rest.split_once(char::is_whitespace)?;
                Some(address.trim_matches('"').to_owned())
            });
            address.is_some()
        });
        Worker { running, address: address.unwrap() }
    }
}

fn named(workers: &[Worker]) -> String {
    workers.iter().map(|worker| worker.address.as_str()).collect::<Vec<_>>().join(",")
}

/// Runs a query on workers, with two threads in each.
fn ask(trace: &str, workers: &str, sql: &str, environment: &[(&str, String)]) -> Ended {
    let words = [trace, "--workers", workers, "--worker-threads", "2", "--format", "csv", sql];
    run(query(&words).envs(environment.iter().map(|(key, value)| (*key, value))))
}

/// Checks that the queries give the rows of one process, and run on all workers.
fn assert_same(trace: &str, workers: &[Worker], environment: &[(&str, String)]) {
    let addresses = named(workers);
    for sql in QUERIES {
        let words = [trace, "--format", "csv", sql];
        let alone = run(query(&words).envs(environment.iter().map(|(key, value)| (*key, value)))).success();
        assert!(alone.stdout.lines().count() > 1, "{sql}: {}", alone.stdout);
        let together = ask(trace, &addresses, sql, environment).success();
        assert_eq!(together.stdout, alone.stdout, "{sql}");
        let plan = ask(trace, &addresses, &format!("EXPLAIN {sql}"), environment).success().stdout;
        assert!(plan.contains(&format!("tasks={}", workers.len())), "{sql}: {plan}");
    }
}

#[test]
fn rows_of_workers_are_those_of_one_process() {
    let place = place("workers");
    let trace = trace(&place);
    let within = place.join("traces");
    let mut workers: Vec<_> = (0..3).map(|_| Worker::start(&[within.to_str().unwrap()], &[])).collect();
    assert_same(trace.to_str().unwrap(), &workers, &[]);

    // A worker that is gone is named.
    let addresses = named(&workers);
    let Worker { running, address } = workers.remove(1);
    let _ = running.stop(rustix::process::Signal::KILL);
    let failed = ask(trace.to_str().unwrap(), &addresses, QUERIES[0], &[]);
    let said = format!("the worker at {address} cannot be reached");
    assert!(failed.code() == 1 && failed.stderr.contains(&said), "{failed:?}");
    assert_eq!(failed.stdout, "");
    assert_same(trace.to_str().unwrap(), &workers, &[]);

    // The rows of an open trace that are not sealed are on this machine only.
    let (mut writer, _) = Writer::open(&trace, Options::default()).unwrap();
    writer.append(Table::Events, &common::events(&common::turn(PARTS * EVENTS, PARTS * EVENTS + 5))).unwrap();
    writer.commit().unwrap();
    let open =
        ask(trace.to_str().unwrap(), &named(&workers), "SELECT count(*) AS n FROM events", &[]).success();
    assert_eq!(open.stdout, format!("n\n{}\n", PARTS * EVENTS));
    assert!(open.stderr.contains("not sealed yet"), "{}", open.stderr);
}

/// `miot doctor` and `miot query --check` name the workers that can run queries, and the others.
#[test]
fn workers_are_checked() {
    let place = place("workers-checked");
    let (worker, gone) = (Worker::start(&[place.to_str().unwrap()], &[]), "127.0.0.1:1");
    let address = &worker.address;
    let _ = run(&mut query(&["--workers", address, "--check"])).success();
    let checked = run(&mut query(&["--check", "--workers", &format!("{gone},{address}")]));
    assert!(
        checked.code() == 1 && checked.stderr.contains("the worker at 127.0.0.1:1 cannot be reached"),
        "{checked:?}"
    );
    assert!(checked.stdout.starts_with(&format!("the worker at {address} has version ")), "{checked:?}");
    assert_eq!(run(&mut query(&["--check"])).code(), 2);

    let words = ["doctor", "--format", "csv", "--dir", place.to_str().unwrap(), "--workers"];
    let report = run(Command::new(&built().miot).args(words).arg(format!("{address},{gone}")));
    let found: Vec<&str> = report.stdout.lines().filter(|line| line.starts_with("query,worker,")).collect();
    let [good, bad] = found[..] else { panic!("{report:?}") };
    assert!(good.starts_with("query,worker,ok,") && good.contains(address.as_str()), "{good}");
    assert!(bad.starts_with("query,worker,problem,") && bad.contains(gone), "{bad}");
}

#[test]
fn worker_that_is_killed_in_a_query_leaves_no_file() {
    let place = place("workers-killed");
    let trace = trace(&place);
    let within = place.join("traces");
    let workers: Vec<_> = (0..2).map(|_| Worker::start(&[within.to_str().unwrap()], &[])).collect();
    // Would take hours, on both workers.
    let sql = "SELECT count(*) FROM events a JOIN events b ON a.seq % 100 = b.seq % 100 WHERE a.offset + b.seq > b.offset";
    let rows = place.join("rows.csv");
    let words = [
        trace.to_str().unwrap(),
        "--workers",
        &named(&workers),
        "--format",
        "csv",
        sql,
        "-o",
        rows.to_str().unwrap(),
    ];
    let mut command = query(&words);
    let asking = Background::start(&mut command);
    let [first, second] = <[Worker; 2]>::try_from(workers).ok().unwrap();
    until("the worker works", || crate::shell::ticks(&second.running.id().to_string()) > 50);
    let _ = second.running.stop(rustix::process::Signal::KILL);
    let mut asking = asking;
    until("the query fails", || !asking.running());
    let printed = asking.printed();
    assert!(printed.contains("miot query: ") && printed.contains("worker"), "{printed}");
    assert!(!rows.exists() && std::fs::read_dir(&place).unwrap().count() == 1, "{printed}");

    // The part of a query that was given up ends as well.
    let another = Worker::start(&[within.to_str().unwrap()], &[]);
    let addresses = format!("{},{}", first.address, another.address);
    let words = [trace.to_str().unwrap(), "--workers", &addresses, sql];
    let asking = Background::start(&mut query(&words));
    let id = first.running.id().to_string();
    let before = crate::shell::ticks(&id);
    until("the worker works", || crate::shell::ticks(&id) > before + 50);
    let _ = asking.stop(rustix::process::Signal::KILL);
    until("the worker rests", || {
        let before = crate::shell::ticks(&id);
        std::thread::sleep(std::time::Duration::from_millis(500));
        crate::shell::ticks(&id) <= before + 1
    });
    let (status, printed) = first.running.stop(rustix::process::Signal::TERM);
    assert!(status.success(), "{printed}");
}

#[test]
fn parts_in_an_object_store_are_read_where_they_are() {
    let place = place("workers-s3");
    let trace = trace(&place);
    let s3 = S3::start(S3Server::SeaweedFs, &place);
    let environment: Vec<(&str, String)> = environment(s3.port).into_iter().collect();
    let mut uploader = Command::new(program("miot-uploader"));
    uploader.args(["--once", "--store", &format!("s3://{BUCKET}/runs/mon"), "--trace"]).arg(&trace);
    let _ = run(uploader.envs(environment.iter().map(|(key, value)| (*key, value)))).success();
    let store = format!("s3://{BUCKET}/runs");
    let workers: Vec<_> = (0..2).map(|_| Worker::start(&[&store], &environment)).collect();
    assert_same(&format!("{store}/mon"), &workers, &environment);
}

#[test]
fn workers_refuse_strangers_and_what_is_not_theirs() {
    let place = place("workers-refuse");
    let trace = trace(&place);
    let trace = trace.to_str().unwrap();
    let elsewhere = place.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let other = Worker::start(&[elsewhere.to_str().unwrap()], &[]);
    let denied = ask(trace, &other.address, QUERIES[0], &[]);
    assert!(
        denied.code() == 1 && denied.stderr.contains("outside of the places of this worker"),
        "{denied:?}"
    );

    let pki = place.join("pki");
    let made = |words: &[&str], more: &[&str]| {
        let _ = run(Command::new(&built().miot).arg("pki").args(words).arg(&pki).args(more)).success();
    };
    made(&["init"], &[]);
    made(&["server"], &["--name", "127.0.0.1"]);
    made(&["node"], &["n1"]);
    made(&["reader"], &["alice"]);
    let file = |name: &str| pki.join(name).display().to_string();
    let within = place.join("traces");
    let (certificate, key, authority) =
        (file("server/127.0.0.1.pem"), file("server/127.0.0.1.key"), file("ca.pem"));
    let (reader, reader_key) = (file("reader/alice.pem"), file("reader/alice.key"));
    let own = ["--tls-certificate", &certificate, "--tls-key", &key, "--tls-authority", &authority];
    let both =
        [&own[..], &["--reader-certificate", &reader, "--reader-key", &reader_key, within.to_str().unwrap()]];
    let workers: Vec<_> = (0..2).map(|_| Worker::start(&both.concat(), &[])).collect();
    let as_role = |certificate: &str, key: &str| {
        let environment = [
            ("MIOT_TLS_CERTIFICATE", certificate.to_owned()),
            ("MIOT_TLS_KEY", key.to_owned()),
            ("MIOT_TLS_AUTHORITY", authority.clone()),
        ];
        ask(trace, &named(&workers), QUERIES[1], &environment)
    };
    let alone = crate::asked(&[trace, "--format", "csv", QUERIES[1]]).success();
    assert_eq!(as_role(&reader, &reader_key).success().stdout, alone.stdout);
    let node = as_role(&file("node/n1.pem"), &file("node/n1.key"));
    assert!(node.code() == 2 && node.stderr.contains("reader"), "{node:?}");
    let plain = ask(trace, &named(&workers), QUERIES[1], &[]);
    assert!(plain.code() == 1 && plain.stdout.is_empty(), "{plain:?}");
    until("the refusal is logged", || {
        workers.iter().any(|worker| worker.running.printed().contains("it does not use TLS"))
    });

    for (words, said) in [
        (&["--listen", "0.0.0.0:0", "/"][..], "--allow-insecure"),
        (&[&own[..], &["/"]].concat(), "--reader-certificate"),
        (&["gopher://a"], "gopher:// is not supported"),
        (&["--listen", "nowhere.invalid:1", "--allow-insecure", "/"], "cannot listen on nowhere.invalid:1"),
    ] {
        let ended = run(Command::new(program("miot-query")).arg("worker").args(words));
        assert!(ended.code() != 0 && ended.stderr.contains(said), "{words:?}: {ended:?}");
    }
    for (wrong, code) in [("node1", 2), ("node1:x", 2), ("127.0.0.1:1", 1)] {
        let ended = ask(trace, wrong, QUERIES[0], &[]);
        assert!(ended.code() == code && ended.stderr.contains(wrong), "{wrong}: {ended:?}");
    }
}

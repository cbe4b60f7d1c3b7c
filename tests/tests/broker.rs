//! Nodes that send through a broker: a real NATS server, killed and wiped, with TLS and
//! credentials, and in every state in which it cannot be used.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use data_encoding::BASE64URL_NOPAD;
use miot_tests::broker::{Broker, client_before, server_behind};
use miot_tests::built::built;
use miot_tests::daemons::{preloaded, ready, started};
use miot_tests::deployment::Deployment;
use miot_tests::judge::Rules;
use miot_tests::killable_daemon::Pace;
use miot_tests::process::{Background, run, until};
use miot_tests::producers::ProducerLoad;
use miot_tests::random::Random;
use miot_tests::test_dir::fresh;
use nkeys::{KeyPair, KeyPairType};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Kills of the broker in the long test.
const BROKER_KILLS: u64 = 8;
const BROKER: Pace = Pace { live: (300, 2000), dead: (0, 400) };
const CLIENT: Pace = Pace { live: (500, 3000), dead: (0, 300) };
const SERVER: Pace = Pace { live: (500, 3000), dead: (0, 600) };
/// A user's key pair of NATS, made for this test.
const NKEY: (&str, &str) = (
    "SUAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB6IC5CQ",
    "UB43KVROR7TFJ6KAPCYRF2FJROTZAH4FHLTJLPWX4DRZCC5NASLGJBFE",
);

/// A node and a log-server with a trace of their own.
struct Site {
    place: PathBuf,
    shared: tempfile::TempDir,
    trace: PathBuf,
}

impl Site {
    fn new(name: &str) -> Site {
        let place = fresh(name);
        let trace = place.join("trace");
        Site { place, shared: tempfile::tempdir_in("/dev/shm").unwrap(), trace }
    }

    fn dir(&self) -> PathBuf {
        self.shared.path().join("node")
    }

    fn client_command(&self, url: &str) -> Command {
        client_before(url, "n1.example", &self.dir())
    }

    /// Makes `count` writes.
    fn write(&self, count: usize) {
        let mut dd = preloaded("dd", &self.dir());
        let out = format!("of={}", self.place.join("out").display());
        let _ = run(dd.args(["if=/dev/zero", "bs=512", &format!("count={count}"), &out])).success();
    }

    /// Number of `posix.write` events in the trace.
    fn writes(&self) -> u64 {
        let stat = run(Command::new(&built().miot).arg("stat").arg(&self.trace).args(["--format", "json"]));
        let stat: Value = serde_json::from_str(&stat.stdout).unwrap_or_default();
        let operations = stat["operations"].as_array().cloned().unwrap_or_default();
        let writes = operations.iter().filter(|row| row["layer"] == "posix" && row["op"] == "write");
        writes.filter_map(|row| row["count"].as_u64()).sum()
    }

    /// Stops the log-server and checks that the trace is complete.
    fn end(&self, server: Background) -> String {
        let (status, printed) = server.stop(Signal::TERM);
        assert!(status.success(), "{printed}");
        let checked = run(Command::new(&built().miot).arg("fsck").arg(&self.trace)).success();
        assert!(checked.stdout.contains("complete"), "{}", checked.stdout);
        printed
    }
}

/// Waits until a daemon has logged this.
#[track_caller]
fn until_logged(daemon: &mut Background, text: &str) {
    until(text, || {
        assert!(daemon.running(), "it ended instead of logging {text:?}\n{}", daemon.printed());
        daemon.printed().contains(text)
    });
}

#[test]
fn events_are_exact_although_everything_is_killed_and_the_store_is_wiped() {
    let mut random = Random::new("broker-kills");
    let store = fresh("broker-kills-store");
    let mut broker = Broker::start(&store, "");
    let url = broker.url();
    let mut deployment = Deployment::new("broker-kills", |trace| {
        let mut server = server_behind(&url, trace);
        server.env("MIOT_SERVER_SILENT_AFTER", "300ms");
        server
    });
    for node in ["a", "b.c", "d e"] {
        let _ = deployment.add(node, |dir| {
            let mut client = client_before(&url, node, dir);
            client.env("MIOT_CLIENT_SPOOL_BYTES", "16 MiB").env("MIOT_CLIENT_STOP", "120s");
            client
        });
    }
    let (mut next, mut wiped) = (Instant::now() + Duration::from_secs(2), 0);
    while broker.daemon.kills < BROKER_KILLS || deployment.server.kills < 4 || deployment.clients_killed() < 9
    {
        for node in 0..deployment.nodes.len() {
            deployment.populate(node, 2, (50, 900), &mut random, |random| {
                // The judge takes longer than the kills otherwise.
                ProducerLoad { pause: 100_000, ..ProducerLoad::any(random) }
            });
            deployment.nodes[node].client.kill_or_restart(&mut random, CLIENT);
        }
        deployment.server.kill_or_restart(&mut random, SERVER);
        deployment.kill_due();
        if Instant::now() >= next {
            if broker.daemon.is_running() {
                broker.daemon.kill();
                next = Instant::now() + random.millis(BROKER.dead.0, BROKER.dead.1 + 1);
            } else {
                let wipes = random.one_in(2);
                wiped += u64::from(wipes);
                broker.restart(wipes);
                next = Instant::now() + random.millis(BROKER.live.0, BROKER.live.1);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    broker.restart(true);
    eprintln!("{} kills of the broker, its store wiped {wiped} times", broker.daemon.kills);
    let verdict = deployment.end(Rules { lost_at: &["lane_full", "no_lane"], served: false });
    assert!(verdict.delivered > 1000 && verdict.nodes.len() == 3, "{verdict}");
}

#[test]
fn events_wait_in_the_broker_although_their_node_is_gone() {
    let site = Site::new("broker-gone");
    let mut broker = Broker::start(&site.place, "");
    let mut client = started(site.client_command(&broker.url()).env("MIOT_CLIENT_STOP", "2s"), &site.dir());
    site.write(5000);
    until_logged(&mut client, "no log-server has answered, sending to the broker");
    let (_, printed) = client.stop(Signal::TERM);
    assert!(printed.contains("not acknowledged"), "{printed}");
    // Its memory, its spool, and its broker's connections.
    fs::remove_dir_all(site.dir()).unwrap();
    broker.restart(false);
    let server = ready(&mut server_behind(&broker.url(), &site.trace));
    until("the events are in the trace", || site.writes() == 5000);
    let _ = site.end(server);
}

#[test]
fn broker_that_is_absent_at_the_start_is_waited_for() {
    let site = Site::new("broker-absent");
    let mut broker = Broker::start(&site.place, "");
    broker.daemon.kill();
    let mut client = started(&mut site.client_command(&broker.url()), &site.dir());
    let mut server = ready(&mut server_behind(&broker.url(), &site.trace));
    site.write(300);
    until_logged(&mut client, "cannot connect to the broker");
    until_logged(&mut server, "cannot connect to the broker");
    broker.restart(false);
    until("the events are in the trace", || site.writes() == 300);
    client.end();
    let _ = site.end(server);
}

/// A message that exceeds the broker's maximum is split.
#[test]
fn messages_larger_than_max_payload_arrive() {
    let site = Site::new("broker-payload");
    let broker = Broker::start(&site.place, "max_payload: 2048");
    let server = ready(&mut server_behind(&broker.url(), &site.trace));
    let client = started(&mut site.client_command(&broker.url()), &site.dir());
    // The command line alone is longer than a message.
    let mut long = preloaded("dd", &site.dir());
    let out = site.place.join("o".repeat(200)).join("p".repeat(200));
    fs::create_dir_all(out.parent().unwrap()).unwrap();
    let again = format!("of={}", out.display());
    let _ = run(long.args(["if=/dev/zero", "bs=512", "count=20000"]).args(vec![again; 20])).success();
    until("the events are in the trace", || site.writes() == 20_000);
    client.end();
    let _ = site.end(server);
}

#[test]
fn unusable_brokers_are_explained_and_nothing_is_lost() {
    let site = Site::new("broker-unusable");
    let secret = "a-secret-word";
    let words = site.place.join("credentials");
    fs::write(&words, format!("user = node\npassword = not-{secret}\n")).unwrap();
    let store = format!("jetstream {{ store_dir: {:?} }}\n", site.place.join("jetstream"));
    let users = |permissions: &str| {
        format!("authorization {{ users: [ {{ user: node, password: \"{secret}\" {permissions} }} ] }}\n")
    };
    let mut broker = Broker::without_jetstream(&site.place, &users(""));
    let words_of_server = site.place.join("credentials-of-server");
    fs::copy(&words, &words_of_server).unwrap();
    let configured = |mut command: Command| {
        command.env("MIOT_CLIENT_BROKER_CREDENTIALS", &words);
        command.env("MIOT_SERVER_BROKER_CREDENTIALS", &words_of_server);
        command
    };
    let mut client = started(&mut configured(site.client_command(&broker.url())), &site.dir());
    let mut server = ready(&mut configured(server_behind(&broker.url(), &site.trace)));
    let mut both = |text: &str| [&mut client, &mut server].map(|daemon| until_logged(daemon, text));
    site.write(100);
    both("it refuses user, password, token or key");
    let doctor = run(Command::new(&built().miot)
        .args(["doctor", "--dir"])
        .arg(site.dir())
        .env("MIOT_CLIENT_TRANSPORT", broker.url())
        .env("MIOT_CLIENT_BROKER_CREDENTIALS", &words));
    assert!(doctor.code() == 1 && doctor.stdout.contains("it refuses user"), "{}", doctor.stdout);

    fs::write(&words, format!("user = node\npassword = {secret}\n")).unwrap();
    fs::copy(&words, &words_of_server).unwrap();
    both("has no JetStream");
    broker.reconfigure(
        &(store.clone() + &users(", permissions: { publish: { deny: [\"$JS.API.STREAM.>\"] } }")),
    );
    both("Permissions Violation");

    broker.reconfigure(&store);
    let other = r#"{"name":"MIOT","subjects":["MIOT.up.*"],"retention":"limits","storage":"file"}"#;
    let made = broker.request("STREAM.CREATE.MIOT", other);
    broker.reconfigure(&(store.clone() + &users("")));
    assert!(made.contains("\"did_create\":true"), "{made}");
    both("the stream `MIOT` of the broker has another configuration: expected retention by work queue");
    broker.reconfigure(&store);
    let removed = broker.request("STREAM.DELETE.MIOT", "");
    assert!(removed.contains("\"success\":true"), "{removed}");
    // The log-server as the first user, the node with the permissions of the guide.
    let token = "n1%2Eexample";
    let guide = format!(
        "authorization {{ users: [ {{ user: server, password: \"{secret}\" }}, {{ user: node, password: \"{secret}\", \
         permissions: {{ publish: [\"MIOT.up.{token}\", \"MIOT.now.{token}\", \"MIOT.knock.{token}\", \
         \"MIOT.claim\", \"$JS.API.STREAM.INFO.MIOT\"], \
         subscribe: [\"MIOT.down.{token}\", \"MIOT.server\", \"MIOT.inbox.{token}.>\"] }} }} ] }}\n"
    );
    fs::write(&words_of_server, format!("user = server\npassword = {secret}\n")).unwrap();
    broker.reconfigure(&(store + &guide));
    until("the events are in the trace", || site.writes() == 100);

    let second = configured(server_behind(&broker.url(), &site.place.join("second")));
    let mut second = ready(&mut { second });
    until_logged(&mut second, "reads the stream `MIOT`: stop one of them");
    site.write(100);
    until("the first log-server continues", || site.writes() == 200);
    let printed = client.end() + &second.end() + &site.end(server);
    assert!(!printed.contains(secret), "{printed}");
}

/// Returns a token as `nsc` makes it: claims about a key, signed with another one (NATS JWT,
/// version 2).
fn signed(by: &KeyPair, of: &KeyPair, name: &str, claims: &Value) -> String {
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let claims = json!({
        "jti": name, "iat": 0, "iss": by.public_key(), "sub": of.public_key(), "name": name, "nats": claims,
    });
    let encoded = [header, claims].map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes()));
    let text = encoded.join(".");
    let signature = by.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// Configuration of a server with an operator, an account and a user, and the user's `.creds` file.
fn operator_mode() -> (String, String) {
    let key = |kind, number| KeyPair::new_from_raw(kind, [number; 32]).unwrap();
    let (operator, user) = (key(KeyPairType::Operator, 1), key(KeyPairType::User, 2));
    let (system, account) = (key(KeyPairType::Account, 3), key(KeyPairType::Account, 4));
    let unlimited = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let of_operator = signed(&operator, &operator, "operator", &json!({"type": "operator", "version": 2}));
    let accounts = [(&system, "system"), (&account, "site")].map(|(key, name)| {
        // JetStream is not for the system account.
        let limits = if name == "system" { json!({"subs": -1, "conn": -1}) } else { unlimited.clone() };
        let claims = json!({"type": "account", "version": 2, "limits": limits});
        format!("{}: {:?}", key.public_key(), signed(&operator, key, name, &claims))
    });
    let config = format!(
        "operator: {of_operator:?}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {} }}\n",
        system.public_key(),
        accounts.join(", ")
    );
    let claims =
        json!({"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1});
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        signed(&account, &user, "node", &claims),
        user.seed().unwrap()
    );
    (config, creds)
}

#[test]
fn tokens_and_files_of_nsc_are_used() {
    let (operator, creds) = operator_mode();
    let token =
        ("authorization { token: a-secret-token }\n".to_owned(), "token = a-secret-token\n".to_owned());
    for (name, (config, words)) in [("token", token), ("creds", (operator, creds))] {
        let site = Site::new(&format!("broker-{name}"));
        let store = site.place.join("jetstream");
        let broker = Broker::without_jetstream(
            &site.place,
            &format!("jetstream {{ store_dir: {store:?} }}\n{config}"),
        );
        let file = site.place.join("credentials");
        fs::write(&file, "user = node\npassword = wrong\n").unwrap();
        let configured = |mut command: Command| {
            command.env("MIOT_CLIENT_BROKER_CREDENTIALS", &file);
            command.env("MIOT_SERVER_BROKER_CREDENTIALS", &file);
            command
        };
        let mut client = started(&mut configured(site.client_command(&broker.url())), &site.dir());
        until_logged(&mut client, "it refuses user, password, token or key");
        fs::write(&file, &words).unwrap();
        let server = ready(&mut configured(server_behind(&broker.url(), &site.trace)));
        site.write(1000);
        until("the events are in the trace", || site.writes() == 1000);
        let printed = client.end() + &site.end(server);
        for secret in words.lines().filter(|line| line.len() > 12 && !line.starts_with('-')) {
            assert!(!printed.contains(secret.trim_start_matches("token = ")), "{name}: {printed}");
        }
    }
}

fn pki(dir: &Path, words: &[&str]) {
    let _ = run(Command::new(&built().miot).arg("pki").arg(words[0]).arg(dir).args(&words[1..])).success();
}

#[test]
fn tls_certificates_and_keys_are_used() {
    let site = Site::new("broker-tls");
    let papers = site.place.join("pki");
    pki(&papers, &["init"]);
    pki(&papers, &["server", "--name", "localhost"]);
    pki(&papers, &["node", "n1.example"]);
    let file = |name: &str| papers.join(name).display().to_string();
    let [server_pem, server_key, authority] =
        ["server/localhost.pem", "server/localhost.key", "ca.pem"].map(file);
    let [own, key] = ["node/n1.example.pem", "node/n1.example.key"].map(file);
    let tls = format!(
        "jetstream {{ store_dir: {:?} }}\n\
         tls {{ cert_file: {server_pem:?}, key_file: {server_key:?}, ca_file: {authority:?}, verify: true }}\n\
         authorization {{ users: [ {{ nkey: {} }} ] }}\n",
        site.place.join("jetstream"),
        NKEY.1
    );
    let broker = Broker::without_jetstream(&site.place, &tls);
    let url = format!("tls://localhost:{}", broker.port);
    let seed = site.place.join("seed");
    fs::write(&seed, NKEY.0).unwrap();
    let configured = |mut command: Command| {
        for side in ["CLIENT", "SERVER"] {
            command.env(format!("MIOT_{side}_BROKER_CREDENTIALS"), &seed);
            command.env(format!("MIOT_{side}_BROKER_AUTHORITY"), &authority);
            command.env(format!("MIOT_{side}_BROKER_CERTIFICATE"), &own);
            command.env(format!("MIOT_{side}_BROKER_KEY"), &key);
        }
        command
    };
    // Another authority: the broker is not trusted.
    pki(&site.place.join("other"), &["init"]);
    let elsewhere = site.shared.path().join("deceived");
    let mut deceived = configured(client_before(&url, "n1.example", &elsewhere));
    deceived.env("MIOT_CLIENT_BROKER_AUTHORITY", site.place.join("other/ca.pem"));
    let mut deceived = started(&mut deceived, &elsewhere);
    until_logged(&mut deceived, "cannot connect to the broker");
    deceived.end();

    let mut server = configured(server_behind(&url, &site.trace));
    let mut server = ready(&mut server);
    let client = started(&mut configured(site.client_command(&url)), &site.dir());
    site.write(1000);
    until("the events are in the trace", || site.writes() == 1000);
    until_logged(&mut server, "node connected");
    let mut doctor = configured(Command::new(&built().miot));
    doctor.args(["doctor", "--dir"]).arg(site.dir()).env("MIOT_CLIENT_TRANSPORT", &url);
    let doctor = run(doctor.env("MIOT_CLIENT_NODE", "n1.example"));
    for text in ["answers and has JetStream", "reads the stream"] {
        assert!(doctor.stdout.contains(text), "{text}: {}", doctor.stdout);
    }
    client.end();
    let _ = site.end(server);
}

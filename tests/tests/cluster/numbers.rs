//! Metrics, alerts and dashboard values of the cluster.

use crate::site::{NODES, Site};
use miot_tests::built::root;
use miot_tests::process::until;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Parses values by name and labels, in the exposition format.
fn parse(text: &str) -> HashMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

fn names(series: &HashMap<String, f64>) -> BTreeSet<String> {
    series.keys().map(|series| series.split('{').next().unwrap().to_owned()).collect()
}

/// Names of all metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let metric = |word: &&str| {
        ["miot_server_", "miot_node_", "miot_client_"].iter().any(|prefix| word.starts_with(prefix))
    };
    text.split(word).filter(metric).map(str::to_owned).collect()
}

/// Runs `promtool check metrics`: names, units and help follow Prometheus's conventions.
fn lint(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap_or_else(|e| panic!("promtool (tests/setup.sh): {e}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.is_empty(), "{said}");
}

/// Checks that metrics and alerts report a lost node.
pub(crate) fn lost(site: &Site, node: &str) {
    let (status, text) = site.get(Some("reader/alice"), "/metrics");
    assert_eq!(status, 200);
    let series = parse(&text);
    assert_eq!(series[&format!("miot_node_connected{{node=\"{node}\"}}")], 0.0);
    assert_eq!(series["miot_server_nodes_connected"], 3.0);
    assert!(
        !series.contains_key(&format!("miot_node_processes{{node=\"{node}\"}}")),
        "a lost node reports nothing"
    );
    assert_eq!(site.get_from(node, "/readyz").0, 503);
    assert_eq!(site.get_from(node, "/healthz").0, 200);
}

/// Checks a healthy cluster: health, permissions, names, and that status, metrics and documents
/// agree.
pub(crate) fn agree(site: &Site) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(site.get(None, path).0, 200, "{path}");
        assert_eq!(site.get_from("n1", path).0, 200, "{path} of a node");
    }
    // Node names are only for clients that prove that they may read.
    let (status, text) = site.get(None, "/api/status");
    assert!(status == 403 && text.contains("miot pki reader"), "{status} {text}");
    for (who, expected) in [("reader/alice", 200), ("operator/bob", 200), ("node/n1", 403)] {
        assert_eq!(site.get(Some(who), "/api/status").0, expected, "{who}");
    }
    assert_eq!(site.get(Some("node/n1"), "/metrics").0, 403);
    let (_, text) = site.get(Some("operator/bob"), "/api/status");
    let status: Value = serde_json::from_str(&text).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.iter().map(|node| node["node"].as_str().unwrap()).collect::<Vec<_>>(), NODES);

    let (_, server) = site.get(Some("reader/alice"), "/metrics");
    let (_, client) = site.get_from("n1", "/metrics");
    [&server, &client].into_iter().for_each(|text| lint(text));
    let (server, client) = (parse(&server), parse(&client));
    for node in nodes {
        let name = node["node"].as_str().unwrap();
        let told = |metric: &str| server[&format!("{metric}{{node=\"{name}\"}}")];
        assert_eq!(told("miot_node_connected"), 1.0);
        assert_eq!(told("miot_node_recording"), 1.0);
        assert!(told("miot_node_events_received_total") >= node["events"].as_f64().unwrap());
        assert_eq!(told("miot_node_processes"), node["report"]["processes"].as_f64().unwrap());
        for place in ["lane_full", "spool_full", "spool_damaged", "nested", "no_lane", "abi_violation"] {
            let lost = server[&format!("miot_node_lost_events_total{{node=\"{name}\",place=\"{place}\"}}")];
            assert_eq!(lost, 0.0, "{place} of {name}");
        }
    }

    let known: BTreeSet<String> = names(&server).union(&names(&client)).cloned().collect();
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    for path in ["deploy/prometheus/miot.rules.yml", "deploy/grafana/miot.json"] {
        let unknown: Vec<_> = named(&read(path)).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{path} names metrics that no daemon has: {unknown:?}");
    }
    assert_eq!(named(&read("docs/guide/monitoring.md")), known, "docs/guide/monitoring.md");
}

/// `miot top` and the page show readers all nodes and jobs, and as many events as the trace has.
pub(crate) fn shown(site: &Site) {
    let names = |group: &Value| -> BTreeSet<String> {
        let rows = group["rows"].as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    let of_all = |told: &Value| {
        assert_eq!(names(&told["nodes"]), NODES.map(str::to_owned).into());
        assert_eq!(names(&told["jobs"]), ["alpha", "beta"].map(str::to_owned).into());
    };
    until("all events are counted", || site.top()["events"] == site.so_far().len());
    of_all(&site.top());

    let (status, page) = site.get(Some("reader/alice"), "/");
    assert!(status == 200 && page.contains("<title>MIOT</title>"), "{status} {page}");
    let watch = "/api/watch?window=all&top=10&step=1&steps=10";
    let (status, text) = site.get(Some("reader/alice"), watch);
    assert_eq!(status, 200, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    of_all(&told["snapshot"]);
    let connected =
        told["status"]["nodes"].as_array().unwrap().iter().filter(|node| node["connected"] == true);
    assert_eq!(connected.count(), NODES.len());
    for who in [None, Some("node/n1")] {
        assert_eq!(site.get(who, watch).0, 403, "{who:?}");
    }
}

#[test]
fn alert_rules_fire_as_documented() {
    let folder = root().join("deploy/prometheus");
    for words in [["check", "rules", "miot.rules.yml"], ["test", "rules", "miot.rules.test.yml"]] {
        let mut promtool = Command::new("promtool");
        let ended = promtool.args(words).current_dir(&folder).output();
        let ended = ended.unwrap_or_else(|e| panic!("promtool (tests/setup.sh): {e}"));
        let said =
            String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
    }
}

//! A cluster of network namespaces: a log-server and four log-clients with certificates, and
//! programs on each. It is controlled and observed from the log-server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod numbers;
mod pace;
mod screens;
mod site;
mod truth;

use miot_tests::process::until;
use miot_tests::trace::PrintedEvent;
use serde_json::Value;
use site::{NODES, Site};
use std::collections::BTreeSet;

/// Offsets of the writes of one program.
fn written(rows: &[PrintedEvent], node: &str, pid: u32) -> BTreeSet<i64> {
    let of = rows.iter().filter(|row| row.node == node && row.pid == pid && row.op == "pwrite");
    of.map(|row| row.offset.unwrap()).collect()
}

/// Parses the answers of nodes, by node name.
fn said(text: &str) -> Vec<(String, String)> {
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {text}")));
    let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.map(|row| (word(&row, "node"), word(&row, "outcome"))).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario from start to end")]
fn cluster_is_controlled_and_a_lost_node_catches_up() {
    let Some(mut site) = Site::start("steered") else { return };
    // On each node a program of job alpha and one of job beta.
    let mut alphas: Vec<_> = NODES.iter().map(|node| site.program(node, "alpha")).collect();
    let mut betas: Vec<_> = NODES.iter().map(|node| site.program(node, "beta")).collect();
    let ids = |programs: &[miot_tests::steered::Steered]| programs.iter().map(|p| p.id()).collect::<Vec<_>>();
    let (alpha_ids, beta_ids) = (ids(&alphas), ids(&betas));
    // Ten writes each, at the next ten offsets.
    let mut round = || {
        alphas.iter_mut().chain(&mut betas).for_each(|program| {
            let _ = program.tell("pwrite 10");
        });
    };
    let everybody: Vec<(String, String)> = NODES.iter().map(|node| ((*node).into(), "done".into())).collect();

    until("all nodes report their two processes", || {
        let status = site.status();
        let nodes = status["nodes"].as_array().unwrap();
        nodes.len() == 4 && nodes.iter().all(|node| node["report"]["processes"] == 2)
    });
    truth::clocks(&site);
    round(); // Round 0 is recorded everywhere.
    assert_eq!(said(&site.steer(&["off"])), everybody);
    round(); // Round 1 is recorded nowhere.
    assert_eq!(said(&site.steer(&["--node", "n2", "on"])), [("n2".into(), "done".into())]);
    round(); // Round 2 is recorded on n2.
    assert_eq!(said(&site.steer(&["--job", "alpha", "on"])), everybody);
    round(); // Round 3 is recorded on n2, and for alpha everywhere.
    let beta3 = beta_ids[2].to_string();
    assert_eq!(said(&site.steer(&["--node", "n3", "--pid", &beta3, "on"])), [("n3".into(), "done".into())]);
    // A filter of one job: its other operations are left out as if recording was off for them.
    assert_eq!(said(&site.steer(&["--node", "n1", "--job", "alpha", "set", "--ops", "read"])).len(), 1);
    // A program that starts later belongs to the job as well.
    let mut late = site.program("n4", "alpha");
    let late_id = late.id();
    let _ = late.tell("pwrite 10");
    round(); // Round 4 is recorded on n2, for alpha except on n1, and for beta on n3.
    let (code, refused) = site.ctl("bob", &["--node", "n1", "--pid", "999999", "off"]);
    assert_eq!(code, 1);
    assert!(refused.contains("no traced process"), "{refused}");

    let status = site.status();
    let orders = status["orders"].as_array().unwrap();
    assert_eq!(orders.len(), 4, "{orders:?}");
    let of = |status: &Value, node: &str| {
        // A log-server that has just started does not know the node yet.
        let known = status["nodes"].as_array().unwrap().iter().find(|known| known["node"] == node);
        known.cloned().unwrap_or_default()
    };
    until("n3 reports the settings", || {
        let n3 = of(&site.status(), "n3")["report"].clone();
        n3["settings"]["enabled"] == false && n3["exceptions"].as_array().unwrap().len() == 2
    });

    // A reader may look and not control. A node may do neither.
    let (code, _) = site.ctl("alice", &["status"]);
    assert_eq!(code, 0);
    for words in [&["on"][..], &["--node", "n1", "off"], &["--job", "alpha", "reset"], &["snapshot"]] {
        let (code, refused) = site.ctl("alice", words);
        assert!(code == 1 && refused.contains("miot pki operator"), "{words:?}: {code} {refused}");
    }
    let (code, refused) = site.ctl("bob", &["--job", "alpha", "snapshot"]);
    assert!(code == 1 && refused.contains("leave --job and --pid out"), "{code} {refused}");
    let (code, refused) = site.ctl("n1", &["status"]);
    assert!(code == 1 && refused.contains("node"), "{code} {refused}");

    let mut screens = screens::Screens::open(&site);
    screens.connected(4, None);
    screens.numbers(&site);
    // n4 is cut off. Commands given meanwhile are delivered when it is back.
    site.link("n4", false);
    until("the log-server misses n4", || of(&site.status(), "n4")["connected"] == false);
    let outcomes = said(&site.steer(&["reset"]));
    assert_eq!(outcomes[3], ("n4".into(), "absent".into()));
    assert!(outcomes[..3].iter().all(|(_, outcome)| outcome == "done"), "{outcomes:?}");
    round(); // Round 5 is recorded everywhere. n4 does not know yet: only alpha there.
    numbers::lost(&site, "n4");
    screens.connected(3, Some("n4"));
    truth::spool(&site, "n4", &mut late, 500);
    site.link("n4", true);
    until("n4 is back and applies the commands", || {
        let n4 = of(&site.status(), "n4");
        n4["connected"] == true && n4["report"]["settings"]["enabled"] == true && n4["connects"] == 2
    });
    round(); // Round 6 is recorded everywhere.
    numbers::agree(&site);
    numbers::shown(&site);
    screens.connected(4, None);
    screens.numbers(&site);
    screens.close(&site);
    truth::lag(&site, "n3");

    // Commands survive the log-server: n2's log-client restarts and receives them.
    assert_eq!(said(&site.steer(&["--node", "n2", "off"])), [("n2".into(), "done".into())]);
    let remembered = site.status()["orders"].clone();
    site.kill_server_and("n2");
    until("all are back, and n2 applies the commands", || {
        let status = site.status();
        let recording = |node: &str| of(&status, node)["report"]["settings"]["enabled"].as_bool();
        NODES.iter().all(|node| recording(node) == Some(*node != "n2"))
    });
    assert_eq!(site.status()["orders"], remembered);
    round(); // Round 7 is recorded everywhere, on n2 for alpha alone.

    // A flight recorder whose snapshot is requested through the log-server.
    let n3 = |words: &[&str]| said(&site.steer(&[&["--node", "n3"], words].concat()));
    assert_eq!(n3(&["set", "--flight-recorder", "on"]), [("n3".into(), "done".into())]);
    round(); // Round 8 is recorded in the same places. n3 keeps it in memory.
    let has_round_8 = |node: &str, pid| written(&site.so_far(), node, pid).contains(&80);
    until("n4's writes are in the trace", || has_round_8("n4", beta_ids[3]));
    assert!(!has_round_8("n3", beta_ids[2]), "no snapshot was requested");
    assert_eq!(n3(&["snapshot"]), [("n3".into(), "done".into())]);
    until("n3's writes are in the trace", || has_round_8("n3", beta_ids[2]));
    // The same request to all nodes at once.
    assert_eq!(said(&site.steer(&["set", "--flight-recorder", "on"])), everybody);
    round(); // Round 9 is recorded in the same places. All nodes keep it in memory.
    let with_round_9 = || {
        let rows = site.so_far();
        let has = |at: &usize| written(&rows, NODES[*at], beta_ids[*at]).contains(&90);
        // Recording is off on n2.
        [0, 2, 3].iter().filter(|at| has(at)).count()
    };
    assert_eq!(with_round_9(), 0, "no snapshot was requested");
    assert_eq!(said(&site.steer(&["snapshot"])), everybody);
    until("the writes of all nodes are in the trace", || with_round_9() == 3);

    for program in alphas.into_iter().chain(betas).chain([late]) {
        program.end();
    }
    let rows = site.end();
    let offsets =
        |rounds: &[i64]| -> BTreeSet<i64> { rounds.iter().flat_map(|r| r * 10..r * 10 + 10).collect() };
    let (all, job) = ([0, 5, 6, 7, 8, 9], [0, 3, 4, 5, 6, 7, 8, 9]);
    let expected = [
        // n1: from round 4 on, its alpha records only reads, and no reset of the node changes that.
        (&[0, 3][..], &all[..]),
        // n2: the job stays on while the node is off.
        (&[0, 2, 3, 4, 5, 6, 7, 8, 9][..], &[0, 2, 3, 4, 5, 6][..]),
        (&job[..], &[0, 4, 5, 6, 7, 8, 9][..]),
        (&job[..], &[0, 6, 7, 8, 9][..]),
    ];
    for (at, node) in NODES.iter().enumerate() {
        let (alpha, beta) = expected[at];
        assert_eq!(written(&rows, node, alpha_ids[at]), offsets(alpha), "alpha on {node}");
        assert_eq!(written(&rows, node, beta_ids[at]), offsets(beta), "beta on {node}");
    }
    assert_eq!(written(&rows, "n4", late_id), (0..510).collect(), "the program that started later");
}

//! Several log-servers: each node sends to one of them, fails over, returns, and every event is in
//! one of their traces, once. Readers merge the traces into one order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::judge::Rules;
use miot_tests::process::{Background, run, until};
use miot_tests::random::Random;
use miot_tests::set_deployment::{SetDeployment, server_of_set};
use miot_tests::tmux::Terminal;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Number of nodes.
const NODES: usize = 5;

fn deployment(name: &str, servers: usize, fail_over_after: &str) -> SetDeployment {
    let mut set = SetDeployment::new(name, servers);
    let addresses = set.addresses();
    for node in set.names(NODES) {
        set.add_node(&node, &addresses, fail_over_after);
    }
    set
}

/// Number of events of each trace, and of the set.
fn events(set: &SetDeployment) -> (Vec<u64>, u64) {
    let json = set.miot(&["fsck", &set.traces(), "--format", "json"]).success().stdout;
    let report: Value = serde_json::from_str(&json).unwrap();
    let own = |trace: &Value| trace[1]["events"].as_u64().unwrap();
    (report["traces"].as_array().unwrap().iter().map(own).collect(), report["events"].as_u64().unwrap())
}

/// Checks that all readers give the same events of a set, in order.
fn readers_agree(set: &SetDeployment) {
    let (own, all) = events(set);
    assert_eq!(own.iter().sum::<u64>(), all);
    let printed = set.miot(&["cat", &set.traces(), "--format", "csv"]).success().stdout;
    let mut lines = printed.lines();
    let headers: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| headers.iter().position(|header| *header == name).unwrap();
    let [time, stream, seq] = ["time", "stream", "seq"].map(column);
    let (mut keys, mut times) = (BTreeSet::new(), Vec::new());
    for line in lines {
        let row: Vec<&str> = line.split(',').collect();
        times.push(row[time].to_owned());
        assert!(keys.insert((row[stream].to_owned(), row[seq].to_owned())), "{line} is there twice");
    }
    assert_eq!(keys.len() as u64, all);
    let late = set.miot(&["fsck", &set.traces(), "--format", "json"]).success().stdout;
    let late: Value = serde_json::from_str(&late).unwrap();
    let late: u64 = late["traces"].as_array().unwrap().iter().map(|t| t[1]["late"].as_u64().unwrap()).sum();
    if late == 0 {
        assert!(times.is_sorted(), "rows are in order of time");
    }
    let stat = set.miot(&["stat", &set.traces(), "--format", "json"]).success().stdout;
    let stat: Value = serde_json::from_str(&stat).unwrap();
    assert_eq!(stat["totals"]["events"].as_u64().or(stat["events"].as_u64()), Some(all), "{stat}");
}

#[test]
fn every_event_is_in_one_of_three_traces_once() {
    let mut random = Random::new("sets-steady");
    let mut set = deployment("sets-steady", 3, "0s");
    set.work(Duration::from_secs(4), 2, &mut random);
    for server in 0..3 {
        set.servers[server].daemon.kill();
        set.work(Duration::from_millis(500), 2, &mut random);
        set.servers[server].daemon.restart();
        set.work(Duration::from_millis(700), 2, &mut random);
    }
    let verdict = set.end(Rules::LANES, |set| {
        readers_agree(set);
        let (own, _) = events(set);
        assert!(own.iter().all(|events| *events > 0), "nodes are distributed: {own:?}");
    });
    assert!(verdict.delivered > 0);
}

#[test]
fn top_shows_a_set_of_log_servers_and_of_traces() {
    let mut random = Random::new("sets-top");
    let mut set = deployment("sets-top", 2, "0s");
    set.work(Duration::from_secs(2), 2, &mut random);
    let terminal = Terminal::new(120, 30);
    let miot = built().miot.display();
    terminal.line(&format!("{miot} top {} --window all --view nodes", set.addresses()));
    for node in set.names(NODES) {
        let _ = terminal.shows(&node);
    }
    assert!(terminal.screen()[0].contains(&format!("{NODES} of {NODES} nodes connected")));
    set.servers[1].daemon.kill();
    let away = format!("without {}: ", set.servers[1].address);
    let _ = terminal.shows(&away);
    set.servers[1].daemon.restart();
    until("the other log-server is back", || {
        let screen = terminal.screen().concat();
        !screen.contains("without") && screen.contains(&format!("{NODES} of {NODES} nodes connected"))
    });
    terminal.keys(&["q"]);
    let verdict = set.end(Rules::LANES, |set| {
        let top = set.miot(&["top", &set.traces(), "--format", "json"]).success().stdout;
        let top: Value = serde_json::from_str(&top).unwrap();
        assert_eq!(top["events"].as_u64(), Some(events(set).1));
        let nodes = top["nodes"]["rows"].as_array().unwrap();
        assert_eq!(nodes.len(), NODES);
        terminal.line(&format!("{miot} top {} --window all --view nodes --speed 1000x", set.traces()));
        until("the end of both traces is shown", || terminal.screen()[0].ends_with("Z end"));
        // The table of the last screen is that of the whole set, which is printed without a screen.
        let table = set.miot(&["top", &set.traces(), "--once", "--view", "nodes"]).success().stdout;
        for node in nodes {
            let name = node["name"].as_str().unwrap();
            let row = |text: &str| {
                let line = text.lines().find(|line| line.contains(name)).map(str::to_owned);
                line.unwrap_or_else(|| panic!("{name} is not in {text}"))
            };
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let (shown, printed) = (words(&row(&terminal.screen().join("\n"))), words(&row(&table)));
            assert!(printed.iter().any(|word| word.contains(name)));
            let unlike = shown.iter().find(|word| !printed.contains(word));
            assert_eq!(unlike, None, "{shown:?}\n{printed:?}");
        }
        terminal.keys(&["q"]);
    });
    assert!(verdict.delivered > 0);
}

/// Waits until all nodes have changed their log-server.
fn until_moved(set: &mut SetDeployment, random: &mut Random, from: usize) {
    let gone = set.servers[from].address.clone();
    until("all nodes have left the log-server", || {
        set.step(2, random);
        (0..set.nodes.len()).all(|node| current_server(set, node) != gone)
    });
}

/// Log-server that gets the new records of a node, by its spool.
fn current_server(set: &SetDeployment, node: usize) -> String {
    let spool = set.nodes[node].dir.join("spool");
    let last = set.spools(node).into_iter().rfind(|name| name.len() == 6);
    last.and_then(|name| fs::read_to_string(spool.join(name).join("server")).ok())
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[test]
fn nodes_fail_over_and_return_without_loss() {
    let mut random = Random::new("sets-fail-over");
    let mut set = deployment("sets-fail-over", 2, "1s");
    set.work(Duration::from_secs(2), 2, &mut random);
    for gone in [0, 1] {
        set.servers[gone].daemon.kill();
        until_moved(&mut set, &mut random, gone);
        set.work(Duration::from_secs(1), 2, &mut random);
        set.servers[gone].daemon.restart();
        // Nodes that prefer it return.
        let address = set.servers[gone].address.clone();
        let prefer = |name: &str, set: &SetDeployment| {
            let servers: Vec<String> = set.servers.iter().map(|server| server.address.clone()).collect();
            miot_log_client::servers::preference(name, &servers)[0] == address
        };
        until("nodes have returned", || {
            set.step(2, &mut random);
            (0..set.nodes.len())
                .filter(|node| prefer(&set.nodes[*node].name, &set))
                .all(|node| current_server(&set, node) == address)
        });
        set.work(Duration::from_secs(1), 2, &mut random);
    }
    set.end(Rules::LANES, |set| {
        readers_agree(set);
        let json = set.miot(&["fsck", &set.traces(), "--format", "json"]).success().stdout;
        let report: Value = serde_json::from_str(&json).unwrap();
        assert!(report["moved"].as_u64().unwrap() > 0, "streams have moved");
    });
}

/// Kills log-servers and log-clients while nodes fail over and return.
#[test]
fn events_are_exact_after_fifty_kills() {
    let mut random = Random::new("sets-kills");
    let mut set = deployment("sets-kills", 3, "1s");
    let mut kills = 0;
    while kills < 50 {
        let victim = random.below(8) as usize;
        if victim < 3 {
            set.servers[victim].daemon.kill();
            set.work(Duration::from_millis(random.below(2500)), 2, &mut random);
            set.servers[victim].daemon.restart();
        } else {
            let node = victim - 3;
            set.nodes[node].client.kill();
            set.work(Duration::from_millis(random.below(200)), 2, &mut random);
            set.nodes[node].client.restart();
        }
        kills += 1;
        set.work(Duration::from_millis(random.below(300)), 2, &mut random);
    }
    set.end(Rules { lost_at: &["lane_full", "no_lane"], served: false }, readers_agree);
}

#[test]
fn added_and_removed_log_servers_move_their_share() {
    let mut random = Random::new("sets-members");
    let mut set = deployment("sets-members", 2, "0s");
    let two = set.addresses();
    set.work(Duration::from_secs(2), 2, &mut random);
    set.add_server();
    let three = set.addresses();
    for node in 0..NODES {
        set.reconfigure(node, &three, "0s");
    }
    let of = |set: &SetDeployment, servers: &str, node: usize| {
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        miot_log_client::servers::preference(&set.nodes[node].name, &servers)[0].clone()
    };
    for servers in [&three, &two] {
        if servers == &two {
            for node in 0..NODES {
                set.reconfigure(node, &two, "0s");
            }
        }
        until("each node is at its log-server", || {
            set.step(2, &mut random);
            (0..NODES).all(|node| current_server(&set, node) == of(&set, servers, node))
        });
        set.work(Duration::from_secs(1), 2, &mut random);
    }
    set.end(Rules::LANES, readers_agree);
}

#[test]
fn set_without_a_log_server_names_what_is_missing() {
    let mut random = Random::new("sets-gone");
    let mut set = deployment("sets-gone", 2, "1s");
    set.work(Duration::from_secs(2), 2, &mut random);
    set.servers[0].daemon.kill();
    until_moved(&mut set, &mut random, 0);
    set.work(Duration::from_secs(1), 2, &mut random);
    // Its disk is lost.
    let lost = set.servers[0].trace.with_extension("lost");
    fs::rename(&set.servers[0].trace, &lost).unwrap();
    let left: usize = (0..NODES).map(|node| set.spools(node).len()).sum();
    assert!(left >= NODES, "spools name what waits");
    for node in &mut set.nodes {
        node.producers.clear(&mut set.asked);
        node.client.kill();
    }
    set.servers[1].daemon.stop_now();
    let ended = set.miot(&["fsck", &set.traces(), "--format", "json"]);
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(!report["missing"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!(report["problems"].as_array().unwrap().len(), 0, "{report}");
    for command in [&["cat", &set.traces()][..], &["top", &set.traces(), "--once"]] {
        let read = set.miot(command);
        assert_eq!(read.code(), 4, "{}", read.stderr);
        let is_named = read.stderr.contains("is missing in the result");
        assert!(is_named && !read.stdout.is_empty(), "{}", read.stderr);
    }
    // With the disk, nothing but what waits in spools is missing.
    fs::rename(&lost, &set.servers[0].trace).unwrap();
    set.servers[0].daemon.restart();
    set.end(Rules { lost_at: &["lane_full", "no_lane"], served: false }, readers_agree);
}

#[test]
fn compacted_set_is_one_good_trace_also_after_kills() {
    let mut random = Random::new("sets-compact");
    let mut set = deployment("sets-compact", 3, "0s");
    set.work(Duration::from_secs(3), 2, &mut random);
    set.end(Rules::LANES, |set| {
        let out = set.place().join("all");
        let command = || {
            let mut compact = Command::new(&miot_tests::built::built().miot);
            compact.args(["compact", &set.traces(), "-o"]).arg(&out);
            compact
        };
        for pause in [0, 20, 40, 80, 160] {
            let killed = Background::start(&mut command());
            std::thread::sleep(Duration::from_millis(pause));
            let _ = killed.stop(Signal::KILL);
        }
        if !out.exists() {
            let _ = run(&mut command()).success();
        }
        assert!(!out.with_extension("tmp").exists());
        let _ = run(&mut command()).code();
        let text = |dir: &str| set.miot(&["cat", dir, "--format", "csv"]).success().stdout;
        assert_eq!(text(&out.display().to_string()), text(&set.traces()));
        let _ = set.miot(&["fsck", &out.display().to_string()]).success();
        assert!(run(&mut command()).stderr.contains("it exists"));
    });
}

#[test]
fn members_of_a_bad_set_are_refused_with_the_reason() {
    let place = miot_tests::test_dir::fresh("sets-bad");
    let port = miot_tests::daemons::free_port;
    let addresses: Vec<String> = (0..3).map(|_| format!("127.0.0.1:{}", port())).collect();
    let trace = |name: &str| place.join(name);
    let start = |index: usize, name: &str, partition, cluster| {
        let mut server = server_of_set(&addresses[index], &trace(name), partition, cluster);
        miot_tests::daemons::ready(server.env("MIOT_SERVER_LOG", "info"))
    };
    let servers = [start(0, "a", 0, "test"), start(1, "b", 0, "test"), start(2, "c", 2, "other")];
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    for (set, reason) in [([0, 1], "both have partition 0"), ([0, 2], "their clusters differ")] {
        let names = set.map(|server| addresses[server].clone()).join(",");
        let client = run(Command::new(&miot_tests::built::built().log_client)
            .args(["--server", &names, "--node", "n"])
            .arg("--dir")
            .arg(shared.path().join("miot")));
        assert_eq!(client.code(), 3, "{}", client.stderr);
        assert!(client.stderr.contains(reason) || client.stdout.contains(reason), "{}", client.stderr);
        let miot = |words: &[&str]| run(Command::new(&miot_tests::built::built().miot).args(words));
        for words in [vec!["ctl", "--server", &names, "status"], vec!["tail", "-f", &names]] {
            let ended = miot(&words);
            assert_eq!(ended.code(), 1, "{}", ended.stderr);
            assert!(ended.stderr.contains(reason), "{words:?}: {}", ended.stderr);
        }
    }
    for server in servers {
        server.end();
    }
    let traces = |one: &str, two: &str| format!("{},{}", trace(one).display(), trace(two).display());
    for (set, reason) in [(traces("a", "b"), "both are partition 0"), (traces("a", "c"), "cluster `other`")] {
        for command in ["cat", "stat", "fsck", "tail"] {
            let ended = run(Command::new(&miot_tests::built::built().miot).args([command, &set]));
            assert_eq!(ended.code(), 1, "{}", ended.stderr);
            assert!(ended.stderr.contains(reason), "{command}: {}", ended.stderr);
        }
    }
}

#[test]
fn tail_of_a_set_is_in_order_and_complete() {
    let mut random = Random::new("sets-tail");
    let mut set = deployment("sets-tail", 2, "0s");
    let mut tail = Background::start(Command::new(&miot_tests::built::built().miot).args([
        "tail",
        "-f",
        &set.addresses(),
        "--format",
        "csv",
    ]));
    set.work(Duration::from_secs(3), 2, &mut random);
    assert!(tail.running(), "{}", tail.printed());
    let status =
        set.miot(&["ctl", "--server", &set.addresses(), "status", "--format", "json"]).success().stdout;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert!(status["servers"][1]["status"]["server"]["final_time"].is_i64(), "{status}");
    assert_eq!(status["servers"][1]["partition"], 1);
    let (_, printed) = tail.stop(Signal::KILL);
    let times: Vec<&str> = printed.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    assert!(times.len() > 100, "{printed}");
    assert!(times[..times.len() - 1].is_sorted());
    set.end(Rules::LANES, readers_agree);
}

#[test]
fn clock_of_another_hour_is_an_error() {
    let place = miot_tests::test_dir::fresh("sets-clock");
    let addresses = [0, 1].map(|_| format!("127.0.0.1:{}", miot_tests::daemons::free_port()));
    let traces = ["a", "b"].map(|name| place.join(name));
    let servers = [0, 1].map(|index| {
        let mut server = server_of_set(&addresses[index], &traces[index], index, "test");
        server.env("MIOT_SERVER_LOG", "info");
        if index == 1 {
            server.env("MIOT_TEST_CLOCK", "offset=3600s");
        }
        miot_tests::daemons::ready(&mut server)
    });
    let miot = |words: &[&str]| run(Command::new(&miot_tests::built::built().miot).args(words));
    let names = addresses.join(",");
    for words in [vec!["tail", "-f", &names], vec!["ctl", "--server", &names, "status"]] {
        let ended = miot(&words);
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
        let expected = format!("the clock of {} is ", addresses[1]);
        assert!(ended.stderr.contains(&expected) && ended.stderr.contains("ahead of"), "{}", ended.stderr);
    }
    let dirs = traces.each_ref().map(|trace| trace.display().to_string()).join(",");
    until("the traces have final times", || {
        traces.iter().all(|trace| miot_trace_store::final_time::read(trace).is_some())
    });
    let cat = miot(&["cat", &dirs]);
    assert!(cat.stderr.contains("the clocks of their log-servers differ"), "{}", cat.stderr);
    for server in servers {
        server.end();
    }
}

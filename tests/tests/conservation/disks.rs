//! File systems that are full for some time: under the trace, the spool and the lanes. They are
//! small tmpfs in a mount namespace, which needs root or user namespaces.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::judge::{Rules, Verdict};
use miot_tests::namespaces::{Namespaces, fill, free};
use miot_tests::producers::ProducerLoad;
use miot_tests::random::Random;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Daemon that is killed while the disk is full.
#[derive(Clone, Copy, PartialEq)]
enum Kill {
    Nobody,
    Server,
    Client,
}

/// Data on the full disk.
#[derive(Clone, Copy, PartialEq)]
enum Under {
    Trace,
    Spool,
    Lanes,
}

fn full(name: &str, under: Under, kill: Kill, rules: Rules) -> Option<Verdict> {
    let mut random = Random::new(name);
    // All mounts in these namespaces disappear with them.
    let room = Arc::new(Namespaces::new(&["--net", "--mount"])?);
    let outside = miot_tests::test_dir::fresh(&format!("{name}-mounts"));
    let [trace, spool, lanes] = ["trace", "spool", "lanes"].map(|folder| outside.join(folder));
    for (folder, size) in [(&trace, "256m"), (&spool, "128m"), (&lanes, "128m")] {
        fs::create_dir(folder).unwrap();
        room.mount(folder, size);
    }
    room.shell("ip link set lo up");
    let address = format!("127.0.0.1:{}", free_port());
    let mut deployment = Deployment::new(name, |_| {
        let mut server = server_command(&address, &trace.join("trace"));
        server.env("MIOT_SERVER_LOG", "error").env("MIOT_SERVER_SEAL_ROWS", "100000");
        room.inside(&server)
    });
    deployment.trace = room.seen(&trace.join("trace"));
    let mut client = client_command(&address, "node", &lanes.join("miot"));
    client.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_STOP", "120s");
    client.env("MIOT_CLIENT_SPOOL_BYTES", "64 MiB").arg("--spool-dir").arg(spool.join("spool"));
    let node = deployment.add_in(&room, "node", &lanes.join("miot"), &spool.join("spool"), &client);

    let go_on = |deployment: &mut Deployment, random: &mut Random| {
        deployment.populate(node, 3, (100, 2000), random, |random| ProducerLoad {
            pause: 50_000,
            ..ProducerLoad::any(random)
        });
        deployment.kill_due();
        std::thread::sleep(Duration::from_millis(5));
    };
    let busy = |deployment: &mut Deployment, random: &mut Random, time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            go_on(deployment, random);
        }
    };
    busy(&mut deployment, &mut random, Duration::from_secs(1));
    let mount = room.seen(match under {
        Under::Trace => &trace,
        Under::Spool => &spool,
        Under::Lanes => &lanes,
    });
    if under == Under::Spool {
        // A server that receives data at once never fills a disk.
        deployment.server.kill();
    }
    let ballast = fill(&mount, 256 << 10).unwrap();
    let start = Instant::now();
    while free(&mount) > 64 << 10 && start.elapsed() < Duration::from_secs(60) {
        go_on(&mut deployment, &mut random);
    }
    eprintln!("{name}: {} bytes were free after {:?}", free(&mount), start.elapsed());
    busy(&mut deployment, &mut random, Duration::from_secs(1));
    match kill {
        Kill::Nobody => {}
        Kill::Server => deployment.server.kill(),
        Kill::Client => deployment.nodes[node].client.kill(),
    }
    busy(&mut deployment, &mut random, Duration::from_secs(1));
    if kill == Kill::Client {
        // Without space for its control page it could not start.
        deployment.nodes[node].client.restart();
        busy(&mut deployment, &mut random, Duration::from_secs(1));
    }
    fs::remove_file(&ballast).unwrap();
    deployment.server.restart();
    busy(&mut deployment, &mut random, Duration::from_secs(1));
    let verdict = deployment.end(rules);
    let _ = fs::remove_dir_all(&outside);
    Some(verdict)
}

#[test]
fn full_disk_under_the_trace_is_waited_for() {
    full("disk-trace", Under::Trace, Kill::Nobody, Rules::LANES);
}

#[test]
fn log_server_killed_on_a_full_disk_continues() {
    full("disk-trace-killed", Under::Trace, Kill::Server, Rules::LANES);
}

#[test]
fn full_disk_under_the_spool_loses_no_event() {
    full("disk-spool", Under::Spool, Kill::Nobody, Rules::LANES);
}

#[test]
fn log_client_killed_on_a_full_disk_continues() {
    full("disk-spool-killed", Under::Spool, Kill::Client, Rules::LANES);
}

#[test]
fn full_shared_memory_counts_each_refused_request() {
    let rules = Rules { lost_at: &["lane_full", "no_lane"], served: true };
    if let Some(verdict) = full("disk-lanes", Under::Lanes, Kill::Nobody, rules) {
        eprintln!("{verdict}");
    }
}

//! Processes, log-clients and log-servers are killed (SIGKILL) at random times, repeatedly. In the
//! end every attempt is an event or a loss, exactly once. No event is torn or invented, and no file
//! remains.
//!
//! `MIOT_TORTURE_KILLS`: number of processes to be killed, default 200. `MIOT_SEED`: the seed,
//! which is printed. Timing differs as well, so a seed does not reproduce a run, only the kind of
//! run.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::judge::Rules;
use miot_tests::killable_daemon::Pace;
use miot_tests::producers::ProducerLoad;
use miot_tests::random::{Random, number};
use std::time::Duration;

/// Number and targets of the kills.
struct Plan {
    name: &'static str,
    when_full: &'static str,
    /// Share of the kills in this part.
    share: u64,
    kills_server: bool,
}

const CLIENT: Pace = Pace { live: (20, 600), dead: (0, 60) };
const SERVER: Pace = Pace { live: (50, 500), dead: (0, 100) };
/// Number of killed processes for each killed daemon of a kind.
const PER_DAEMON: u64 = 5;

fn torture(plan: &Plan) {
    let kills = number("MIOT_TORTURE_KILLS", 200) / plan.share;
    let mut random = Random::new(&format!("torture {}, {kills} kills", plan.name));
    let address = format!("127.0.0.1:{}", free_port());
    let mut deployment = Deployment::new(&format!("torture-{}", plan.name), |trace| {
        let mut server = server_command(&address, trace);
        // A full spool waits until the server merges. The server waits at most this long for events
        // that are earlier than those in the spool.
        server.env("MIOT_SERVER_LOG", "warn").env("MIOT_SERVER_SILENT_AFTER", "300ms");
        server
    });
    let node = deployment.add("torture", |dir| {
        let mut client = client_command(&address, "torture", dir);
        client.env("MIOT_CLIENT_LOG", "warn").env("MIOT_CLIENT_WHEN_FULL", plan.when_full);
        client.env("MIOT_CLIENT_LANE_SLOTS", "256").env("MIOT_CLIENT_LANE_SLOTS_MAX", "2048");
        client.env("MIOT_CLIENT_SPOOL_BYTES", "16 MiB").env("MIOT_CLIENT_STOP", "120s");
        client
    });
    let daemons = kills / PER_DAEMON;
    while deployment.killed() < kills
        || deployment.clients_killed() < daemons
        || plan.kills_server && deployment.server.kills < daemons
    {
        deployment.populate(node, 3, (0, 60), &mut random, ProducerLoad::any);
        std::thread::sleep(Duration::from_micros(200 + random.below(2000)));
        deployment.nodes[node].client.kill_or_restart(&mut random, CLIENT);
        if plan.kills_server {
            deployment.server.kill_or_restart(&mut random, SERVER);
        }
        deployment.kill_due();
    }
    // Processes start faster than short-lived log-clients remove their segments, so the node's
    // memory for segments may be used up.
    let verdict = deployment.end(Rules { lost_at: &["lane_full", "no_lane"], served: false });
    assert!(verdict.delivered > kills, "hardly anything was recorded");
}

#[test]
fn killed_processes_and_log_clients_lose_no_event() {
    torture(&Plan { name: "clients", when_full: "drop-newest", share: 1, kills_server: false });
}

#[test]
fn killed_processes_and_daemons_lose_no_event() {
    torture(&Plan { name: "servers", when_full: "drop-newest", share: 4, kills_server: true });
}

#[test]
fn killed_processes_that_overwrite_lose_no_event() {
    torture(&Plan { name: "overwriting", when_full: "overwrite-oldest", share: 4, kills_server: false });
}

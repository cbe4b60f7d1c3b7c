//! A server and three nodes in separate networks, joined by veth: links that go down and up,
//! daemons that are killed behind a dead link and leave half-open connections, and addresses that
//! change. Needs root or user namespaces. `MIOT_NETWORK_SECONDS`: default 15.

use miot_tests::daemons::{client_command, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::judge::Rules;
use miot_tests::namespaces::Namespaces;
use miot_tests::producers::ProducerLoad;
use miot_tests::random::{Random, number};
use std::time::{Duration, Instant};

const NODES: usize = 3;
const NET: &[&str] = &["--net"];

/// Network namespaces of the server and of the nodes. Node `n` is 10.77.n.2 and reaches the server
/// at 10.77.n.1.
struct Net {
    server: Namespaces,
    nodes: Vec<Namespaces>,
}

impl Net {
    fn new() -> Option<Net> {
        let server = Namespaces::new(NET)?;
        let nodes: Vec<Namespaces> = (0..NODES).map_while(|_| Namespaces::new(NET)).collect();
        for (n, node) in nodes.iter().enumerate() {
            server.shell(&format!("ip link add v{n} type veth peer name eth0 netns {}", node.id()));
            server.shell(&format!("ip addr add 10.77.{n}.1/24 dev v{n}; ip link set v{n} up"));
            node.shell(&format!(
                "ip link set lo up; ip addr add 10.77.{n}.2/24 dev eth0; ip link set eth0 up"
            ));
        }
        (nodes.len() == NODES).then_some(Net { server, nodes })
    }

    fn link(&self, node: usize, state: &str) {
        self.server.shell(&format!("ip link set v{node} {state}"));
    }

    /// Changes a node's address. Its old connection is dead, and the server never receives its end.
    fn move_to(&self, node: usize, host: u64) {
        self.nodes[node]
            .shell(&format!("ip addr flush dev eth0; ip addr add 10.77.{node}.{host}/24 dev eth0"));
    }
}

#[test]
fn dead_links_and_changed_addresses_lose_no_event() {
    let mut random = Random::new("network");
    let seconds = Duration::from_secs(number("MIOT_NETWORK_SECONDS", 15));
    let Some(net) = Net::new() else { return };
    let mut deployment = Deployment::new("network", |trace| {
        let mut server = net.server.inside(&server_command("0.0.0.0:4747", trace));
        server.env("MIOT_SERVER_LOG", "warn").env("MIOT_SERVER_SILENT_AFTER", "500ms");
        server.env("MIOT_SERVER_ALLOW_INSECURE", "true").env("MIOT_SERVER_SEAL_ROWS", "50000");
        server
    });
    for (n, room) in net.nodes.iter().enumerate() {
        let name = format!("node-{n}");
        deployment.add(&name, |dir| {
            let mut client = room.inside(&client_command(&format!("10.77.{n}.1:4747"), &name, dir));
            client.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_STOP", "120s");
            client.env("MIOT_CLIENT_ALLOW_INSECURE", "true");
            client
        });
    }
    let start = Instant::now();
    let (mut down, mut due): ([Option<Instant>; NODES], _) = ([None; NODES], start);
    let (mut cuts, mut half_open, mut moves, mut host) = (0, 0, 0, 3);
    while start.elapsed() < seconds {
        let now = Instant::now();
        for (node, until) in down.iter_mut().enumerate() {
            deployment.populate(node, 2, (100, 3000), &mut random, |random| ProducerLoad {
                pause: 100_000,
                ..ProducerLoad::any(random)
            });
            if until.is_some_and(|until| now >= until) {
                *until = None;
                net.link(node, "up");
            }
        }
        deployment.kill_due();
        if now >= due {
            due = now + random.millis(100, 800);
            let node = random.place(NODES);
            if down[node].is_none() {
                net.link(node, "down");
                down[node] = Some(now + random.millis(50, 2500));
                cuts += 1;
            }
            // A process that is killed now cannot notify the other side.
            match random.below(6) {
                0 => {
                    half_open += 1;
                    deployment.server.kill();
                    deployment.server.restart();
                }
                1 | 2 => {
                    half_open += 1;
                    deployment.nodes[node].client.kill();
                    deployment.nodes[node].client.restart();
                }
                3 if moves * 4 < cuts => {
                    moves += 1;
                    host += 1;
                    net.move_to(node, 3 + host % 200);
                }
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for node in 0..NODES {
        net.link(node, "up");
    }
    eprintln!("network: {cuts} times down, {half_open} connections half-open, {moves} addresses changed");
    let verdict = deployment.end(Rules::LANES);
    assert_eq!(verdict.nodes.len(), NODES);
}

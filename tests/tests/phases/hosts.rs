//! Ranks on four simulated hosts. Each has its own network, host name, shared memory and
//! log-client, and the second one's clock is wrong. They share a file system.

use crate::btio::{check_full, check_simple, command};
use crate::{phases, place};
use miot_proto::control::DIR_ENV;
use miot_tests::built::built;
use miot_tests::daemons::{client_command, ready, server_command, started};
use miot_tests::mpi::Mpi;
use miot_tests::namespaces::Namespaces;
use miot_tests::process::{Background, Ended, run};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAMES: [&str; 4] = ["one", "two", "three", "four"];
const SERVER: &str = "10.78.0.1:4747";
const MIOT_DIR: &str = "/dev/shm/miot";

/// Replaces ssh for a launcher: enters the host and runs a command.
const ENTER: &str = r#"#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
room=$(cat "$(dirname "$0")/$1.id"); shift
exec nsenter --target "$room" --mount --net --uts -- sh -c "$*"
"#;

struct Hosts {
    place: PathBuf,
    rooms: Vec<Namespaces>,
    _hub: Namespaces,
}

impl Hosts {
    /// Creates the hosts. Prints a message and returns `None` where namespaces are not permitted.
    fn new(place: &Path) -> Option<Hosts> {
        let rooms: Vec<Namespaces> =
            NAMES.iter().map_while(|_| Namespaces::new(&["--mount", "--net", "--uts"])).collect();
        if rooms.len() < NAMES.len() {
            return None;
        }
        let hub = Namespaces::new(&["--net"])?;
        hub.shell("ip link add br0 type bridge; ip link set br0 up");
        let known = place.join("hosts");
        let lines = NAMES.iter().zip(1..).map(|(name, number)| format!("10.78.0.{number} {name}\n"));
        std::fs::write(&known, format!("127.0.0.1 localhost\n{}", lines.collect::<String>())).unwrap();
        for ((room, name), number) in rooms.iter().zip(NAMES).zip(1..) {
            hub.shell(&format!(
                "ip link add v{number} type veth peer name eth0 netns {}; ip link set v{number} master br0; ip link set v{number} up",
                room.id()
            ));
            room.shell(&format!(
                "hostname {name}; ip link set lo up; ip addr add 10.78.0.{number}/24 dev eth0; ip link set eth0 up; mount --bind '{}' /etc/hosts",
                known.display()
            ));
            room.mount(Path::new("/dev/shm"), "1g");
            // MIOT uses the boot id to decide whether two processes are on one machine.
            let boot = place.join(format!("{name}.boot"));
            std::fs::write(&boot, format!("00000000-0000-4000-8000-00000000000{number}\n")).unwrap();
            room.shell(&format!("mount --bind '{}' /proc/sys/kernel/random/boot_id", boot.display()));
            std::fs::write(place.join(format!("{name}.id")), room.id().to_string()).unwrap();
        }
        let enter = place.join("enter");
        std::fs::write(&enter, ENTER).unwrap();
        std::fs::set_permissions(&enter, std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(Hosts { place: place.to_owned(), rooms, _hub: hub })
    }

    /// Command that starts processes on all hosts in turn. It uses Open MPI, because MPICH 4.0.2
    /// over UCX 1.13 may wait forever in `MPI_Finalize`.
    fn launcher(&self) -> String {
        format!(
            "mpiexec.openmpi --allow-run-as-root --mca plm_rsh_agent {} --mca btl tcp,self --mca pml ob1 --map-by node --host {}",
            self.place.join("enter").display(),
            NAMES.join(",")
        )
    }

    /// Runs a command on the first host.
    fn run(&self, command: &Command) -> Ended {
        run(&mut self.rooms[0].inside(command))
    }

    /// Runs one rank of a program on each host.
    fn mpi<S: AsRef<OsStr>>(&self, traced: bool, words: &[S]) -> Ended {
        let launcher = self.launcher();
        let mut launcher = launcher.split(' ');
        let mut command = Command::new(launcher.next().unwrap());
        command.args(launcher).args(["-n", &NAMES.len().to_string()]);
        if traced {
            let hooks = ["libmiot_posix.so", "libmiot_mpi.so"].map(|name| built().folder.join(name));
            let hooks = hooks.map(|path| path.display().to_string()).join(":");
            let dir = format!("{DIR_ENV}={MIOT_DIR}");
            let hooks = format!("LD_PRELOAD={hooks}");
            command.args(["-x", &hooks, "-x", &dir, "-x", "MIOT_MPI_COMMUNICATION=1"]);
        }
        self.run(command.args(words))
    }

    /// Bytes that the hosts have received from one another.
    fn received(&self) -> u64 {
        let of = |room: &Namespaces| {
            let text = room.shell("ip -json -stats link show eth0").stdout;
            let links: Value = serde_json::from_str(&text).unwrap();
            links[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
        };
        self.rooms.iter().map(of).sum()
    }
}

/// A log-server on the first host, and a log-client on each.
struct Daemons {
    server: Background,
    clients: Vec<Background>,
}

impl Daemons {
    fn start(hosts: &Hosts, trace: &Path) -> Daemons {
        let mut server = hosts.rooms[0].inside(&server_command("0.0.0.0:4747", trace));
        let server = ready(server.env("MIOT_SERVER_ALLOW_INSECURE", "true"));
        let client = |(room, name): (&Namespaces, &str)| {
            let dir = Path::new(MIOT_DIR);
            let mut client = room.inside(&client_command(SERVER, name, dir));
            client.env("MIOT_CLIENT_ALLOW_INSECURE", "true");
            if name == "two" {
                client.env("MIOT_TEST_CLOCK", "offset=-20s");
            }
            started(&mut client, &room.seen(dir))
        };
        let clients = hosts.rooms.iter().zip(NAMES).map(client).collect();
        Daemons { server, clients }
    }

    /// Stops the daemons after all events are in the trace.
    fn end(self) {
        for daemon in self.clients.into_iter().chain([self.server]) {
            let (status, printed) = daemon.stop(Signal::TERM);
            assert!(status.success(), "{printed}");
        }
    }
}

#[test]
fn phases_on_several_hosts_equal_those_on_one() {
    for (variant, check) in [("full", check_full as fn(&_, u64)), ("simple", check_simple as fn(&_, u64))] {
        let place = place(&format!("hosts-{variant}"));
        let Some(hosts) = Hosts::new(&place) else { return };
        let trace = place.join("trace");
        let daemons = Daemons::start(&hosts, &trace);
        let _ = hosts.mpi(true, &command(Mpi::OpenMpi, &place, variant)).success();
        daemons.end();
        let nodes: std::collections::BTreeSet<String> =
            miot_tests::traced::events(&trace).into_iter().map(|row| row.node).collect();
        assert_eq!(nodes, NAMES.map(str::to_owned).into());
        check(&phases(&trace, &[]), 4);
    }
}

/// Ranks write pieces that interleave with those of ranks on other hosts, and read them back.
#[test]
fn benchmark_and_estimate_run_on_several_hosts() {
    let place = place("hosts-bench");
    let Some(hosts) = Hosts::new(&place) else { return };
    let (suite, target) = (place.join("suite.toml"), place.join("target"));
    std::fs::create_dir(&target).unwrap();
    let run = "[[run]]\nname = 'x'\npattern = 'nested-strided'\nblock = 1000\ninner-count = 500\ncount = 4\ninterface = 'mpi-io'\ncollective = true\ntogether = 500\n";
    std::fs::write(&suite, format!("repetitions = 2\n{run}")).unwrap();
    let miot = built().miot.as_os_str();
    let words = ["bench", "--mpi", "--format", "json", "--dir"].map(OsStr::new);
    let words = [&[miot][..], &words, &[target.as_os_str(), suite.as_os_str()]].concat();
    let before = hosts.received();
    let outcome: Value = serde_json::from_str(&hosts.mpi(false, &words).success().stdout).unwrap();
    for one in outcome["repetitions"].as_array().unwrap() {
        assert_eq!((&one["written"], &one["calls"]), (&8_000_000.into(), &16.into()));
    }
    let received = hosts.received() - before;
    assert!(received > 2 * 4_000_000, "most pieces go to another host to be written: {received} bytes");

    let trace = place.join("trace");
    let daemons = Daemons::start(&hosts, &trace);
    let _ = hosts.mpi(true, &command(Mpi::OpenMpi, &place, "full")).success();
    daemons.end();
    let (run, measured) = (format!("x={}", target.display()), format!("x={}", trace.display()));
    let mut estimate = Command::new(miot);
    estimate.arg("estimate").arg(&trace).args(["--mpi", &hosts.launcher(), "--run", &run]);
    estimate.args(["--measured", &measured, "--repetitions", "3", "--format", "json"]);
    let said: Value = serde_json::from_str(&hosts.run(&estimate).success().stdout).unwrap();
    let rows = said["estimates"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["phases"].as_str()).collect();
    assert_eq!(names, ["1-4", "5", "all"]);
    assert!(rows.iter().all(|row| row["error_relative"].is_f64()), "{said}");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
}

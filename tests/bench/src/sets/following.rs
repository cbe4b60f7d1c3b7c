//! Time from the completion of a request to its line in `miot tail -f` of four log-servers.
//!
//! Each log-server has one node. The nodes take turns to complete a request, so that events of all
//! partitions are merged.

use super::{MOST, Set};
use crate::node::Node;
use crate::pipeline::count;
use crate::process::Running;
use crate::worker::{self, Worker};
use crate::{Bench, daemons, process};
use anyhow::{Context as _, Result, ensure};
use miot_log_client::servers::preference;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Events of each step beside a load: with the pause, 100 000 per second on all nodes together.
const LOAD: u64 = 700;
const PAUSE: Duration = Duration::from_millis(7);

/// Longest wait for `miot tail`.
const PATIENCE: Duration = Duration::from_secs(60);

/// A line of `miot tail` and the time when it was read, nanoseconds since 1970.
type Seen = (i64, String);

pub(super) fn run(bench: &Bench) -> Result<Value> {
    println!("{:45} {:>8} {:>8} {:>8}", "completion to `miot tail` of 4, ms", "p50", "p99", "max");
    let mut rows = Vec::new();
    for (what, loaded) in [("idle nodes", false), ("beside 100 000 events/s of all nodes", true)] {
        let mut delays = measure(bench, loaded)?;
        delays.sort_by(f64::total_cmp);
        let at = |share: f64| delays[((delays.len() - 1) as f64 * share).round() as usize];
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        println!("{what:45} {p50:8.1} {p99:8.1} {max:8.1}");
        rows.push(
            json!({ "what": what, "p50_ms": p50, "p99_ms": p99, "max_ms": max, "events": delays.len() }),
        );
    }
    Ok(Value::Array(rows))
}

/// A node of the set and its producers.
struct Site {
    node: Node,
    stamped: Worker,
    busy: Option<Worker>,
}

impl Site {
    /// Starts a node that prefers the log-server with this number.
    fn start(dir: &Path, lanes: &Path, servers: &[String], number: usize, loaded: bool) -> Result<Site> {
        let mut names = (0..).map(|node| format!("n{node}"));
        let prefers = |name: &String| preference(name, servers)[0] == servers[number];
        let name = names.find(prefers).context("a name")?;
        let node = Node::start(&dir.join(&name), &lanes.join(&name), &name, servers)?;
        let worker = |way: &str| -> Result<Worker> {
            let mut command = worker::own(way)?;
            command.env("MIOT_DIR", node.dir());
            Worker::start(way, command)
        };
        let (stamped, busy) = (worker("miot-stamped")?, if loaded { Some(worker("miot")?) } else { None });
        Ok(Site { node, stamped, busy })
    }

    fn step(&mut self) -> Result<()> {
        self.stamped.run(1, 1)?;
        self.busy.as_mut().map_or(Ok(()), |busy| busy.run(LOAD, 1).map(drop))
    }

    /// Ends the node. Returns the number of events that its producers have made.
    fn finish(self) -> Result<u64> {
        // Each worker makes one operation more, to check that it records.
        let made = std::iter::once(&self.stamped).chain(&self.busy).map(|worker| worker.calls() + 1).sum();
        self.stamped.finish()?;
        self.busy.map_or(Ok(()), Worker::finish)?;
        self.node.stop()?;
        Ok(made)
    }
}

/// `miot tail -f`, and the thread that reads its lines.
struct Tail {
    command: Running,
    lines: Receiver<Seen>,
    reader: JoinHandle<()>,
}

impl Tail {
    /// Follows the events of these processes.
    fn start(addresses: &[String], pids: &[u32]) -> Result<Tail> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let mut command = Command::new(daemons::built("miot")?);
        command.args(["tail", "-f", "--format", "json", "--pid", &pids.join(","), &addresses.join(",")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = process::ends_with_us(&mut command).spawn().context("miot tail")?;
        let output = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let (send, lines) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                if send.send((now(), line)).is_err() {
                    break;
                }
            }
        });
        Ok(Tail { command: Running::new(child), lines, reader })
    }

    /// Waits until this number of events that completed from `started` on were printed, at most
    /// [`PATIENCE`] for each. Returns what was printed.
    fn receive(&self, events: usize, started: i64) -> Result<Vec<Seen>> {
        let (mut seen, mut found) = (Vec::new(), 0);
        while found < events
            && let Ok((at, line)) = self.lines.recv_timeout(PATIENCE)
        {
            let completed = completion(&serde_json::from_str(&line)?);
            found += usize::from(completed.is_some_and(|completed| completed >= started));
            seen.push((at, line));
        }
        Ok(seen)
    }

    /// Ends the command and returns what it has printed since.
    fn stop(self) -> Vec<Seen> {
        self.command.terminate();
        let _ = self.reader.join();
        self.lines.into_iter().collect()
    }
}

fn measure(bench: &Bench, loaded: bool) -> Result<Vec<f64>> {
    let name = format!("following-{loaded}");
    let (dir, lanes) = (bench.disk.path().join(&name), bench.memory.path().join(&name));
    let set = Set::start(&dir, MOST)?;
    let traces = set.traces();
    let servers: Vec<String> = set.addresses().into_iter().map(str::to_owned).collect();
    let start = |number| Site::start(&dir, &lanes, &servers, number, loaded);
    let mut sites = (0..MOST).map(start).collect::<Result<Vec<_>>>()?;
    let pids: Vec<u32> = sites.iter().map(|site| site.stamped.pid()).collect();
    let tail = Tail::start(&servers, &pids)?;
    // The subscriptions take effect some time after the start.
    let patience = Instant::now() + PATIENCE;
    while tail.lines.recv_timeout(Duration::from_millis(50)).is_err() {
        ensure!(Instant::now() < patience, "`miot tail` shows nothing");
        sites.iter_mut().try_for_each(|site| site.stamped.run(1, 1).map(drop))?;
    }
    let stamps = bench.pick(1200, 300, 12);
    let started = now();
    for step in 0..stamps {
        sites[step % MOST].step()?;
        std::thread::sleep(PAUSE);
    }
    let mut seen = tail.receive(2 * stamps, started)?;
    seen.extend(tail.stop());
    let made = sites.into_iter().map(Site::finish).collect::<Result<Vec<u64>>>()?;
    set.stop()?;
    for (trace, made) in traces.iter().zip(made) {
        let rows = count(trace)?;
        let (events, lost) = (rows.events, rows.lost);
        ensure!(
            (events, lost) == (made, 0),
            "{}: {events} events and {lost} lost of {made}",
            trace.display()
        );
    }
    delays(&seen, started, stamps, &pids)
}

/// Returns the delays in milliseconds of the events that completed from `started` on. Each step
/// makes two. Checks that all were printed, once and in order.
fn delays(seen: &[Seen], started: i64, stamps: usize, pids: &[u32]) -> Result<Vec<f64>> {
    let (mut delays, mut by_pid, mut last) = (Vec::new(), BTreeMap::<u64, usize>::new(), String::new());
    for (at, line) in seen {
        let row: Value = serde_json::from_str(line)?;
        let time = row["time"].as_str().context("no time")?.to_owned();
        ensure!(last <= time, "`miot tail` printed {time} after {last}");
        last = time;
        if let Some(completed) = completion(&row).filter(|completed| *completed >= started) {
            delays.push((at - completed) as f64 / 1e6);
            *by_pid.entry(row["pid"].as_u64().context("no pid")?).or_default() += 1;
        }
    }
    let expected = 2 * stamps / pids.len();
    let has_all = |pid: &u32| by_pid.get(&u64::from(*pid)) == Some(&expected);
    ensure!(
        pids.iter().all(has_all),
        "`miot tail` showed {by_pid:?} of {expected} events of each of {pids:?}"
    );
    Ok(delays)
}

/// Time in the result of a stamped event, nanoseconds since 1970.
fn completion(row: &Value) -> Option<i64> {
    row["result"].as_i64().filter(|_| row["op"] == "fsync")
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as i64)
}

//! What operators want of nodes: passed on to those that are connected, remembered for those that come.
//!
//! Orders are a list in which later ones count more, as in a shell: `off` for all and then `on` for one node leaves one
//! node on, in whichever order the nodes come back. An order is dropped when a later one with the same nodes and scope, or for
//! all nodes, says everything that it said. The list is a file beside the trace, replaced and synced before anybody is told, so that
//! what an operator was told to be remembered outlives the server.

use crate::error::Error;
use crate::{lock, now};
use globset::{Glob, GlobMatcher, GlobSet};
use miot_proto::steer::{Action, Change, Errand, MAX_JOB, MAX_ORDER, Order, Outcome, Reply, Scope};
use miot_proto::wire::{Message, STEERABLE, Version};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// Name of the file in the trace directory.
pub(crate) const FILE: &str = "steering.json";
/// How long it is remembered that a job is no exception any more, for nodes that do not know yet: longer than it takes to mend
/// a node, and no longer, because there is no end of jobs.
const FORGOTTEN_AFTER: i64 = 24 * 3600 * 1_000_000_000;
/// Most orders that are remembered.
const MOST: usize = 512;

/// See the module.
#[derive(Debug)]
pub(crate) struct Steering {
    file: PathBuf,
    /// Held from reading the orders to replacing them.
    ordering: Mutex<()>,
    /// What sessions ask for. Nobody who holds it waits for the disk.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    orders: Vec<Order>,
    /// For which nodes each of them is.
    nodes: GlobSet,
    links: HashMap<String, Link>,
}

/// A node that is connected.
#[derive(Debug)]
struct Link {
    conn: u64,
    out: mpsc::UnboundedSender<Message>,
    steerable: bool,
    last: u64,
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
}

impl Link {
    /// Sends an errand; its answer goes to `reply`, or into the log.
    fn send(&mut self, errand: &Errand, reply: Option<oneshot::Sender<Outcome>>) {
        self.last += 1;
        // No type here refuses to be serialized.
        let Ok(errand) = serde_json::to_vec(errand) else { return };
        if let Some(reply) = reply {
            self.waiting.retain(|_, waiting| !waiting.is_closed());
            self.waiting.insert(self.last, reply);
        }
        let _ = self.out.send(Message::Errand { id: self.last, errand });
    }
}

impl Steering {
    /// Reads what was ordered before.
    ///
    /// # Errors
    /// [`Error::Orders`].
    pub(crate) fn open(trace: &Path) -> Result<Arc<Steering>, Error> {
        let file = trace.join(FILE);
        let wrong = |reason: String| Error::Orders { path: file.clone(), reason };
        let orders: Vec<Order> = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let nodes = matchers(&orders).map_err(wrong)?;
        if !orders.is_empty() {
            tracing::info!(orders = orders.len(), "nodes that come are told what was ordered before");
        }
        let state = Mutex::new(State { orders, nodes, links: HashMap::new() });
        Ok(Arc::new(Steering { file, ordering: Mutex::default(), state }))
    }

    /// What is remembered.
    pub(crate) fn orders(&self) -> Vec<Order> {
        self.state().orders.clone()
    }

    /// A node has come: it is told what holds for it.
    pub(crate) fn connected(
        &self,
        node: &str,
        conn: u64,
        version: Version,
        out: mpsc::UnboundedSender<Message>,
    ) {
        let mut state = self.state();
        let steerable = version.minor >= STEERABLE;
        let mut link = Link { conn, out, steerable, last: 0, waiting: HashMap::new() };
        for order in state.nodes.matches(node).into_iter().filter(|_| steerable) {
            let order = &state.orders[order];
            let errand = |action| Errand { scope: order.scope.clone(), action };
            if order.reset {
                link.send(&errand(Action::Reset), None);
            }
            if order.change != Change::default() {
                link.send(&errand(Action::Set(order.change.clone())), None);
            }
        }
        state.links.insert(node.to_owned(), link);
    }

    /// The connection is gone; perhaps another one has replaced it.
    pub(crate) fn disconnected(&self, node: &str, conn: u64) {
        let mut state = self.state();
        if state.links.get(node).is_some_and(|link| link.conn == conn) {
            state.links.remove(node);
        }
    }

    /// A node says what became of an errand.
    pub(crate) fn outcome(&self, node: &str, conn: u64, id: u64, outcome: &[u8]) {
        let outcome = serde_json::from_slice(outcome)
            .unwrap_or_else(|error| Outcome::Failed(format!("its answer makes no sense: {error}")));
        let mut state = self.state();
        let Some(link) = state.links.get_mut(node).filter(|link| link.conn == conn) else { return };
        match (link.waiting.remove(&id), outcome) {
            (Some(waiting), outcome) => {
                let _ = waiting.send(outcome);
            }
            (None, Outcome::Failed(reason)) => {
                tracing::warn!(node, reason, "a node does not do what was ordered");
            }
            (None, _) => {}
        }
    }

    /// Remembers an order, passes it on to the nodes of these names that are connected, and waits for their answers. `known`:
    /// nodes that may be absent.
    ///
    /// # Errors
    /// Why nothing was done.
    pub(crate) async fn steer(
        self: &Arc<Steering>,
        nodes: &str,
        errand: Errand,
        known: BTreeSet<String>,
        patience: Duration,
    ) -> Result<Reply, String> {
        check(&errand)?;
        let glob = matcher(nodes)?;
        let until = Instant::now() + patience;
        let (this, nodes) = (Arc::clone(self), nodes.to_owned());
        // The file is synced.
        let ordering = tokio::task::spawn_blocking(move || this.order(&nodes, &glob, &errand, known));
        let (remembered, waiting) = ordering.await.map_err(|error| error.to_string())??;
        let mut outcomes = Vec::new();
        for (node, waiting) in waiting {
            let outcome = match waiting {
                Err(outcome) => outcome,
                Ok(reply) => match timeout_at(until, reply).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) => Outcome::Failed("its connection ended before it answered".into()),
                    Err(_) => Outcome::Failed(format!("no answer within {patience:?}")),
                },
            };
            outcomes.push((node, outcome));
        }
        Ok(Reply::Steered { nodes: outcomes, remembered })
    }

    fn order(
        &self,
        nodes: &str,
        glob: &GlobMatcher,
        errand: &Errand,
        mut known: BTreeSet<String>,
    ) -> Result<(bool, Vec<(String, Waiting)>), String> {
        let _one_after_the_other = lock(&self.ordering);
        let orders = remember(&self.orders(), nodes, errand);
        let globs = matchers(orders.as_deref().unwrap_or_default())?;
        if let Some(orders) = &orders {
            if orders.len() > MOST {
                return Err(format!(
                    "{MOST} orders are remembered already; drop those of jobs that are over with `miot ctl --server \
                     HOST:PORT reset --job ID`"
                ));
            }
            self.save(orders).map_err(|error| format!("cannot write {}: {error}", self.file.display()))?;
        }
        let mut state = self.state();
        if let Some(orders) = &orders {
            state.orders.clone_from(orders);
            state.nodes = globs;
        }
        known.extend(state.links.keys().cloned());
        let mut waiting = Vec::new();
        for node in known.into_iter().filter(|node| glob.is_match(node)) {
            let answer = match state.links.get_mut(&node) {
                None => Err(Outcome::Absent),
                Some(link) if !link.steerable => Err(Outcome::Failed(
                    "its log-client is of a version that cannot be steered from here".into(),
                )),
                Some(link) => {
                    let (reply, answer) = oneshot::channel();
                    link.send(errand, Some(reply));
                    Ok(answer)
                }
            };
            waiting.push((node, answer));
        }
        Ok((orders.is_some(), waiting))
    }

    /// Replaces the file, durably.
    fn save(&self, orders: &[Order]) -> std::io::Result<()> {
        let new = self.file.with_added_extension("tmp");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(orders)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.file)?;
        self.file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// An answer to come, or what is known without.
type Waiting = Result<oneshot::Receiver<Outcome>, Outcome>;

fn matcher(nodes: &str) -> Result<GlobMatcher, String> {
    Glob::new(nodes).map(|glob| glob.compile_matcher()).map_err(|error| format!("--node: {error}"))
}

/// For which nodes each order is; those of a node are found by their places in the list.
fn matchers(orders: &[Order]) -> Result<GlobSet, String> {
    let globs = orders.iter().map(|order| Glob::new(&order.nodes)).collect::<Result<Vec<_>, _>>();
    globs.and_then(GlobSet::new).map_err(|error| format!("nodes: {error}"))
}

fn check(errand: &Errand) -> Result<(), String> {
    match &errand.scope {
        Scope::Job(job) if job.is_empty() || job.len() > MAX_JOB => {
            return Err(format!("a job id has 1 to {MAX_JOB} bytes"));
        }
        Scope::Job(_) | Scope::Pid(_) if errand.action == Action::Snapshot => {
            return Err("a snapshot is of all that a node's lanes hold: leave --job and --pid out".into());
        }
        _ => {}
    }
    if matches!(&errand.action, Action::Set(change) if *change == Change::default()) {
        return Err("nothing is to be changed".into());
    }
    let bytes = serde_json::to_vec(errand).map_or(usize::MAX, |errand| errand.len());
    if bytes > MAX_ORDER {
        return Err(format!("an order of {bytes} bytes; at most {MAX_ORDER} fit"));
    }
    Ok(())
}

/// The list with one more order; `None` if it is nothing to remember.
fn remember(orders: &[Order], nodes: &str, errand: &Errand) -> Option<Vec<Order>> {
    let Errand { scope, action } = errand;
    if matches!(scope, Scope::Pid(_)) {
        return None;
    }
    let (reset, change) = match action {
        Action::Snapshot => return None,
        Action::Reset => (true, Change::default()),
        Action::Set(change) => (false, change.clone()),
    };
    let overridden = |order: &Order| order.scope == *scope && (order.nodes == nodes || nodes == "*");
    let mut list = orders.to_vec();
    if reset {
        list.retain(|order| !overridden(order));
    } else {
        list.iter_mut().filter(|order| overridden(order)).for_each(|order| order.change.forget(&change));
        list.retain(|order| order.reset || order.change != Change::default());
    }
    let since = now();
    list.retain(|order| {
        let over = order.reset && order.change == Change::default() && matches!(order.scope, Scope::Job(_));
        !over || since.saturating_sub(order.since) < FORGOTTEN_AFTER
    });
    match list.last_mut().filter(|last| last.scope == *scope && last.nodes == nodes) {
        // It was the last word on these nodes, so nothing came in between.
        Some(last) => {
            last.change.merge(&change);
            last.since = since;
        }
        None => list.push(Order { nodes: nodes.to_owned(), scope: scope.clone(), reset, change, since }),
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(scope: &Scope, change: Change) -> Errand {
        Errand { scope: scope.clone(), action: Action::Set(change) }
    }

    fn on(enabled: bool) -> Change {
        Change { enabled: Some(enabled), ..Change::default() }
    }

    #[test]
    fn orders_outlive_the_server_and_reach_who_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let steer = |steering: &Arc<Steering>, nodes: &str, errand| {
            let known = BTreeSet::from(["n1".to_owned(), "n2".to_owned()]);
            runtime.block_on(steering.steer(nodes, errand, known, Duration::from_millis(10)))
        };
        let steering = Steering::open(dir.path()).unwrap();
        let reply = steer(&steering, "*", set(&Scope::Node, on(false))).unwrap();
        let absent = |name: &str| (name.to_owned(), Outcome::Absent);
        assert_eq!(reply, Reply::Steered { nodes: vec![absent("n1"), absent("n2")], remembered: true });
        let reply = steer(&steering, "n1", set(&Scope::Pid(7), on(true))).unwrap();
        assert!(matches!(reply, Reply::Steered { remembered: false, .. }));
        assert!(steer(&steering, "[", set(&Scope::Node, on(false))).is_err());
        assert!(steer(&steering, "*", set(&Scope::Node, Change::default())).is_err());
        drop(steering);

        let steering = Steering::open(dir.path()).unwrap();
        let (out, mut sent) = mpsc::unbounded_channel();
        steering.connected("n1", 1, Version { major: 9, minor: STEERABLE }, out);
        let Message::Errand { id, errand } = sent.try_recv().unwrap() else { panic!() };
        assert_eq!(serde_json::from_slice::<Errand>(&errand).unwrap(), set(&Scope::Node, on(false)));
        steering.outcome("n1", 1, id, br#"{"failed":"no"}"#);
        let (out, mut sent) = mpsc::unbounded_channel();
        steering.connected("n2", 2, Version { major: 9, minor: STEERABLE - 1 }, out);
        assert!(sent.try_recv().is_err(), "an old one would not understand");
        drop(steering);

        let steering = Steering::open(dir.path()).unwrap();
        let _ = steer(&steering, "n2", set(&Scope::Node, on(true))).unwrap();
        let told = |node| {
            let (out, mut sent) = mpsc::unbounded_channel();
            steering.connected(node, 3, Version { major: 9, minor: STEERABLE }, out);
            std::iter::from_fn(|| sent.try_recv().ok()).count()
        };
        assert_eq!((told("n1"), told("n2")), (1, 2), "what was ordered before the restart and what after it");
        let orders = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        std::fs::write(dir.path().join(FILE), orders.replace("n2", "[n2")).unwrap();
        let error = Steering::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("[n2") && error.contains("remove it"), "{error}");
        std::fs::write(dir.path().join(FILE), "nonsense").unwrap();
        assert!(matches!(Steering::open(dir.path()), Err(Error::Orders { .. })));
    }

    /// What a node has after all orders that are for it.
    fn holds(orders: &[Order], node: &str) -> Change {
        let mine = orders.iter().filter(|order| matcher(&order.nodes).unwrap().is_match(node));
        mine.fold(Change::default(), |mut holds, order| {
            if order.reset {
                holds = Change::default();
            }
            holds.merge(&order.change);
            holds
        })
    }

    proptest! {
        /// Dropping what is overridden changes nothing for any node.
        #[test]
        fn what_is_remembered_says_what_was_said(said in prop::collection::vec((0..4usize, any::<bool>(), 0..4u64), 0..20)) {
            let globs = ["*", "n1", "n*", "n2"];
            let (mut short, mut long) = (Vec::new(), Vec::new());
            for (glob, enabled, what) in said {
                let change = match what {
                    0 => Change::default(),
                    1 => on(enabled),
                    2 => Change { min_duration_ns: Some(u64::from(enabled)), ..Change::default() },
                    _ => Change { sample: Some("1/2".into()), ..on(enabled) },
                };
                let (nodes, reset) = (globs[glob], what == 0);
                let action = if reset { Action::Reset } else { Action::Set(change.clone()) };
                short = remember(&short, nodes, &Errand { scope: Scope::Node, action }).unwrap();
                long.push(Order { nodes: nodes.into(), scope: Scope::Node, reset, change, since: 0 });
            }
            for node in ["n1", "n2", "n3", "other"] {
                prop_assert_eq!(holds(&short, node), holds(&long, node), "{}", node);
            }
            // Of each of the four globs a reset, and an order for each of the three things that are said.
            prop_assert!(short.len() <= 16);
        }
    }
}

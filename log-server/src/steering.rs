//! Commands of operators for nodes: sent to connected nodes, and stored for nodes that connect
//! later.
//!
//! Stored commands are a list in which later ones take precedence, as in a shell: `off` for all
//! nodes and then `on` for one node leaves one node on, regardless of the order in which the nodes
//! return. A command is dropped when a later one for the same nodes and scope, or for all nodes,
//! overrides all of it. The list is a file in the trace directory. It is replaced and synced before
//! any node is notified, so a command that was confirmed as stored survives a restart of the
//! server.

use crate::error::Error;
use crate::ids::ConnId;
use crate::{lock, now};
use globset::{Glob, GlobMatcher, GlobSet};
use miot_proto::command::{
    Action, CommandOutcome, MAX_COMMAND, MAX_JOB_ID, NodeCommand, OperatorReply, Scope, SettingsUpdate,
    StandingCommand,
};
use miot_proto::wire::{COMMANDS_SINCE_MINOR, Message, Version};
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
/// Time for which the reset of a job is stored, nanoseconds, for nodes that do not know it yet:
/// longer than the repair of a node takes, and limited, because the number of jobs is unlimited.
const KEEP_JOB_RESET_NS: i64 = 24 * 3600 * 1_000_000_000;
/// Maximum number of stored commands.
const MAX_COMMANDS: usize = 512;

/// Reason why a command was not executed. The operator reads the text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("a job id has 1 to {MAX_JOB_ID} bytes")]
    JobId,
    #[error("a snapshot contains all lanes of a node: leave --job and --pid out")]
    PartialSnapshot,
    #[error("the command changes nothing")]
    Empty,
    #[error("a command of {0} bytes; the maximum is {MAX_COMMAND}")]
    TooLarge(usize),
    #[error(
        "{MAX_COMMANDS} commands are stored already; drop those of finished jobs with `miot ctl --server HOST:PORT \
         reset --job ID`"
    )]
    Full,
    #[error("--node: {0}")]
    Pattern(globset::Error),
    #[error("nodes: {0}")]
    StoredPattern(globset::Error),
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
}

/// Stored commands and connected nodes, see the module.
#[derive(Debug)]
pub(crate) struct Steering {
    file: PathBuf,
    /// Held from reading the commands to replacing them.
    order_lock: Mutex<()>,
    /// State for sessions. It is never locked during a disk access.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    orders: Vec<StandingCommand>,
    /// Patterns of nodes, one for each command.
    nodes: GlobSet,
    links: HashMap<String, NodeLink>,
}

/// A connected node.
#[derive(Debug)]
struct NodeLink {
    conn: ConnId,
    out: mpsc::UnboundedSender<Message>,
    steerable: bool,
    last: u64,
    waiting: HashMap<u64, oneshot::Sender<CommandOutcome>>,
}

impl NodeLink {
    /// Sends a command. Its outcome goes to `reply`, or to the log.
    fn send(&mut self, command: &NodeCommand, reply: Option<oneshot::Sender<CommandOutcome>>) {
        self.last += 1;
        // Serialization of these types cannot fail.
        let Ok(command) = serde_json::to_vec(command) else { return };
        if let Some(reply) = reply {
            self.waiting.retain(|_, waiting| !waiting.is_closed());
            self.waiting.insert(self.last, reply);
        }
        let _ = self.out.send(Message::Command { id: self.last, command });
    }
}

impl Steering {
    /// Reads the stored commands.
    ///
    /// # Errors
    /// [`Error::Orders`].
    pub(crate) fn open(trace: &Path) -> Result<Arc<Steering>, Error> {
        let file = trace.join(FILE);
        let wrong = |reason: String| Error::Orders { path: file.clone(), reason };
        let orders: Vec<StandingCommand> = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let nodes = matchers(&orders).map_err(|error| wrong(error.to_string()))?;
        if !orders.is_empty() {
            tracing::info!(orders = orders.len(), "stored commands are sent to nodes that connect");
        }
        let state = Mutex::new(State { orders, nodes, links: HashMap::new() });
        Ok(Arc::new(Steering { file, order_lock: Mutex::default(), state }))
    }

    /// All stored commands.
    pub(crate) fn orders(&self) -> Vec<StandingCommand> {
        self.state().orders.clone()
    }

    /// Adds a connected node, and sends it the commands that apply to it.
    pub(crate) fn connected(
        &self,
        node: &str,
        conn: ConnId,
        version: Version,
        out: mpsc::UnboundedSender<Message>,
    ) {
        let mut state = self.state();
        let steerable = version.minor >= COMMANDS_SINCE_MINOR;
        let mut link = NodeLink { conn, out, steerable, last: 0, waiting: HashMap::new() };
        for order in state.nodes.matches(node).into_iter().filter(|_| steerable) {
            let order = &state.orders[order];
            let command = |action| NodeCommand { scope: order.scope.clone(), action };
            if order.reset {
                link.send(&command(Action::Reset), None);
            }
            if order.change != SettingsUpdate::default() {
                link.send(&command(Action::Set(order.change.clone())), None);
            }
        }
        state.links.insert(node.to_owned(), link);
    }

    /// Removes a connection, which another one may have replaced.
    pub(crate) fn disconnected(&self, node: &str, conn: ConnId) {
        let mut state = self.state();
        if state.links.get(node).is_some_and(|link| link.conn == conn) {
            state.links.remove(node);
        }
    }

    /// Handles the outcome of a command.
    pub(crate) fn outcome(&self, node: &str, conn: ConnId, id: u64, outcome: &[u8]) {
        let outcome = serde_json::from_slice(outcome)
            .unwrap_or_else(|error| CommandOutcome::Failed(format!("its answer cannot be parsed: {error}")));
        let mut state = self.state();
        let Some(link) = state.links.get_mut(node).filter(|link| link.conn == conn) else { return };
        match (link.waiting.remove(&id), outcome) {
            (Some(waiting), outcome) => {
                let _ = waiting.send(outcome);
            }
            (None, CommandOutcome::Failed(reason)) => {
                tracing::warn!(node, reason, "a node failed to execute a command");
            }
            (None, _) => {}
        }
    }

    /// Stores a command, sends it to the connected nodes whose names match `nodes`, and waits for
    /// their outcomes. `known`: names of nodes that may be absent.
    ///
    /// # Errors
    /// [`CommandError`]: nothing was done.
    pub(crate) async fn steer(
        self: &Arc<Steering>,
        nodes: &str,
        command: NodeCommand,
        known: BTreeSet<String>,
        wait: Duration,
    ) -> Result<OperatorReply, CommandError> {
        validate(&command)?;
        let glob = matcher(nodes)?;
        let until = Instant::now() + wait;
        let (this, nodes) = (Arc::clone(self), nodes.to_owned());
        // The file is synced, which blocks.
        let storing =
            tokio::task::spawn_blocking(move || this.store_and_send(&nodes, &glob, &command, known));
        let (remembered, waiting) = storing.await??;
        let mut outcomes = Vec::new();
        for (node, waiting) in waiting {
            let outcome = match waiting {
                Err(outcome) => outcome,
                Ok(reply) => match timeout_at(until, reply).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) => CommandOutcome::Failed("its connection ended before it answered".into()),
                    Err(_) => CommandOutcome::Failed(format!("no answer within {wait:?}")),
                },
            };
            outcomes.push((node, outcome));
        }
        Ok(OperatorReply::Steered { nodes: outcomes, remembered })
    }

    fn store_and_send(
        &self,
        nodes: &str,
        glob: &GlobMatcher,
        command: &NodeCommand,
        mut known: BTreeSet<String>,
    ) -> Result<(bool, Vec<(String, PendingOutcome)>), CommandError> {
        let _one_after_the_other = lock(&self.order_lock);
        let orders = with_command(&self.orders(), nodes, command);
        let globs = matchers(orders.as_deref().unwrap_or_default())?;
        if let Some(orders) = &orders {
            if orders.len() > MAX_COMMANDS {
                return Err(CommandError::Full);
            }
            let file = || self.file.clone();
            self.save(orders).map_err(|source| CommandError::Write { file: file(), source })?;
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
                None => Err(CommandOutcome::Absent),
                Some(link) if !link.steerable => Err(CommandOutcome::Failed(
                    "the version of its log-client does not accept commands from the log-server".into(),
                )),
                Some(link) => {
                    let (reply, answer) = oneshot::channel();
                    link.send(command, Some(reply));
                    Ok(answer)
                }
            };
            waiting.push((node, answer));
        }
        Ok((orders.is_some(), waiting))
    }

    /// Replaces the file durably.
    fn save(&self, orders: &[StandingCommand]) -> std::io::Result<()> {
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

/// A pending outcome, or one that is known already.
type PendingOutcome = Result<oneshot::Receiver<CommandOutcome>, CommandOutcome>;

fn matcher(nodes: &str) -> Result<GlobMatcher, CommandError> {
    Glob::new(nodes).map(|glob| glob.compile_matcher()).map_err(CommandError::Pattern)
}

/// Compiles the patterns of nodes; matches are indices into the list.
fn matchers(orders: &[StandingCommand]) -> Result<GlobSet, CommandError> {
    let globs = orders.iter().map(|order| Glob::new(&order.nodes)).collect::<Result<Vec<_>, _>>();
    globs.and_then(GlobSet::new).map_err(CommandError::StoredPattern)
}

fn validate(command: &NodeCommand) -> Result<(), CommandError> {
    match &command.scope {
        Scope::Job(job) if job.is_empty() || job.len() > MAX_JOB_ID => {
            return Err(CommandError::JobId);
        }
        Scope::Job(_) | Scope::Pid(_) if command.action == Action::Snapshot => {
            return Err(CommandError::PartialSnapshot);
        }
        _ => {}
    }
    if matches!(&command.action, Action::Set(change) if *change == SettingsUpdate::default()) {
        return Err(CommandError::Empty);
    }
    let bytes = serde_json::to_vec(command).map_or(usize::MAX, |command| command.len());
    if bytes > MAX_COMMAND {
        return Err(CommandError::TooLarge(bytes));
    }
    Ok(())
}

/// Returns the list with one more command; `None` if the command is not stored.
fn with_command(
    orders: &[StandingCommand],
    nodes: &str,
    command: &NodeCommand,
) -> Option<Vec<StandingCommand>> {
    let NodeCommand { scope, action } = command;
    if matches!(scope, Scope::Pid(_)) {
        return None;
    }
    let (reset, change) = match action {
        Action::Snapshot => return None,
        Action::Reset => (true, SettingsUpdate::default()),
        Action::Set(change) => (false, change.clone()),
    };
    let overridden =
        |order: &StandingCommand| order.scope == *scope && (order.nodes == nodes || nodes == "*");
    let mut list = orders.to_vec();
    if reset {
        list.retain(|order| !overridden(order));
    } else {
        list.iter_mut()
            .filter(|order| overridden(order))
            .for_each(|order| order.change.remove_overridden(&change));
        list.retain(|order| order.reset || order.change != SettingsUpdate::default());
    }
    let since = now();
    list.retain(|order| {
        let over =
            order.reset && order.change == SettingsUpdate::default() && matches!(order.scope, Scope::Job(_));
        !over || since.saturating_sub(order.since) < KEEP_JOB_RESET_NS
    });
    match list.last_mut().filter(|last| last.scope == *scope && last.nodes == nodes) {
        // It was the last command for these nodes, so no command is in between.
        Some(last) => {
            last.change.merge(&change);
            last.since = since;
        }
        None => {
            list.push(StandingCommand { nodes: nodes.to_owned(), scope: scope.clone(), reset, change, since })
        }
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(scope: &Scope, change: SettingsUpdate) -> NodeCommand {
        NodeCommand { scope: scope.clone(), action: Action::Set(change) }
    }

    fn on(enabled: bool) -> SettingsUpdate {
        SettingsUpdate { enabled: Some(enabled), ..SettingsUpdate::default() }
    }

    #[test]
    fn stored_commands_survive_and_reach_later_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let steer = |steering: &Arc<Steering>, nodes: &str, command| {
            let known = BTreeSet::from(["n1".to_owned(), "n2".to_owned()]);
            runtime.block_on(steering.steer(nodes, command, known, Duration::from_millis(10)))
        };
        let steering = Steering::open(dir.path()).unwrap();
        let reply = steer(&steering, "*", set(&Scope::Node, on(false))).unwrap();
        let absent = |name: &str| (name.to_owned(), CommandOutcome::Absent);
        assert_eq!(
            reply,
            OperatorReply::Steered { nodes: vec![absent("n1"), absent("n2")], remembered: true }
        );
        let reply = steer(&steering, "n1", set(&Scope::Pid(7), on(true))).unwrap();
        assert!(matches!(reply, OperatorReply::Steered { remembered: false, .. }));
        assert!(steer(&steering, "[", set(&Scope::Node, on(false))).is_err());
        assert!(steer(&steering, "*", set(&Scope::Node, SettingsUpdate::default())).is_err());
        drop(steering);

        let steering = Steering::open(dir.path()).unwrap();
        let (out, mut sent) = mpsc::unbounded_channel();
        steering.connected("n1", ConnId(1), Version { major: 9, minor: COMMANDS_SINCE_MINOR }, out);
        let Message::Command { id, command } = sent.try_recv().unwrap() else { panic!() };
        assert_eq!(serde_json::from_slice::<NodeCommand>(&command).unwrap(), set(&Scope::Node, on(false)));
        steering.outcome("n1", ConnId(1), id, br#"{"failed":"no"}"#);
        let (out, mut sent) = mpsc::unbounded_channel();
        steering.connected("n2", ConnId(2), Version { major: 9, minor: COMMANDS_SINCE_MINOR - 1 }, out);
        assert!(sent.try_recv().is_err(), "an old log-client does not accept commands");
        drop(steering);

        let steering = Steering::open(dir.path()).unwrap();
        let _ = steer(&steering, "n2", set(&Scope::Node, on(true))).unwrap();
        let count_sent = |node| {
            let (out, mut sent) = mpsc::unbounded_channel();
            steering.connected(node, ConnId(3), Version { major: 9, minor: COMMANDS_SINCE_MINOR }, out);
            std::iter::from_fn(|| sent.try_recv().ok()).count()
        };
        assert_eq!((count_sent("n1"), count_sent("n2")), (1, 2), "the commands before and after the restart");
        let orders = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        std::fs::write(dir.path().join(FILE), orders.replace("n2", "[n2")).unwrap();
        let error = Steering::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("[n2") && error.contains("remove it"), "{error}");
        std::fs::write(dir.path().join(FILE), "nonsense").unwrap();
        assert!(matches!(Steering::open(dir.path()), Err(Error::Orders { .. })));
    }

    /// Settings of a node after all commands for it.
    fn holds(orders: &[StandingCommand], node: &str) -> SettingsUpdate {
        let mine = orders.iter().filter(|order| matcher(&order.nodes).unwrap().is_match(node));
        mine.fold(SettingsUpdate::default(), |mut holds, order| {
            if order.reset {
                holds = SettingsUpdate::default();
            }
            holds.merge(&order.change);
            holds
        })
    }

    proptest! {
        /// Dropping overridden commands changes nothing for any node.
        #[test]
        fn dropped_commands_change_nothing(commands in prop::collection::vec((0..4usize, any::<bool>(), 0..4u64), 0..20)) {
            let globs = ["*", "n1", "n*", "n2"];
            let (mut short, mut long) = (Vec::new(), Vec::new());
            for (glob, enabled, what) in commands {
                let change = match what {
                    0 => SettingsUpdate::default(),
                    1 => on(enabled),
                    2 => SettingsUpdate { min_duration_ns: Some(u64::from(enabled)), ..SettingsUpdate::default() },
                    _ => SettingsUpdate { sample: Some("1/2".into()), ..on(enabled) },
                };
                let (nodes, reset) = (globs[glob], what == 0);
                let action = if reset { Action::Reset } else { Action::Set(change.clone()) };
                short = with_command(&short, nodes, &NodeCommand { scope: Scope::Node, action }).unwrap();
                long.push(StandingCommand { nodes: nodes.into(), scope: Scope::Node, reset, change, since: 0 });
            }
            for node in ["n1", "n2", "n3", "other"] {
                prop_assert_eq!(holds(&short, node), holds(&long, node), "{}", node);
            }
            // For each of the four globs, a reset and one command for each of the three settings.
            prop_assert!(short.len() <= 16);
        }
    }
}

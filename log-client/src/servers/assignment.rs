//! Decides which log-server gets the new records of this node, and moves its streams there.
//!
//! | event | what happens |
//! |---|---|
//! | start without a spool | the preferred log-server |
//! | restart | the log-server of the last spool; then the rules below |
//! | the log-server is no longer in the configuration | the first one that answers, in order of preference |
//! | no connection for `fail_over_after` | the first other one that answers, in order of preference |
//! | the preferred log-server answers for `fail_over_after`, and has got all that was left for it | back to it |
//!
//! Without `fail_over_after` a node waits for its log-server. It goes to its preferred one, for
//! instance one that was added, as soon as that answers. A node returns to its preferred log-server
//! because otherwise one restart of a log-server would leave it without nodes for good.

use super::delivery::Delivery;
use super::members::Members;
use super::probe::probe;
use super::rules::{Rules, Step};
use super::spool_dirs::SpoolDirs;
use super::spools::{NumberedSpool, Spools};
use crate::client::Switcher;
use crate::clock::NodeClock;
use crate::error::Error;
use crate::ship::{NodeServices, Peer};
use crate::spool::Writer;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// What the log-client has of its log-servers.
#[derive(Debug)]
pub(crate) struct ServerSet {
    pub(crate) members: Arc<Members>,
    pub(crate) dirs: SpoolDirs,
    pub(crate) fail_over_after: Option<Duration>,
}

/// Delivers all spools, and decides for which log-server the next records are.
pub(crate) struct Assignment {
    pub(crate) set: ServerSet,
    pub(crate) spools: Arc<Spools>,
    /// A peer of the set; each log-server has its own address.
    pub(crate) peer: Peer,
    pub(crate) clock: NodeClock,
    pub(crate) services: NodeServices,
    pub(crate) switcher: Switcher,
}

/// State of the decision, and of the deliveries.
struct State {
    rules: Rules,
    tasks: JoinSet<Result<(), Error>>,
    /// By address.
    running: HashMap<String, AbortHandle>,
    /// The last conflict that was logged.
    conflict: Option<String>,
}

impl Assignment {
    /// Delivers until all spools have ended and are acknowledged.
    ///
    /// # Errors
    /// [`Error::Set`] if two log-servers cannot be in one set, before anything is sent;
    /// [`Error::System`].
    pub(crate) async fn run(self) -> Result<(), Error> {
        self.check_set().await?;
        let mut state = State {
            rules: Rules::new(self.set.fail_over_after, Instant::now()),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            conflict: None,
        };
        let mut by_server: BTreeMap<String, Vec<NumberedSpool>> = BTreeMap::new();
        for spool in self.spools.all() {
            by_server.entry(spool.server.clone()).or_default().push(spool);
        }
        for server in by_server.keys() {
            self.deliver(server, &mut state);
        }
        self.log_others();
        loop {
            tokio::select! {
                ended = state.tasks.join_next() => match ended {
                    None => return Ok(()),
                    // Aborted: another task delivers the spools of this log-server.
                    Some(Err(_)) => {}
                    Some(Ok(result)) => result?,
                },
                () = sleep(state.rules.probe_every()), if !self.switcher.is_stopping() => {
                    self.consider(&mut state).await;
                }
            }
        }
    }

    /// Asks all log-servers for their identity. Those that do not answer are asked later.
    async fn check_set(&self) -> Result<(), Error> {
        let mut probes = JoinSet::new();
        for server in self.set.members.order() {
            let peer = self.peer.at(server);
            probes.spawn(async move { (probe(&peer).await, peer.server) });
        }
        while let Some(answer) = probes.join_next().await {
            let Ok((Ok(identity), server)) = answer else { continue };
            if let Some(reason) = self.set.members.note(&server, identity) {
                return Err(Error::Set { reason });
            }
        }
        Ok(())
    }

    /// Starts the task that delivers the spools of a log-server, in place of an earlier one.
    fn deliver(&self, server: &str, state: &mut State) {
        if let Some(task) = state.running.remove(server) {
            task.abort();
        }
        let queue: Vec<NumberedSpool> =
            self.spools.all().into_iter().filter(|spool| spool.server == server).collect();
        let is_current = self.spools.current().server == server;
        let delivery = Delivery {
            peer: self.peer.at(server),
            queue,
            services: is_current.then(|| self.services.clone()),
            spools: Arc::clone(&self.spools),
            dirs: self.set.dirs.clone(),
            clock: self.clock.clone(),
        };
        let task = state.tasks.spawn(delivery.run());
        state.running.insert(server.to_owned(), task);
    }

    /// Moves to another log-server if the rules say so.
    async fn consider(&self, state: &mut State) {
        let current = self.spools.current().server;
        let order = self.set.members.order();
        let now = Instant::now();
        let is_connected = self.services.reporter.is_connected();
        match state.rules.next_step(&current, is_connected, order, now) {
            Step::Stay => {}
            Step::Leave { reason } => {
                for server in order.iter().filter(|server| **server != current) {
                    if self.answers(server, state).await && !self.has_leftovers(server) {
                        return self.switch(server, reason, state).await;
                    }
                }
            }
            Step::AskPreferred(preferred) => {
                let answers = self.answers(preferred, state).await;
                let may_return = state.rules.preferred_answered(answers, now, Instant::now());
                if may_return && !self.has_leftovers(preferred) {
                    self.switch(preferred, "it is the preferred one", state).await;
                }
            }
        }
    }

    /// True if a spool waits for this log-server. A new one must not overtake it.
    fn has_leftovers(&self, server: &str) -> bool {
        self.spools.all().iter().any(|spool| spool.server == server)
    }

    /// True if the log-server answers and can be in the set.
    async fn answers(&self, server: &str, state: &mut State) -> bool {
        let identity = match probe(&self.peer.at(server)).await {
            Ok(identity) => identity,
            Err(error) => {
                tracing::debug!(server, %error, "a log-server does not answer");
                return false;
            }
        };
        let conflict = self.set.members.note(server, identity);
        let answers = conflict.is_none();
        if let Some(reason) = conflict.as_ref().filter(|conflict| Some(*conflict) != state.conflict.as_ref())
        {
            tracing::error!(reason, "a log-server is not used");
        }
        state.conflict = conflict.or(state.conflict.take());
        answers
    }

    /// Moves all streams to a log-server.
    async fn switch(&self, server: &str, reason: &str, state: &mut State) {
        let from = self.spools.current();
        let number = from.number + 1;
        match self.try_switch(server, number).await {
            Err(error) => {
                if !self.switcher.is_stopping() {
                    tracing::error!(server, %error, "cannot change the log-server");
                }
                self.set.dirs.discard(number);
            }
            Ok(()) => {
                tracing::warn!(
                    from = from.server,
                    to = server,
                    reason,
                    left = from.spool.left(),
                    spool = %from.spool.path().display(),
                    "new records go to another log-server; what is left for the old one waits for it"
                );
                self.services.disconnected();
                self.deliver(&from.server, state);
                self.deliver(server, state);
                state.rules.changed(Instant::now());
            }
        }
    }

    async fn try_switch(&self, server: &str, number: u64) -> Result<(), Error> {
        let spool = Arc::new(self.set.dirs.create(number)?);
        let writer = Writer::new(Arc::clone(&spool), None);
        let added = NumberedSpool { server: server.to_owned(), number, spool };
        let (dirs, spools) = (self.set.dirs.clone(), Arc::clone(&self.spools));
        let commit = move || {
            dirs.commit(number, &added.server)?;
            spools.add(added);
            Ok(())
        };
        self.switcher.switch(writer, Box::new(commit)).await
    }

    /// Names the messages that wait for other log-servers.
    fn log_others(&self) {
        for other in self.spools.others() {
            let gone = !self.set.members.order().contains(&other.server);
            tracing::warn!(
                server = other.server,
                messages = other.messages,
                bytes = other.bytes,
                spool = other.path,
                in_configuration = !gone,
                "messages wait for an earlier log-server of this node"
            );
        }
    }
}

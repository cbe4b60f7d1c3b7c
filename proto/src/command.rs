//! What an operator asks of the log-server, and the log-server of nodes: JSON, as in [`crate::status`].

use crate::activity::{ActivityWindow, ClusterActivity};
use crate::status::ClusterStatus;
use serde::{Deserialize, Serialize};

/// Longest request of an operator, and longest order to a node, bytes.
pub const MAX_COMMAND: usize = 3 << 10;
/// Longest job id that an order can name, bytes.
pub const MAX_JOB_ID: usize = 255;

/// A change of what is recorded: what is `None` stays as it is. Choices are in the words of `miot ctl set`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsUpdate {
    /// On or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// Operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<String>,
    /// Requests that take less are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_duration_ns: Option<u64>,
    /// `1/16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
    /// When a lane is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_full: Option<String>,
    /// Longest wait of `wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
    /// Keep the latest, until a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flight_recorder: Option<bool>,
}

/// Which programs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All, but those of which something else was said.
    #[default]
    Node,
    /// Those of a job, also those that start later.
    Job(String),
    /// One, by its process id as the node sees it.
    Pid(u32),
}

/// What a node is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Change what is recorded.
    Set(SettingsUpdate),
    /// Of the node: as its configuration has it. Of a job or process: no exception any more.
    Reset,
    /// Deliver what the lanes hold now, and say when it is read.
    Snapshot,
}

/// An order to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCommand {
    /// Whom it is about.
    pub scope: Scope,
    /// What to do.
    pub action: Action,
}

/// What the log-server remembers and tells each node that comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingCommand {
    /// Glob of the names of nodes.
    pub nodes: String,
    /// Never [`Scope::Pid`]: a process does not come again.
    pub scope: Scope,
    /// First everything becomes as the node's configuration has it; of a job: it is no exception.
    #[serde(default)]
    pub reset: bool,
    /// What holds then.
    pub change: SettingsUpdate,
    /// When it was last changed, nanoseconds since 1970.
    pub since: i64,
}

/// What became of an errand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandOutcome {
    /// Done, and what holds now, for people.
    Done(String),
    /// Not done, and why.
    Failed(String),
    /// The node is not connected. With a remembered order: done when it comes.
    Absent,
}

/// What somebody asks of the log-server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorRequest {
    /// How is the cluster? For readers as well.
    Status,
    /// What happens? For readers as well.
    Watch {
        /// Over which time.
        window: ActivityWindow,
        /// Rows of each kind.
        top: u32,
        /// Seconds of a step of the history.
        step: u32,
        /// How many steps.
        steps: u32,
    },
    /// For operators.
    Steer {
        /// Glob of the names of nodes.
        nodes: String,
        /// What each is to do.
        #[serde(rename = "errand")]
        command: NodeCommand,
        /// How long to wait for nodes, milliseconds.
        #[serde(rename = "patience_ms")]
        timeout_ms: u64,
    },
}

/// The log-server's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorReply {
    /// To [`OperatorRequest::Status`].
    Status(Box<ClusterStatus>),
    /// To [`OperatorRequest::Watch`].
    Watched(Box<ClusterActivity>),
    /// To [`OperatorRequest::Steer`].
    Steered {
        /// By name.
        nodes: Vec<(String, CommandOutcome)>,
        /// It is remembered for nodes that come.
        remembered: bool,
    },
    /// The request was not taken, and why.
    Refused(String),
}

impl SettingsUpdate {
    /// Takes from `later` what it says.
    pub fn merge(&mut self, later: &SettingsUpdate) {
        let SettingsUpdate { enabled, layers, ops, min_duration_ns, sample, when_full, wait_ns, flight_recorder } =
            later.clone();
        self.enabled = enabled.or(self.enabled);
        self.layers = layers.or(self.layers.take());
        self.ops = ops.or(self.ops.take());
        self.min_duration_ns = min_duration_ns.or(self.min_duration_ns);
        self.sample = sample.or(self.sample.take());
        self.when_full = when_full.or(self.when_full.take());
        self.wait_ns = wait_ns.or(self.wait_ns);
        self.flight_recorder = flight_recorder.or(self.flight_recorder);
    }

    /// Says nothing any more of what `later` says.
    pub fn remove_overridden(&mut self, later: &SettingsUpdate) {
        fn unless<T>(mine: &mut Option<T>, theirs: bool) {
            if theirs {
                *mine = None;
            }
        }
        unless(&mut self.enabled, later.enabled.is_some());
        unless(&mut self.layers, later.layers.is_some());
        unless(&mut self.ops, later.ops.is_some());
        unless(&mut self.min_duration_ns, later.min_duration_ns.is_some());
        unless(&mut self.sample, later.sample.is_some());
        unless(&mut self.when_full, later.when_full.is_some());
        unless(&mut self.wait_ns, later.wait_ns.is_some());
        unless(&mut self.flight_recorder, later.flight_recorder.is_some());
    }
}

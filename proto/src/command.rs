//! Requests of operators to the log-server, and commands of the log-server to nodes. They are JSON,
//! with the rules of [`crate::status`].

use crate::activity::{ActivityWindow, ClusterActivity};
use crate::status::ClusterStatus;
use serde::{Deserialize, Serialize};

/// Maximum size of an operator's request and of a command to a node, bytes.
pub const MAX_COMMAND: usize = 3 << 10;
/// Maximum length of a job id in a command, bytes.
pub const MAX_JOB_ID: usize = 255;

/// Update of settings: a field that is `None` leaves its setting unchanged. The texts are those of
/// `miot ctl set`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsUpdate {
    /// Recording on or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Recorded layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// Recorded operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<String>,
    /// Minimum duration of recorded requests, nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_duration_ns: Option<u64>,
    /// Fraction of the requests that is recorded, e.g. `1/16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
    /// Policy for a full lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_full: Option<String>,
    /// Longest wait of the policy `wait`, nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
    /// Flight recorder on or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flight_recorder: Option<bool>,
}

/// Programs of a node to which a command applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All programs except those with settings of their own.
    #[default]
    Node,
    /// All processes of a job with this id, including later ones.
    Job(String),
    /// One process, by its process id in the PID namespace of the node.
    Pid(u32),
}

/// Action of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Change what is recorded.
    Set(SettingsUpdate),
    /// Restore the settings of the node's configuration; for a job or process, remove its
    /// exception.
    Reset,
    /// Read the current content of all lanes, and report when that is done.
    Snapshot,
}

/// Command to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCommand {
    /// Programs to which it applies.
    pub scope: Scope,
    /// Action.
    pub action: Action,
}

/// Command that the log-server stores and sends to each matching node that connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingCommand {
    /// Glob pattern of node names.
    pub nodes: String,
    /// Programs to which it applies. Never [`Scope::Pid`]: a process does not start again.
    pub scope: Scope,
    /// Restore the settings of the node's configuration first; for a job, remove its exception.
    #[serde(default)]
    pub reset: bool,
    /// Update of the settings.
    pub change: SettingsUpdate,
    /// Time of the last change, nanoseconds since 1970.
    pub since: i64,
}

/// Outcome of a command on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandOutcome {
    /// Success, with a text about the current settings.
    Done(String),
    /// Failure, with its reason.
    Failed(String),
    /// The node is not connected. If the command is stored, the node executes it when it connects.
    Absent,
}

/// Request to the log-server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorRequest {
    /// Requests the state of the cluster. Allowed for readers as well.
    Status,
    /// Requests the current activity. Allowed for readers as well.
    Watch {
        /// Time span of the snapshot.
        window: ActivityWindow,
        /// Number of rows by each criterion, per group.
        top: u32,
        /// Length of a step of the history, seconds.
        step: u32,
        /// Number of steps of the history.
        steps: u32,
    },
    /// Sends a command to nodes. Allowed for operators only.
    Steer {
        /// Glob pattern of node names.
        nodes: String,
        /// Command for each matching node.
        #[serde(rename = "errand")]
        command: NodeCommand,
        /// Maximum time to wait for the outcomes, milliseconds.
        #[serde(rename = "patience_ms")]
        timeout_ms: u64,
    },
}

/// Reply of the log-server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorReply {
    /// Reply to [`OperatorRequest::Status`].
    Status(Box<ClusterStatus>),
    /// Reply to [`OperatorRequest::Watch`].
    Watched(Box<ClusterActivity>),
    /// Reply to [`OperatorRequest::Steer`].
    Steered {
        /// Outcomes by name of the node.
        nodes: Vec<(String, CommandOutcome)>,
        /// The command is stored for nodes that connect later.
        remembered: bool,
    },
    /// The request was refused, with the reason.
    Refused(String),
}

impl SettingsUpdate {
    /// Applies `later` on top: its fields that are not `None` replace those of this update.
    pub fn merge(&mut self, later: &SettingsUpdate) {
        let SettingsUpdate {
            enabled,
            layers,
            ops,
            min_duration_ns,
            sample,
            when_full,
            wait_ns,
            flight_recorder,
        } = later.clone();
        self.enabled = enabled.or(self.enabled);
        self.layers = layers.or(self.layers.take());
        self.ops = ops.or(self.ops.take());
        self.min_duration_ns = min_duration_ns.or(self.min_duration_ns);
        self.sample = sample.or(self.sample.take());
        self.when_full = when_full.or(self.when_full.take());
        self.wait_ns = wait_ns.or(self.wait_ns);
        self.flight_recorder = flight_recorder.or(self.flight_recorder);
    }

    /// Sets the fields to `None` that are not `None` in `later`.
    pub fn remove_overridden(&mut self, later: &SettingsUpdate) {
        fn clear_if_set<T>(field: &mut Option<T>, later: &Option<T>) {
            if later.is_some() {
                *field = None;
            }
        }
        clear_if_set(&mut self.enabled, &later.enabled);
        clear_if_set(&mut self.layers, &later.layers);
        clear_if_set(&mut self.ops, &later.ops);
        clear_if_set(&mut self.min_duration_ns, &later.min_duration_ns);
        clear_if_set(&mut self.sample, &later.sample);
        clear_if_set(&mut self.when_full, &later.when_full);
        clear_if_set(&mut self.wait_ns, &later.wait_ns);
        clear_if_set(&mut self.flight_recorder, &later.flight_recorder);
    }
}

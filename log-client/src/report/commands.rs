//! Executes commands of the log-server.

use super::lock;
use crate::config::recording::{ChoiceError, SettingsChange, parse_when_full, settings_summary};
use crate::directory::{Control, ControlError, ExceptionError};
use crate::survey::Survey;
use miot_proto::command::{self, Action, CommandOutcome, NodeCommand, Scope};
use miot_proto::wire::Message;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// Maximum wait for a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);

/// Executes commands one after the other.
#[derive(Debug)]
pub(crate) struct CommandHandler {
    control: Arc<Control>,
    survey: Arc<Mutex<Survey>>,
    /// Held while a command is executed.
    busy: Arc<tokio::sync::Mutex<()>>,
}

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("no traced process of this node has this id")]
    NoSuchProcess,
    #[error("snapshot {0} was not taken in time")]
    SnapshotTimeout(u64),
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Exception(#[from] ExceptionError),
}

impl CommandHandler {
    pub(crate) fn new(control: Arc<Control>, survey: Arc<Mutex<Survey>>) -> Arc<CommandHandler> {
        Arc::new(CommandHandler { control, survey, busy: Arc::default() })
    }

    /// Parses and starts a command; its outcome is passed to `out`.
    pub(crate) fn start(
        self: &Arc<CommandHandler>,
        id: u64,
        command: &[u8],
        out: impl FnOnce(Message) + Send + 'static,
    ) {
        let parsed = serde_json::from_slice::<NodeCommand>(command);
        let handler = Arc::clone(self);
        tokio::spawn(async move {
            let _busy = Arc::clone(&handler.busy).lock_owned().await;
            // Execution waits for locks, and a snapshot for the sweeper.
            let execution = tokio::task::spawn_blocking(move || match parsed {
                Ok(command) => handler.run(&command),
                Err(error) => {
                    CommandOutcome::Failed(format!("this log-client does not know the command: {error}"))
                }
            });
            let outcome = execution.await.unwrap_or_else(|error| CommandOutcome::Failed(error.to_string()));
            if let Ok(outcome) = serde_json::to_vec(&outcome) {
                out(Message::Outcome { id, outcome });
            }
        });
    }

    fn run(&self, command: &NodeCommand) -> CommandOutcome {
        match self.try_run(command) {
            Ok(done) => {
                tracing::info!(scope = ?command.scope, done, "command of the log-server executed");
                CommandOutcome::Done(done)
            }
            Err(error) => CommandOutcome::Failed(error.to_string()),
        }
    }

    fn try_run(&self, command: &NodeCommand) -> Result<String, CommandError> {
        let control = &self.control;
        match (&command.scope, &command.action) {
            (Scope::Node, Action::Set(change)) => {
                let settings = control.change(&from_wire(change)?)?;
                Ok(settings_summary(&settings))
            }
            (Scope::Node, Action::Reset) => Ok(settings_summary(&control.reset()?)),
            (_, Action::Snapshot) => {
                let snapshot = control.request_snapshot();
                let done = control.wait_for_snapshot(snapshot, SNAPSHOT_TIMEOUT);
                let done = done.ok_or(CommandError::SnapshotTimeout(snapshot))?;
                Ok(format!("snapshot {snapshot}, {} records read", done.events))
            }
            (scope, Action::Set(change)) => {
                let nonces = self.processes(scope);
                if nonces.is_empty() && matches!(scope, Scope::Pid(_)) {
                    return Err(CommandError::NoSuchProcess);
                }
                let settings = control.set_exception(scope, &nonces, &from_wire(change)?)?;
                let (count, now) = (nonces.len(), if matches!(scope, Scope::Job(_)) { " now" } else { "" });
                let processes = if count == 1 { "process" } else { "processes" };
                Ok(format!("{count} {processes}{now}: {}", settings_summary(&settings)))
            }
            (scope, Action::Reset) => Ok(match control.remove_exception(scope)? {
                true => "as the node".to_owned(),
                false => "as the node already".to_owned(),
            }),
        }
    }

    /// The processes in a scope, by the random numbers of their segments.
    fn processes(&self, scope: &Scope) -> Vec<u64> {
        let survey = lock(&self.survey);
        let in_scope = survey.processes.iter().filter(|process| match scope {
            Scope::Job(job) => process.job == job.as_bytes(),
            Scope::Pid(pid) => process.pid == *pid,
            Scope::Node => true,
        });
        in_scope.map(|process| process.nonce).collect()
    }
}

/// Outcomes of commands that wait to be sent to the log-server.
#[derive(Debug, Default)]
pub(crate) struct OutcomeQueue {
    waiting: Mutex<Vec<Message>>,
}

impl OutcomeQueue {
    /// Appends a message, and notifies the sender.
    pub(crate) fn push(&self, message: Message, news: &Notify) {
        lock(&self.waiting).push(message);
        news.notify_one();
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *lock(&self.waiting))
    }
}

/// Converts a change from its wire form.
fn from_wire(change: &command::SettingsUpdate) -> Result<SettingsChange, ChoiceError> {
    fn parsed<T: FromStr<Err = ChoiceError>>(text: &Option<String>) -> Result<Option<T>, ChoiceError> {
        text.as_deref().map(str::parse).transpose()
    }
    Ok(SettingsChange {
        enabled: change.enabled,
        layers: parsed(&change.layers)?,
        ops: parsed(&change.ops)?,
        min_duration: change.min_duration_ns.map(Duration::from_nanos),
        sample: parsed(&change.sample)?,
        when_full: change.when_full.as_deref().map(parse_when_full).transpose()?,
        wait: change.wait_ns.map(Duration::from_nanos),
        flight_recorder: change.flight_recorder,
    })
}

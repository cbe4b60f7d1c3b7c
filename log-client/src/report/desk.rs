//! What the log-server wants done, and doing it.

use super::{Survey, lock};
use crate::config::recorded::{Change, in_short, parse_when_full};
use crate::home::Control;
use miot_proto::steer::{self, Action, Errand, Outcome, Scope};
use miot_proto::wire::Message;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// Longest wait for a snapshot.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(60);

/// See the module. Errands are done one after the other.
#[derive(Debug)]
pub(crate) struct Desk {
    control: Arc<Control>,
    survey: Arc<Mutex<Survey>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Desk {
    pub(crate) fn new(control: Arc<Control>, survey: Arc<Mutex<Survey>>) -> Arc<Desk> {
        Arc::new(Desk { control, survey, turn: Arc::default() })
    }

    /// Takes an errand; what became of it is put into `out`, and `news` told.
    pub(crate) fn take(self: &Arc<Desk>, id: u64, errand: &[u8], out: impl FnOnce(Message) + Send + 'static) {
        let parsed = serde_json::from_slice::<Errand>(errand);
        let desk = Arc::clone(self);
        tokio::spawn(async move {
            let _turn = Arc::clone(&desk.turn).lock_owned().await;
            // It waits for locks, and a snapshot for the sweeper.
            let doing = tokio::task::spawn_blocking(move || match parsed {
                Ok(errand) => desk.run(&errand),
                Err(error) => Outcome::Failed(format!("this log-client does not understand: {error}")),
            });
            let outcome = doing.await.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
            if let Ok(outcome) = serde_json::to_vec(&outcome) {
                out(Message::Outcome { id, outcome });
            }
        });
    }

    fn run(&self, errand: &Errand) -> Outcome {
        match self.try_run(errand) {
            Ok(done) => {
                tracing::info!(scope = ?errand.scope, done, "steered by the log-server");
                Outcome::Done(done)
            }
            Err(reason) => Outcome::Failed(reason),
        }
    }

    fn try_run(&self, errand: &Errand) -> Result<String, String> {
        let control = &self.control;
        match (&errand.scope, &errand.action) {
            (Scope::Node, Action::Set(change)) => {
                let settings = control.change(&understood(change)?).map_err(|error| error.to_string())?;
                Ok(in_short(&settings))
            }
            (Scope::Node, Action::Reset) => {
                control.reset().map(|settings| in_short(&settings)).map_err(|error| error.to_string())
            }
            (_, Action::Snapshot) => {
                let snapshot = control.request_snapshot();
                let done = control.wait_for_snapshot(snapshot, SNAPSHOT_WITHIN);
                let done = done.ok_or_else(|| format!("snapshot {snapshot} was not taken in time"))?;
                Ok(format!("snapshot {snapshot}, {} records read", done.events))
            }
            (scope, Action::Set(change)) => {
                let nonces = self.processes(scope);
                if nonces.is_empty() && matches!(scope, Scope::Pid(_)) {
                    return Err("no traced process has this id here".into());
                }
                let settings = control.except(scope, &nonces, &understood(change)?)?;
                let (count, now) = (nonces.len(), if matches!(scope, Scope::Job(_)) { " now" } else { "" });
                let processes = if count == 1 { "process" } else { "processes" };
                Ok(format!("{count} {processes}{now}: {}", in_short(&settings)))
            }
            (scope, Action::Reset) => Ok(match control.end_exception(scope)? {
                true => "as the node".to_owned(),
                false => "as the node, as before".to_owned(),
            }),
        }
    }

    /// The processes that are meant, by the random numbers of their segments.
    fn processes(&self, scope: &Scope) -> Vec<u64> {
        let survey = lock(&self.survey);
        let meant = survey.segments.iter().filter(|known| match scope {
            Scope::Job(job) => known.job == job.as_bytes(),
            Scope::Pid(pid) => known.pid == *pid,
            Scope::Node => true,
        });
        meant.map(|known| known.nonce).collect()
    }
}

/// Answers on their way to the log-server.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: Mutex<Vec<Message>>,
}

impl Answers {
    pub(crate) fn put(&self, message: Message, news: &Notify) {
        lock(&self.waiting).push(message);
        news.notify_one();
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *lock(&self.waiting))
    }
}

/// The change in this program's terms.
fn understood(change: &steer::Change) -> Result<Change, String> {
    fn parsed<T: std::str::FromStr<Err: ToString>>(text: &Option<String>) -> Result<Option<T>, String> {
        text.as_deref().map(|text| text.parse::<T>().map_err(|error| error.to_string())).transpose()
    }
    let when_full = change.when_full.as_deref().map(parse_when_full).transpose();
    Ok(Change {
        enabled: change.enabled,
        layers: parsed(&change.layers)?,
        ops: parsed(&change.ops)?,
        min_duration: change.min_duration_ns.map(Duration::from_nanos),
        sample: parsed(&change.sample)?,
        when_full: when_full.map_err(|error| error.to_string())?,
        wait: change.wait_ns.map(Duration::from_nanos),
        flight_recorder: change.flight_recorder,
    })
}

//! What is recorded of some jobs and processes, otherwise than of the node: entries of the control page.
//!
//! The list is this log-client's; a predecessor's entries end with it, as all that was not in its configuration.

use super::control::{Control, Turn};
use crate::config::recorded::Change;
use miot_proto::control::{
    EXCEPTION_BYTES, ExceptionKind, MOST_EXCEPTIONS, Settings, exception, job_key, word,
};
use miot_proto::steer::Scope;
use std::collections::HashSet;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// One job or process.
#[derive(Clone, Debug)]
pub(crate) struct Exception {
    /// A job, or a process id.
    pub(crate) scope: Scope,
    /// Random number of the process's segment, of a process.
    pub(crate) nonce: Option<u64>,
    /// What holds for it.
    pub(crate) settings: Settings,
}

impl Exception {
    fn kind_and_key(&self) -> (ExceptionKind, u64) {
        match (&self.scope, self.nonce) {
            (Scope::Job(job), _) => (ExceptionKind::Job, job_key(job.as_bytes())),
            (_, nonce) => (ExceptionKind::Process, nonce.unwrap_or(0)),
        }
    }
}

impl Control {
    /// What holds for whom, apart from the node.
    pub(crate) fn exceptions(&self) -> Vec<Exception> {
        self.list().clone()
    }

    /// From now on something else is recorded of a job, or of the processes with these random numbers. What the change does
    /// not say stays, at first what holds for the node.
    ///
    /// # Errors
    /// Why nothing is changed.
    pub(crate) fn except(&self, scope: &Scope, nonces: &[u64], change: &Change) -> Result<Settings, String> {
        if change.when_full.is_some() || change.wait.is_some() || change.flight_recorder.is_some() {
            return Err(
                "--when-full, --wait and --flight-recorder are the node's: leave --job and --pid out".into(),
            );
        }
        let turn = self.open_turn().map_err(|error| error.to_string())?;
        let mut list = self.list();
        let mut changed = list.clone();
        let wanted: Vec<Option<u64>> = match scope {
            Scope::Job(_) => vec![None],
            _ => nonces.iter().copied().map(Some).collect(),
        };
        let mut holds = self.settings();
        for nonce in wanted {
            let at = changed.iter().position(|known| known.scope == *scope && known.nonce == nonce);
            let at = at.unwrap_or_else(|| {
                changed.push(Exception { scope: scope.clone(), nonce, settings: self.settings() });
                changed.len() - 1
            });
            change.apply_to(&mut changed[at].settings).map_err(|error| error.to_string())?;
            holds = changed[at].settings.clone();
        }
        if changed.len() > MOST_EXCEPTIONS {
            return Err(format!(
                "a node has at most {MOST_EXCEPTIONS} jobs and processes of which something else is recorded; end some \
                 with `miot ctl --server HOST:PORT reset --job ID`"
            ));
        }
        *list = changed;
        self.put_exceptions(&turn, &list);
        Ok(holds)
    }

    /// From now on what holds for the node holds for these as well. False: that was so.
    ///
    /// # Errors
    /// Why nothing is changed.
    pub(crate) fn end_exception(&self, scope: &Scope) -> Result<bool, String> {
        self.keep_exceptions(|known| known.scope != *scope)
    }

    /// Forgets processes that are not there any more.
    pub(crate) fn forget_ended(&self, there: &HashSet<u64>) {
        let _ = self.keep_exceptions(|known| known.nonce.is_none_or(|nonce| there.contains(&nonce)));
    }

    fn keep_exceptions(&self, stays: impl Fn(&Exception) -> bool) -> Result<bool, String> {
        if self.list().iter().all(&stays) {
            return Ok(false);
        }
        let turn = self.open_turn().map_err(|error| error.to_string())?;
        let mut list = self.list();
        list.retain(stays);
        self.put_exceptions(&turn, &list);
        Ok(true)
    }

    /// Writes the table, and what follows from there being one.
    fn put_exceptions(&self, _: &Turn<'_>, list: &[Exception]) {
        for entry in 0..MOST_EXCEPTIONS {
            let at = word::EXCEPTION + entry * EXCEPTION_BYTES;
            self.put(at + exception::KIND, 0);
            let Some(exception) = list.get(entry) else { continue };
            for (offset, value) in exception.settings.exception_words(self.tsc_hz()) {
                self.put(at + offset, value);
            }
            let (kind, key) = exception.kind_and_key();
            self.put(at + exception::KEY, key);
            self.put(at + exception::KIND, kind as u64);
        }
        self.put(word::EXCEPTED, list.len() as u64);
        let changes = self.page.word(word::EXCEPTIONS);
        changes.store(changes.load(Relaxed).wrapping_add(1).max(1), Release);
        self.page.store(&Settings { excepted: !list.is_empty(), ..self.settings() }, self.tsc_hz());
        self.wake();
    }

    fn put(&self, at: usize, value: u64) {
        self.page.word(at).store(value, Release);
    }
}

//! Exceptions: settings of single jobs and processes that differ from the node's. They are entries
//! of the control page.
//!
//! The list belongs to this log-client. A predecessor's entries end with it, like all settings that
//! were not in its configuration.

use super::control::{Control, SettingsLock};
use super::error::{ControlError, ExceptionError};
use crate::config::recording::SettingsChange;
use miot_proto::command::Scope;
use miot_proto::control::{
    EXCEPTION_BYTES, ExceptionKind, MAX_EXCEPTIONS, Settings, exception, job_key, word,
};
use std::collections::HashSet;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Exception for one job or process.
#[derive(Clone, Debug)]
pub(crate) struct Exception {
    /// A job, or a process id.
    pub(crate) scope: Scope,
    /// For a process: the random number of its segment.
    pub(crate) nonce: Option<u64>,
    /// The settings that apply.
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
    /// All exceptions.
    pub(crate) fn exceptions(&self) -> Vec<Exception> {
        self.list().clone()
    }

    /// Changes the settings of a job, or of the processes with these random numbers. Settings that
    /// are not in `change` stay, initially those of the node. Returns the settings that apply now.
    ///
    /// # Errors
    /// [`ExceptionError`]; then nothing is changed.
    pub(crate) fn set_exception(
        &self,
        scope: &Scope,
        nonces: &[u64],
        change: &SettingsChange,
    ) -> Result<Settings, ExceptionError> {
        if change.when_full.is_some() || change.wait.is_some() || change.flight_recorder.is_some() {
            return Err(ExceptionError::NodeSetting);
        }
        let lock = self.lock_if_open()?;
        let mut list = self.list();
        let mut changed = list.clone();
        let wanted: Vec<Option<u64>> = match scope {
            Scope::Job(_) => vec![None],
            _ => nonces.iter().copied().map(Some).collect(),
        };
        let mut settings = self.settings();
        for nonce in wanted {
            let at = changed.iter().position(|known| known.scope == *scope && known.nonce == nonce);
            let at = at.unwrap_or_else(|| {
                changed.push(Exception { scope: scope.clone(), nonce, settings: self.settings() });
                changed.len() - 1
            });
            change.apply_to(&mut changed[at].settings).map_err(ControlError::Choice)?;
            settings = changed[at].settings.clone();
        }
        if changed.len() > MAX_EXCEPTIONS {
            return Err(ExceptionError::TooMany);
        }
        *list = changed;
        self.store_exceptions(&lock, &list);
        Ok(settings)
    }

    /// Removes the exceptions of a scope, so that the node's settings apply. Returns false if there
    /// were none.
    ///
    /// # Errors
    /// [`ControlError`]; then nothing is changed.
    pub(crate) fn remove_exception(&self, scope: &Scope) -> Result<bool, ControlError> {
        self.retain_exceptions(|known| known.scope != *scope)
    }

    /// Removes the exceptions of processes that have ended.
    pub(crate) fn forget_ended(&self, there: &HashSet<u64>) {
        let _ = self.retain_exceptions(|known| known.nonce.is_none_or(|nonce| there.contains(&nonce)));
    }

    fn retain_exceptions(&self, stays: impl Fn(&Exception) -> bool) -> Result<bool, ControlError> {
        if self.list().iter().all(&stays) {
            return Ok(false);
        }
        let lock = self.lock_if_open()?;
        let mut list = self.list();
        list.retain(stays);
        self.store_exceptions(&lock, &list);
        Ok(true)
    }

    /// Writes the table and the settings that depend on it. The lock parameter proves that the lock
    /// is held.
    fn store_exceptions(&self, _: &SettingsLock<'_>, list: &[Exception]) {
        for entry in 0..MAX_EXCEPTIONS {
            let at = word::EXCEPTION + entry * EXCEPTION_BYTES;
            self.store(at + exception::KIND, 0);
            let Some(exception) = list.get(entry) else { continue };
            for (offset, value) in exception.settings.exception_words(self.tsc_hz()) {
                self.store(at + offset, value);
            }
            let (kind, key) = exception.kind_and_key();
            self.store(at + exception::KEY, key);
            self.store(at + exception::KIND, kind as u64);
        }
        self.store(word::EXCEPTED, list.len() as u64);
        let changes = self.page.word(word::EXCEPTIONS);
        changes.store(changes.load(Relaxed).wrapping_add(1).max(1), Release);
        self.page.store(&Settings { excepted: !list.is_empty(), ..self.settings() }, self.tsc_hz());
        self.wake();
    }

    fn store(&self, at: usize, value: u64) {
        self.page.word(at).store(value, Release);
    }
}

//! Status reports to the log-server, about once a second, and commands from the log-server.

#![expect(clippy::disallowed_types, reason = "counters and states for status and metrics")]

mod commands;
mod metrics;
mod pages;

pub(crate) use commands::{CommandHandler, OutcomeQueue};
pub(crate) use pages::pages;

use crate::config::Config;
use crate::config::recording::{Layers, Ops, when_full_name};
use crate::directory::Control;
use crate::servers::Spools;
use crate::survey::Survey;
use miot_proto::command::Scope;
use miot_proto::control::Settings;
use miot_proto::status::{ExceptionStatus, MAX_REPORT, NodeReport, SettingsStatus, SpoolStatus};
use miot_proto::wire::Message;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A sweeper that has not updated the survey for this long is considered hung.
const HUNG_AFTER: Duration = Duration::from_secs(60);

/// Builds status reports.
#[derive(Debug)]
pub(crate) struct Reporter {
    started: Instant,
    control: Arc<Control>,
    spools: Arc<Spools>,
    node_bytes: u64,
    spool_bytes: u64,
    survey: Arc<Mutex<Survey>>,
    /// A connection to the log-server exists.
    pub(crate) connected: AtomicBool,
    /// Number of connections so far.
    pub(crate) connects: AtomicU64,
}

impl Reporter {
    /// `survey` is filled by the sweeper.
    pub(crate) fn new(
        config: &Config,
        control: Arc<Control>,
        spools: Arc<Spools>,
        survey: Arc<Mutex<Survey>>,
    ) -> Reporter {
        Reporter {
            started: Instant::now(),
            control,
            spools,
            node_bytes: config.node_bytes,
            spool_bytes: config.spool_bytes,
            survey,
            connected: AtomicBool::new(false),
            connects: AtomicU64::new(0),
        }
    }

    /// True if there is a connection to the log-server that gets new records.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// True if the sweeper has updated the survey recently; it does so once a second.
    pub(crate) fn is_sweeping(&self) -> bool {
        lock(&self.survey).at.unwrap_or(self.started).elapsed() < HUNG_AFTER
    }

    /// Builds the full report.
    pub(crate) fn report(&self) -> NodeReport {
        let (survey, current) = (lock(&self.survey).clone(), self.spools.current());
        let (reader, settings) = (self.control.reader(), self.control.settings());
        let exceptions = self.control.exceptions().into_iter().map(|exception| {
            let processes = survey.processes.iter().filter(|process| match &exception.scope {
                Scope::Job(job) => process.job == job.as_bytes(),
                _ => Some(process.nonce) == exception.nonce,
            });
            let (job, pid) = match &exception.scope {
                Scope::Job(job) => (Some(job.clone()), None),
                Scope::Pid(pid) => (None, Some(*pid)),
                Scope::Node => (None, None),
            };
            let settings = SettingsStatus {
                when_full: when_full_name(settings.when_full).to_owned(),
                flight_recorder: settings.flight_recorder,
                ..settings_status(&exception.settings)
            };
            ExceptionStatus { job, pid, processes: processes.count() as u64, settings }
        });
        let exceptions = exceptions.collect();
        NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            connected: self.connected.load(Relaxed),
            connects: self.connects.load(Relaxed),
            events: survey.events,
            bytes: survey.bytes,
            sweeps: reader.sweeps,
            processes: survey.processes.len() as u64,
            processes_seen: survey.processes_seen,
            lanes: survey.lanes,
            segment_bytes: survey.segment_bytes,
            segment_limit: self.node_bytes,
            segments_full: reader.node_full,
            spool: SpoolStatus {
                bytes: current.spool.bytes(),
                limit: self.spool_bytes,
                messages: current.spool.left(),
                full: survey.spool_full,
            },
            server: current.server,
            other_spools: self.spools.others(),
            losses: survey.losses(self.spools.given_up()),
            in_flight: survey.in_flight,
            oldest: survey.oldest(),
            settings: SettingsStatus {
                snapshots: self.control.snapshots().done,
                ..settings_status(&settings)
            },
            exceptions,
        }
    }

    /// The report as a message, without the oldest requests if it would exceed [`MAX_REPORT`];
    /// `None` if it is still too long.
    pub(crate) fn message(&self) -> Option<Message> {
        let mut report = self.report();
        let mut status = serde_json::to_vec(&report).ok()?;
        if status.len() > MAX_REPORT {
            report.oldest.clear();
            status = serde_json::to_vec(&report).ok().filter(|status| status.len() <= MAX_REPORT)?;
        }
        Some(Message::Report { status })
    }
}

/// Settings in the notation of `miot ctl set`.
fn settings_status(settings: &Settings) -> SettingsStatus {
    SettingsStatus {
        enabled: settings.enabled,
        layers: Layers(settings.layers).to_string(),
        ops: Ops(settings.chosen).to_string(),
        min_duration_ns: settings.min_duration_ns,
        sample: 1 << settings.sample_shift.min(63),
        when_full: when_full_name(settings.when_full).to_owned(),
        flight_recorder: settings.flight_recorder,
        snapshots: 0,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

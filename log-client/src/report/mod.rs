//! How the log-client is, told to the log-server about once a second, and what the log-server wants of it.

mod desk;
mod metrics;
mod pages;
mod survey;

pub(crate) use desk::{Answers, Desk};
pub(crate) use pages::pages;
pub(crate) use survey::Survey;

use crate::config::Config;
use crate::config::recorded::{Layers, Ops, when_full_name};
use crate::home::Control;
use crate::spool::Spool;
use miot_proto::control::Settings;
use miot_proto::status::{ExceptionStatus, MAX_REPORT, NodeReport, SettingsStatus, SpoolStatus};
use miot_proto::steer::Scope;
use miot_proto::wire::Message;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A sweeper that has not surveyed for so long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// What is known of this log-client, for those who ask.
#[derive(Debug)]
pub(crate) struct Reporter {
    started: Instant,
    control: Arc<Control>,
    spool: Arc<Spool>,
    node_bytes: u64,
    spool_bytes: u64,
    survey: Arc<Mutex<Survey>>,
    /// There is a connection.
    pub(crate) connected: AtomicBool,
    /// There were so many.
    pub(crate) connects: AtomicU64,
}

impl Reporter {
    /// `survey` is filled by the sweeper.
    pub(crate) fn new(
        config: &Config,
        control: Arc<Control>,
        spool: Arc<Spool>,
        survey: Arc<Mutex<Survey>>,
    ) -> Reporter {
        Reporter {
            started: Instant::now(),
            control,
            spool,
            node_bytes: config.node_bytes,
            spool_bytes: config.spool_bytes,
            survey,
            connected: AtomicBool::new(false),
            connects: AtomicU64::new(0),
        }
    }

    /// True while the sweeper surveys; it does so once a second, unless it hangs.
    pub(crate) fn sweeps(&self) -> bool {
        lock(&self.survey).at.unwrap_or(self.started).elapsed() < HANGS_AFTER
    }

    /// All of it.
    pub(crate) fn report(&self) -> NodeReport {
        let survey = lock(&self.survey).clone();
        let (reader, settings) = (self.control.reader(), self.control.settings());
        let exceptions = self.control.exceptions().into_iter().map(|exception| {
            let processes = survey.segments.iter().filter(|known| match &exception.scope {
                Scope::Job(job) => known.job == job.as_bytes(),
                _ => Some(known.nonce) == exception.nonce,
            });
            let (job, pid) = match &exception.scope {
                Scope::Job(job) => (Some(job.clone()), None),
                Scope::Pid(pid) => (None, Some(*pid)),
                Scope::Node => (None, None),
            };
            let settings = SettingsStatus {
                when_full: when_full_name(settings.when_full).to_owned(),
                flight_recorder: settings.flight_recorder,
                ..told(&exception.settings)
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
            processes: survey.segments.len() as u64,
            processes_seen: survey.processes_seen,
            lanes: survey.lanes,
            segment_bytes: survey.segment_bytes,
            segment_limit: self.node_bytes,
            segments_full: reader.node_full,
            spool: SpoolStatus {
                bytes: self.spool.bytes(),
                limit: self.spool_bytes,
                messages: self.spool.left(),
                full: survey.spool_full,
            },
            losses: survey.losses(self.spool.given_up()),
            in_flight: survey.in_flight,
            oldest: survey.oldest(),
            settings: SettingsStatus { snapshots: self.control.snapshots().done, ..told(&settings) },
            exceptions,
        }
    }

    /// As it goes to the log-server; with less in it, if it would be too long.
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

/// Settings in the words of `miot ctl set`.
fn told(settings: &Settings) -> SettingsStatus {
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

//! The spool in use, and those of other log-servers that are not delivered yet.

#![expect(clippy::disallowed_types, reason = "count of events given up in spools that were removed")]

use crate::spool::{Spool, Writer};
use miot_proto::status::ServerSpool;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Spools {
    /// Ascending by number; the last one is in use. Never empty.
    list: Mutex<Vec<NumberedSpool>>,
    /// Events given up in spools that were removed.
    given_up: AtomicU64,
}

/// A spool and its log-server.
#[derive(Clone, Debug)]
pub(crate) struct NumberedSpool {
    pub(crate) server: String,
    pub(crate) number: u64,
    pub(crate) spool: Arc<Spool>,
}

impl Spools {
    pub(crate) fn new(server: String, number: u64, spool: Spool) -> Spools {
        let list = Mutex::new(vec![NumberedSpool { server, number, spool: Arc::new(spool) }]);
        Spools { list, given_up: AtomicU64::new(0) }
    }

    /// Adds a spool that is in use from now on.
    pub(crate) fn add(&self, added: NumberedSpool) {
        self.lock().push(added);
    }

    /// The spool in use.
    #[expect(clippy::expect_used, reason = "the list is never empty")]
    pub(crate) fn current(&self) -> NumberedSpool {
        self.lock().last().cloned().expect("a spool is in use")
    }

    /// All spools.
    pub(crate) fn all(&self) -> Vec<NumberedSpool> {
        self.lock().clone()
    }

    /// Nothing more is written to the spool in use, which an earlier log-client has left: another
    /// one follows.
    pub(crate) fn end_current(&self) {
        let NumberedSpool { spool, .. } = self.current();
        if spool.needs_replay() {
            Writer::new(spool, None).end();
        } else {
            spool.end_without_writer();
        }
    }

    /// Removes a spool that was delivered, unless it is in use.
    pub(crate) fn remove(&self, number: u64) {
        let mut list = self.lock();
        if list.last().is_some_and(|last| last.number != number) {
            let gone = list.iter().filter(|spool| spool.number == number).map(|spool| spool.spool.given_up());
            self.given_up.fetch_add(gone.sum(), Relaxed);
            list.retain(|spool| spool.number != number);
        }
    }

    /// Removes the files of all spools that are delivered, after the end of writing.
    pub(crate) fn clear(&self) -> Vec<u64> {
        let delivered = self.all().into_iter().filter(|spool| spool.spool.clear());
        delivered.map(|spool| spool.number).collect()
    }

    /// Number of unacknowledged messages.
    pub(crate) fn left(&self) -> u64 {
        self.lock().iter().map(|spool| spool.spool.left()).sum()
    }

    /// Events given up since the start.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.load(Relaxed) + self.lock().iter().map(|spool| spool.spool.given_up()).sum::<u64>()
    }

    /// State of the spools of other log-servers than the one in use.
    pub(crate) fn others(&self) -> Vec<ServerSpool> {
        let list = self.lock();
        let others = list.iter().take(list.len().saturating_sub(1));
        others
            .map(|NumberedSpool { server, number, spool }| ServerSpool {
                server: server.clone(),
                number: *number,
                path: spool.path().display().to_string(),
                bytes: spool.bytes(),
                messages: spool.left(),
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<NumberedSpool>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

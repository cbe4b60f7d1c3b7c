//! A rank of a measurement as MPI sees it. Rank 0 passes on what the conductor says, a thread of the same process, and what the ranks answer.

use super::{Failed, Mpi};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Instead of a length: the conductor has gone.
const GONE: u64 = u64::MAX;

/// The side of a rank.
#[derive(Debug)]
pub(crate) struct Member {
    mpi: Arc<Mpi>,
    rank: u64,
    /// At rank 0.
    conductor: Option<Conductor>,
    shares_clock: bool,
}

#[derive(Debug)]
struct Conductor {
    orders: Receiver<Vec<u8>>,
    reports: Sender<Vec<Vec<u8>>>,
}

/// The side of the conductor.
#[derive(Debug)]
pub(crate) struct Everyone {
    orders: Sender<Vec<u8>>,
    reports: Receiver<Vec<Vec<u8>>>,
}

impl Everyone {
    pub(crate) fn tell(&self, message: Vec<u8>) -> io::Result<()> {
        self.orders.send(message).map_err(|_| gone())
    }

    pub(crate) fn hear(&self) -> io::Result<Vec<Vec<u8>>> {
        self.reports.recv().map_err(|_| gone())
    }
}

fn gone() -> io::Error {
    io::Error::other("the other side has gone")
}

impl Member {
    /// This process among those that were launched; at rank 0 with the conductor's side.
    ///
    /// # Errors
    /// [`Failed`].
    pub(crate) fn join(mpi: &Arc<Mpi>) -> Result<(Member, Option<Everyone>), Failed> {
        let rank = mpi.rank()? as u64;
        let mut everyone = None;
        let conductor = (rank == 0).then(|| {
            let ((orders_in, orders), (reports, reports_out)) = (channel(), channel());
            everyone = Some(Everyone { orders: orders_in, reports: reports_out });
            Conductor { orders, reports }
        });
        let mut member = Member { mpi: Arc::clone(mpi), rank, conductor, shares_clock: true };
        // Clocks count from the boot of a machine.
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boots = mpi.gather(&boot, rank == 0)?;
        let mut same = [u8::from(boots.iter().all(|it| *it == boots[0]))];
        mpi.broadcast(&mut same)?;
        member.shares_clock = same == [1];
        Ok((member, everyone))
    }

    /// MPI.
    pub(crate) fn mpi(&self) -> &Arc<Mpi> {
        &self.mpi
    }

    /// Which one this is.
    pub(crate) fn rank(&self) -> u64 {
        self.rank
    }

    /// All ranks are on one machine.
    pub(crate) fn shares_clock(&self) -> bool {
        self.shares_clock
    }

    pub(crate) fn barrier(&self) -> io::Result<()> {
        self.mpi.barrier().map_err(io::Error::other)
    }

    pub(crate) fn tell(&self, message: &[u8]) -> io::Result<()> {
        let all = self.mpi.gather(message, self.rank == 0).map_err(io::Error::other)?;
        if let Some(conductor) = &self.conductor {
            // If nobody wants it any more, the next order says so to all.
            let _ = conductor.reports.send(all);
        }
        Ok(())
    }

    pub(crate) fn hear(&self) -> io::Result<Vec<u8>> {
        let order = self.conductor.as_ref().map(|conductor| conductor.orders.recv());
        let mut message = order.unwrap_or_else(|| Ok(Vec::new()));
        let mut length = message.as_ref().map_or(GONE, |message| message.len() as u64).to_le_bytes();
        self.mpi.broadcast(&mut length).map_err(io::Error::other)?;
        let length = u64::from_le_bytes(length);
        if length == GONE {
            return Err(gone());
        }
        let message = message.as_mut().map_err(|_| gone())?;
        message.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.mpi.broadcast(message).map_err(io::Error::other)?;
        Ok(std::mem::take(message))
    }
}

//! A rank of a measurement under MPI. Rank 0 passes on the messages of the coordinator, a thread of
//! the same process, and collects the answers of all ranks.

use super::{Mpi, MpiError};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Sent in place of a length when the coordinator has ended.
const COORDINATOR_ENDED: u64 = u64::MAX;

/// A member of an MPI job.
#[derive(Debug)]
pub(crate) struct MpiMember {
    mpi: Arc<Mpi>,
    rank: u64,
    /// `Some` at rank 0.
    coordinator: Option<Coordinator>,
    shares_clock: bool,
}

/// Channels of rank 0 to the thread of the coordinator.
#[derive(Debug)]
struct Coordinator {
    commands: Receiver<Vec<u8>>,
    answers: Sender<Vec<Vec<u8>>>,
}

/// Channels of the coordinator to rank 0.
#[derive(Debug)]
pub(crate) struct CoordinatorSide {
    commands: Sender<Vec<u8>>,
    answers: Receiver<Vec<Vec<u8>>>,
}

impl CoordinatorSide {
    /// Sends a message to all ranks.
    pub(crate) fn send(&self, message: Vec<u8>) -> io::Result<()> {
        self.commands.send(message).map_err(|_| disconnected())
    }

    /// Waits for a message of each rank.
    pub(crate) fn receive(&self) -> io::Result<Vec<Vec<u8>>> {
        self.answers.recv().map_err(|_| disconnected())
    }
}

fn disconnected() -> io::Error {
    io::Error::other("the other side has ended")
}

impl MpiMember {
    /// Joins the launched processes. At rank 0 it also returns the channels of the coordinator.
    ///
    /// # Errors
    /// [`MpiError`].
    pub(crate) fn join(mpi: &Arc<Mpi>) -> Result<(MpiMember, Option<CoordinatorSide>), MpiError> {
        let rank = mpi.rank()? as u64;
        let mut side = None;
        let coordinator = (rank == 0).then(|| {
            let ((commands_in, commands), (answers, answers_out)) = (channel(), channel());
            side = Some(CoordinatorSide { commands: commands_in, answers: answers_out });
            Coordinator { commands, answers }
        });
        let mut member = MpiMember { mpi: Arc::clone(mpi), rank, coordinator, shares_clock: true };
        // The monotonic clock counts from the boot of the machine, so the same boot is the same
        // clock.
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boots = mpi.gather(&boot, rank == 0)?;
        let mut same = [u8::from(boots.iter().all(|it| *it == boots[0]))];
        mpi.broadcast(&mut same)?;
        member.shares_clock = same == [1];
        Ok((member, side))
    }

    /// The MPI library.
    pub(crate) fn mpi(&self) -> &Arc<Mpi> {
        &self.mpi
    }

    /// Number of the rank.
    pub(crate) fn rank(&self) -> u64 {
        self.rank
    }

    /// True if all ranks run on one machine.
    pub(crate) fn shares_clock(&self) -> bool {
        self.shares_clock
    }

    pub(crate) fn barrier(&self) -> io::Result<()> {
        self.mpi.barrier().map_err(io::Error::other)
    }

    /// Sends a message to the coordinator. All ranks must call this together.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        let all = self.mpi.gather(message, self.rank == 0).map_err(io::Error::other)?;
        if let Some(coordinator) = &self.coordinator {
            // If the coordinator has ended, the next `receive` reports it to all ranks.
            let _ = coordinator.answers.send(all);
        }
        Ok(())
    }

    /// Waits for a message of the coordinator. All ranks must call this together.
    pub(crate) fn receive(&self) -> io::Result<Vec<u8>> {
        let command = self.coordinator.as_ref().map(|coordinator| coordinator.commands.recv());
        let mut message = command.unwrap_or_else(|| Ok(Vec::new()));
        let mut length =
            message.as_ref().map_or(COORDINATOR_ENDED, |message| message.len() as u64).to_le_bytes();
        self.mpi.broadcast(&mut length).map_err(io::Error::other)?;
        let length = u64::from_le_bytes(length);
        if length == COORDINATOR_ENDED {
            return Err(disconnected());
        }
        let message = message.as_mut().map_err(|_| disconnected())?;
        message.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.mpi.broadcast(message).map_err(io::Error::other)?;
        Ok(std::mem::take(message))
    }
}

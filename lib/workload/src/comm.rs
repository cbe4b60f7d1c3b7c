//! Barriers and messages between the processes of a measurement (the ranks) and its coordinator.
//!
//! On one host the coordinator is a process of its own. Each rank is connected to it by a socket,
//! the standard input of the rank. A rank that dies closes its socket: the coordinator notices it
//! immediately and closes the other sockets, and the other ranks end.
//!
//! Under MPI the coordinator is a thread of rank 0. Barriers are those of MPI, and messages pass
//! through rank 0 (see [`MpiMember`]).

use crate::mpi::{CoordinatorSide, Mpi, MpiError, MpiMember};
use rustix::net::SendFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Longest message, bytes, so that garbage is not taken for a length.
const MAX_MESSAGE: u32 = 1 << 28;

/// A rank or the coordinator is gone.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionLost {
    /// A rank has ended.
    #[error("rank {rank} has ended before the measurement was over ({source})")]
    Rank {
        /// Number of the rank.
        rank: usize,
        /// Error of its connection.
        source: io::Error,
    },
    /// The coordinator has ended, or it has stopped the measurement because another rank ended.
    #[error("the measurement was stopped ({0})")]
    Coordinator(io::Error),
}

/// The connection of a rank to the coordinator and the other ranks.
#[derive(Debug)]
pub struct RankLink(Link);

#[derive(Debug)]
enum Link {
    Socket { coordinator: UnixStream, rank: u64 },
    Mpi(MpiMember),
}

/// Connects the processes that an MPI launcher has started. Returns the connection of this process,
/// and at rank 0 also those of all ranks, for the coordinator.
///
/// # Errors
/// [`MpiError`].
pub fn join_launched(mpi: &Arc<Mpi>) -> Result<(RankLink, Option<Ranks>), MpiError> {
    let (member, coordinator_side) = MpiMember::join(mpi)?;
    Ok((RankLink(Link::Mpi(member)), coordinator_side.map(|side| Ranks(Links::Mpi(side)))))
}

impl RankLink {
    /// Creates the connection of a rank that reaches the coordinator through a socket.
    #[must_use]
    pub fn new(coordinator: UnixStream, rank: u64) -> RankLink {
        RankLink(Link::Socket { coordinator, rank })
    }

    /// Number of the rank.
    pub(crate) fn rank(&self) -> u64 {
        match &self.0 {
            Link::Socket { rank, .. } => *rank,
            Link::Mpi(member) => member.rank(),
        }
    }

    /// The rank as a member of an MPI job; `None` without MPI.
    pub(crate) fn member(&self) -> Option<&MpiMember> {
        match &self.0 {
            Link::Socket { .. } => None,
            Link::Mpi(member) => Some(member),
        }
    }

    /// Waits until all ranks have reached the barrier.
    ///
    /// # Errors
    /// [`ConnectionLost::Coordinator`].
    pub fn barrier(&mut self) -> Result<(), ConnectionLost> {
        if let Link::Mpi(member) = &self.0 {
            return member.barrier().map_err(ConnectionLost::Coordinator);
        }
        self.send(&())?;
        self.receive()
    }

    /// Sends a message to the coordinator.
    ///
    /// # Errors
    /// [`ConnectionLost::Coordinator`].
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), ConnectionLost> {
        let sent = match &mut self.0 {
            Link::Socket { coordinator, .. } => send(coordinator, message),
            Link::Mpi(member) => encode(message).and_then(|message| member.send(&message)),
        };
        sent.map_err(ConnectionLost::Coordinator)
    }

    /// Waits for a message of the coordinator.
    ///
    /// # Errors
    /// [`ConnectionLost::Coordinator`].
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ConnectionLost> {
        let received = match &mut self.0 {
            Link::Socket { coordinator, .. } => receive(coordinator),
            Link::Mpi(member) => member.receive().and_then(|message| decode(&message)),
        };
        received.map_err(ConnectionLost::Coordinator)
    }
}

/// The connections of the coordinator to all ranks.
#[derive(Debug)]
pub struct Ranks(Links);

#[derive(Debug)]
enum Links {
    Sockets(Vec<UnixStream>),
    Mpi(CoordinatorSide),
}

impl Ranks {
    /// One socket for each rank, in order.
    #[must_use]
    pub fn new(ranks: Vec<UnixStream>) -> Ranks {
        Ranks(Links::Sockets(ranks))
    }

    /// Returns a handle that stops the measurement from any thread. It does nothing under MPI,
    /// where the launcher stops the processes.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn stop_handle(&self) -> io::Result<StopHandle> {
        let ranks = match &self.0 {
            Links::Sockets(ranks) => ranks.as_slice(),
            Links::Mpi(_) => &[],
        };
        Ok(StopHandle { ranks: ranks.iter().map(UnixStream::try_clone).collect::<io::Result<_>>()? })
    }

    /// Waits until all ranks have reached the barrier, and releases them.
    ///
    /// # Errors
    /// [`ConnectionLost::Rank`].
    pub fn barrier(&mut self) -> Result<(), ConnectionLost> {
        if let Links::Mpi(_) = self.0 {
            return Ok(());
        }
        self.receive::<()>()?;
        self.send(&())
    }

    /// Sends the same message to all ranks.
    ///
    /// # Errors
    /// [`ConnectionLost::Rank`]; under MPI [`ConnectionLost::Coordinator`].
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), ConnectionLost> {
        match &mut self.0 {
            Links::Sockets(ranks) => for_each_rank(ranks, |socket| send(socket, message)).map(|_| ()),
            Links::Mpi(ranks) => {
                encode(message).and_then(|message| ranks.send(message)).map_err(ConnectionLost::Coordinator)
            }
        }
    }

    /// Waits for a message of each rank and returns them in order.
    ///
    /// # Errors
    /// [`ConnectionLost::Rank`]; under MPI [`ConnectionLost::Coordinator`].
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, ConnectionLost> {
        match &mut self.0 {
            Links::Sockets(ranks) => for_each_rank(ranks, receive),
            Links::Mpi(ranks) => {
                let all = ranks.receive().map_err(ConnectionLost::Coordinator)?;
                all.iter().map(|message| decode(message).map_err(ConnectionLost::Coordinator)).collect()
            }
        }
    }
}

fn for_each_rank<T>(
    ranks: &mut [UnixStream],
    mut function: impl FnMut(&mut UnixStream) -> io::Result<T>,
) -> Result<Vec<T>, ConnectionLost> {
    let ranks = ranks.iter_mut().enumerate();
    ranks
        .map(|(rank, socket)| function(socket).map_err(|source| ConnectionLost::Rank { rank, source }))
        .collect()
}

/// See [`Ranks::stop_handle`].
#[derive(Debug)]
pub struct StopHandle {
    ranks: Vec<UnixStream>,
}

impl StopHandle {
    /// Stops the measurement: all waits of the ranks and of the coordinator end with an error.
    pub fn stop(&self) {
        for rank in &self.ranks {
            let _ = rank.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_extend(message, Vec::new()).map_err(io::Error::other)
}

fn decode<T: DeserializeOwned>(message: &[u8]) -> io::Result<T> {
    postcard::from_bytes(message).map_err(io::Error::other)
}

/// Sends a message: four bytes of length, little-endian, then postcard.
fn send(socket: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(message, bytes).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    let mut remaining = bytes.as_slice();
    while !remaining.is_empty() {
        // Not `write`: SIGPIPE, if it is not ignored, would end this process when a rank has ended.
        let sent = rustix::net::send(&*socket, remaining, SendFlags::NOSIGNAL)?;
        remaining = &remaining[sent..];
    }
    Ok(())
}

fn receive<T: DeserializeOwned>(socket: &mut UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut message = vec![0; length as usize];
    socket.read_exact(&mut message)?;
    decode(&message)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_types, reason = "counter of the test")]

    use super::{ConnectionLost, RankLink, Ranks};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    fn connect(size: usize) -> (Ranks, Vec<RankLink>) {
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..size).map(|_| UnixStream::pair().unwrap()).unzip();
        let links = (0..).zip(theirs).map(|(rank, theirs)| RankLink::new(theirs, rank));
        (Ranks::new(ours), links.collect())
    }

    #[test]
    fn no_rank_leaves_a_barrier_before_all_have_reached_it() {
        let (mut ranks, links) = connect(5);
        let arrived = AtomicU32::new(0);
        thread::scope(|scope| {
            for mut link in links {
                let arrived = &arrived;
                scope.spawn(move || {
                    for round in 1..50 {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        link.barrier().unwrap();
                        assert!(arrived.load(Ordering::SeqCst) >= 5 * round);
                    }
                    link.send(&7u64).unwrap();
                });
            }
            for _ in 1..50 {
                ranks.barrier().unwrap();
            }
            assert_eq!(ranks.receive::<u64>().unwrap(), [7; 5]);
        });
    }

    #[test]
    fn lost_rank_is_named_and_the_others_are_released() {
        let (mut ranks, mut links) = connect(3);
        drop(links.remove(1));
        let waiting: Vec<_> =
            links.into_iter().map(|mut link| thread::spawn(move || link.barrier())).collect();
        assert!(matches!(ranks.barrier(), Err(ConnectionLost::Rank { rank: 1, .. })));
        drop(ranks);
        for rank in waiting {
            assert!(matches!(rank.join().unwrap(), Err(ConnectionLost::Coordinator(_))));
        }
    }
}

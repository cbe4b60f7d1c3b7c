//! How the processes of a measurement meet: barriers, and reports to the one who conducts.
//!
//! On one host the conductor is a process of its own, and each rank is connected to it by a socket, its standard input. A rank
//! that dies closes it: the conductor sees that at once, closes the others, and they end.
//!
//! Under MPI the conductor is a thread of rank 0, barriers are MPI's, and what is told goes through rank 0 (see [`Member`]).

use crate::mpi::{Everyone, Failed, Member, Mpi};
use rustix::net::SendFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Longest message, so that garbage is not taken for a length.
const LONGEST: u32 = 1 << 28;

/// Why processes cannot meet.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// A rank has gone.
    #[error("rank {rank} has ended before the measurement was over ({source})")]
    Rank {
        /// Which.
        rank: usize,
        /// What was seen of it.
        source: io::Error,
    },
    /// The conductor has gone, or another rank, and with it the measurement.
    #[error("the measurement was given up ({0})")]
    Conductor(io::Error),
}

/// The side of a rank.
#[derive(Debug)]
pub struct Place(Link);

#[derive(Debug)]
enum Link {
    Socket { conductor: UnixStream, rank: u64 },
    Mpi(Member),
}

/// The processes that an MPI launcher has started: the place of this one, and at rank 0 all of them, for a conductor.
///
/// # Errors
/// [`Failed`].
pub fn launched(mpi: &Arc<Mpi>) -> Result<(Place, Option<Ranks>), Failed> {
    let (member, everyone) = Member::join(mpi)?;
    Ok((Place(Link::Mpi(member)), everyone.map(|everyone| Ranks(Links::Mpi(everyone)))))
}

impl Place {
    /// That of a rank which meets the conductor through a socket.
    #[must_use]
    pub fn new(conductor: UnixStream, rank: u64) -> Place {
        Place(Link::Socket { conductor, rank })
    }

    /// Which rank it is.
    pub(crate) fn rank(&self) -> u64 {
        match &self.0 {
            Link::Socket { rank, .. } => *rank,
            Link::Mpi(member) => member.rank(),
        }
    }

    /// Its place under MPI.
    pub(crate) fn member(&self) -> Option<&Member> {
        match &self.0 {
            Link::Socket { .. } => None,
            Link::Mpi(member) => Some(member),
        }
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// [`Lost::Conductor`].
    pub fn barrier(&mut self) -> Result<(), Lost> {
        if let Link::Mpi(member) = &self.0 {
            return member.barrier().map_err(Lost::Conductor);
        }
        self.tell(&())?;
        self.hear()
    }

    /// Tells the conductor something.
    ///
    /// # Errors
    /// [`Lost::Conductor`].
    pub fn tell(&mut self, what: &impl Serialize) -> Result<(), Lost> {
        let told = match &mut self.0 {
            Link::Socket { conductor, .. } => send(conductor, what),
            Link::Mpi(member) => encode(what).and_then(|message| member.tell(&message)),
        };
        told.map_err(Lost::Conductor)
    }

    /// Waits for what the conductor says.
    ///
    /// # Errors
    /// [`Lost::Conductor`].
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T, Lost> {
        let heard = match &mut self.0 {
            Link::Socket { conductor, .. } => receive(conductor),
            Link::Mpi(member) => member.hear().and_then(|message| decode(&message)),
        };
        heard.map_err(Lost::Conductor)
    }
}

/// The side of the conductor.
#[derive(Debug)]
pub struct Ranks(Links);

#[derive(Debug)]
enum Links {
    Sockets(Vec<UnixStream>),
    Mpi(Everyone),
}

impl Ranks {
    /// One socket for each rank, in order.
    #[must_use]
    pub fn new(ranks: Vec<UnixStream>) -> Ranks {
        Ranks(Links::Sockets(ranks))
    }

    /// Who may end the measurement, from any thread.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn stopper(&self) -> io::Result<Stopper> {
        let ranks = match &self.0 {
            Links::Sockets(ranks) => ranks.as_slice(),
            // Their launcher stops them.
            Links::Mpi(_) => &[],
        };
        Ok(Stopper { ranks: ranks.iter().map(UnixStream::try_clone).collect::<io::Result<_>>()? })
    }

    /// Waits until all ranks wait, and lets them go.
    ///
    /// # Errors
    /// [`Lost::Rank`].
    pub fn barrier(&mut self) -> Result<(), Lost> {
        if let Links::Mpi(_) = self.0 {
            return Ok(());
        }
        self.hear::<()>()?;
        self.tell(&())
    }

    /// Tells all ranks the same.
    ///
    /// # Errors
    /// [`Lost::Rank`].
    pub fn tell(&mut self, what: &impl Serialize) -> Result<(), Lost> {
        match &mut self.0 {
            Links::Sockets(ranks) => each(ranks, |socket| send(socket, what)).map(|_| ()),
            Links::Mpi(ranks) => {
                encode(what).and_then(|message| ranks.tell(message)).map_err(Lost::Conductor)
            }
        }
    }

    /// Waits for what each rank says.
    ///
    /// # Errors
    /// [`Lost::Rank`].
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, Lost> {
        match &mut self.0 {
            Links::Sockets(ranks) => each(ranks, receive),
            Links::Mpi(ranks) => {
                let all = ranks.hear().map_err(Lost::Conductor)?;
                all.iter().map(|message| decode(message).map_err(Lost::Conductor)).collect()
            }
        }
    }
}

fn each<T>(
    ranks: &mut [UnixStream],
    mut with: impl FnMut(&mut UnixStream) -> io::Result<T>,
) -> Result<Vec<T>, Lost> {
    let ranks = ranks.iter_mut().enumerate();
    ranks.map(|(rank, socket)| with(socket).map_err(|source| Lost::Rank { rank, source })).collect()
}

/// See [`Ranks::stopper`].
#[derive(Debug)]
pub struct Stopper {
    ranks: Vec<UnixStream>,
}

impl Stopper {
    /// Ends it: whoever waits for anybody waits no longer.
    pub fn stop(&self) {
        for rank in &self.ranks {
            let _ = rank.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn encode(what: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_extend(what, Vec::new()).map_err(io::Error::other)
}

fn decode<T: DeserializeOwned>(message: &[u8]) -> io::Result<T> {
    postcard::from_bytes(message).map_err(io::Error::other)
}

fn send(socket: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut message = vec![0; 4];
    message = postcard::to_extend(what, message).map_err(io::Error::other)?;
    let length = u32::try_from(message.len() - 4).map_err(io::Error::other)?;
    message[..4].copy_from_slice(&length.to_le_bytes());
    let mut left = message.as_slice();
    while !left.is_empty() {
        // Not `write`: a program that lets SIGPIPE end it would die of a rank that has died.
        let sent = rustix::net::send(&*socket, left, SendFlags::NOSIGNAL)?;
        left = &left[sent..];
    }
    Ok(())
}

fn receive<T: DeserializeOwned>(socket: &mut UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut message = vec![0; length as usize];
    socket.read_exact(&mut message)?;
    decode(&message)
}

#[cfg(test)]
mod tests {
    use super::{Lost, Place, Ranks};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    fn world(size: usize) -> (Ranks, Vec<Place>) {
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..size).map(|_| UnixStream::pair().unwrap()).unzip();
        (Ranks::new(ours), (0..).zip(theirs).map(|(rank, theirs)| Place::new(theirs, rank)).collect())
    }

    #[test]
    fn nobody_leaves_a_barrier_before_all_are_there() {
        let (mut ranks, places) = world(5);
        let arrived = AtomicU32::new(0);
        thread::scope(|scope| {
            for mut place in places {
                let arrived = &arrived;
                scope.spawn(move || {
                    for round in 1..50 {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        place.barrier().unwrap();
                        assert!(arrived.load(Ordering::SeqCst) >= 5 * round);
                    }
                    place.tell(&7u64).unwrap();
                });
            }
            for _ in 1..50 {
                ranks.barrier().unwrap();
            }
            assert_eq!(ranks.hear::<u64>().unwrap(), [7; 5]);
        });
    }

    #[test]
    fn a_rank_that_is_gone_is_named_and_the_others_are_released() {
        let (mut ranks, mut places) = world(3);
        drop(places.remove(1));
        let waiting: Vec<_> =
            places.into_iter().map(|mut place| thread::spawn(move || place.barrier())).collect();
        assert!(matches!(ranks.barrier(), Err(Lost::Rank { rank: 1, .. })));
        drop(ranks);
        for place in waiting {
            assert!(matches!(place.join().unwrap(), Err(Lost::Conductor(_))));
        }
    }
}

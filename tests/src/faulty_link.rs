//! A faulty link between a log-client and the log-server. It delays frames, splits them, cuts
//! connections at any byte, repeats frames and flips bits. It does not reorder, because TCP does
//! not.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the tests")]

use crate::random::Random;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, frame_header};
use rustix::net::sockopt::set_socket_linger;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Faults so far.
#[derive(Debug, Default)]
pub struct FaultCounts {
    /// Connections made.
    pub connections: AtomicU64,
    /// Delays of some milliseconds.
    pub delays: AtomicU64,
    /// Connections that were cut.
    pub cuts: AtomicU64,
    /// Frames that were repeated.
    pub repeats: AtomicU64,
    /// Bits that were flipped. A connection gets no other fault after a flip.
    pub flips: AtomicU64,
    /// Connections that their ends closed after a flip.
    pub noticed: AtomicU64,
}

/// A running proxy with faults.
#[derive(Debug)]
pub struct FaultyLink {
    /// Port on loopback at which it listens.
    pub port: u16,
    /// Faults so far.
    pub done: Arc<FaultCounts>,
    stop_faults: Arc<AtomicBool>,
}

impl FaultyLink {
    /// Starts a proxy to a port on loopback. One frame in `every` gets a fault.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(to: u16, every: u64, seed: u64) -> io::Result<FaultyLink> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let (done, stop_faults) = (Arc::<FaultCounts>::default(), Arc::<AtomicBool>::default());
        let random = Arc::new(Mutex::new(Random::of(seed)));
        let (of_thread, stopped_in_thread) = (Arc::clone(&done), Arc::clone(&stop_faults));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                of_thread.connections.fetch_add(1, Relaxed);
                let connection = Arc::new(Connection {
                    done: Arc::clone(&of_thread),
                    stop_faults: Arc::clone(&stopped_in_thread),
                    random: Arc::clone(&random),
                    every,
                    state: AtomicU8::new(WHOLE),
                });
                let _ = connection.begin(client, server);
            }
        });
        Ok(FaultyLink { port, done, stop_faults })
    }

    /// Stops all further faults.
    pub fn stop_faults(&self) {
        self.stop_faults.store(true, Relaxed);
    }
}

/// One connection.
struct Connection {
    done: Arc<FaultCounts>,
    stop_faults: Arc<AtomicBool>,
    random: Arc<Mutex<Random>>,
    every: u64,
    /// One of the three states below. Both directions change it, so each change names the state
    /// that it replaces: a flip belongs to one direction, and to none when the connection has
    /// ended.
    state: AtomicU8,
}

const WHOLE: u8 = 0;
const FLIPPED: u8 = 1;
const OVER: u8 = 2;

enum Fault {
    None,
    Delay(Duration),
    /// Cut after this number of bytes: with a reset, or like a close by the other end.
    Cut(usize, bool),
    Repeat,
    /// Flip this bit.
    Flip(usize),
}

impl Connection {
    fn begin(self: &Arc<Connection>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let both = [(client.try_clone()?, server.try_clone()?), (server, client)];
        for (from, to) in both {
            let connection = Arc::clone(self);
            std::thread::spawn(move || {
                let _ = connection.carry(&from, &to);
                // Neither direction outlives the other for long: both ends close when one is
                // closed.
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                if connection.state.swap(OVER, Relaxed) == FLIPPED {
                    connection.done.noticed.fetch_add(1, Relaxed);
                }
            });
        }
        Ok(())
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Carries frames in one direction.
    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut before: VecDeque<Vec<u8>> = VecDeque::new();
        loop {
            let mut frame = vec![0; FRAME_HEADER];
            from.read_exact(&mut frame)?;
            let header = frame.first_chunk().copied().unwrap_or_default();
            let (length, _) = frame_header(header, MAX_FRAME).map_err(io::Error::other)?;
            frame.resize(FRAME_HEADER + length, 0);
            from.read_exact(&mut frame[FRAME_HEADER..])?;
            match self.fault(frame.len()) {
                Fault::None => to.write_all(&frame)?,
                Fault::Delay(pause) => {
                    self.done.delays.fetch_add(1, Relaxed);
                    std::thread::sleep(pause);
                    self.in_pieces(to, &frame)?;
                }
                Fault::Cut(at, reset) => {
                    self.done.cuts.fetch_add(1, Relaxed);
                    self.in_pieces(to, &frame[..at])?;
                    if reset {
                        // A close without lingering is a reset.
                        let _ = set_socket_linger(to, Some(Duration::ZERO));
                        let _ = set_socket_linger(from, Some(Duration::ZERO));
                    }
                    return Ok(());
                }
                Fault::Repeat => {
                    self.done.repeats.fetch_add(1, Relaxed);
                    to.write_all(&frame)?;
                    // Send everything from an earlier frame to this one again.
                    let from = self.draw(|random| random.below(before.len() as u64 + 1)) as usize;
                    before.iter().skip(from).try_for_each(|earlier| to.write_all(earlier))?;
                    to.write_all(&frame)?;
                }
                Fault::Flip(bit) => {
                    if self.state.compare_exchange(WHOLE, FLIPPED, Relaxed, Relaxed).is_ok() {
                        self.done.flips.fetch_add(1, Relaxed);
                        frame[bit / 8] ^= 1 << (bit % 8);
                    }
                    self.in_pieces(to, &frame)?;
                }
            }
            before.push_back(frame);
            if before.len() > 16 {
                before.pop_front();
            }
        }
    }

    fn fault(&self, length: usize) -> Fault {
        let settled = self.stop_faults.load(Relaxed) || self.state.load(Relaxed) != WHOLE;
        self.draw(|random| {
            if !random.one_in(self.every) || settled {
                return Fault::None;
            }
            match random.below(8) {
                0..=2 => Fault::Delay(random.millis(1, 50)),
                3 | 4 => Fault::Cut(random.place(length), random.one_in(2)),
                5 => Fault::Repeat,
                _ => Fault::Flip(random.below(length as u64 * 8) as usize),
            }
        })
    }

    fn in_pieces(&self, mut to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let most = bytes.len().min(4096) as u64;
            let piece = self.draw(|random| 1 + random.below(most)) as usize;
            to.write_all(&bytes[..piece])?;
            bytes = &bytes[piece..];
            std::thread::yield_now();
        }
        Ok(())
    }
}

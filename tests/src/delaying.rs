//! Proxy between a log-client and the log-server that delays both directions and keeps the frames
//! that the node sent.

use miot_proto::batch::Columns;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Delay of each direction: a minimum plus a random part.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Minimum delay from the node to the server.
    pub up: Duration,
    /// Minimum delay from the server to the node.
    pub down: Duration,
    /// Maximum of the random part.
    pub jitter: Duration,
}

/// A running proxy with delays.
#[derive(Debug)]
pub struct Delaying {
    /// Port on loopback at which it listens.
    pub port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Delaying {
    /// Starts a proxy to a port on loopback.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(to: u16, delays: Delays, seed: u64) -> io::Result<Delaying> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let sent = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&sent);
        std::thread::spawn(move || {
            for (number, node) in listener.incoming().flatten().enumerate() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let _ = (node.set_nodelay(true), server.set_nodelay(true));
                let (Ok(from_node), Ok(from_server)) = (node.try_clone(), server.try_clone()) else {
                    continue;
                };
                let seed = seed.wrapping_add(number as u64 * 2);
                pass_on(from_node, server, delays.up, delays.jitter, seed | 1, Some(Arc::clone(&kept)));
                pass_on(from_server, node, delays.down, delays.jitter, (seed + 1) | 1, None);
            }
        });
        Ok(Delaying { port, sent })
    }

    /// Completion times of all events that the node sent on one connection, by the node's clock.
    ///
    /// # Panics
    /// If the bytes do not follow the protocol.
    #[must_use]
    pub fn node_times(&self) -> Vec<i64> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rest, mut times) = (&sent[..], Vec::new());
        while let Some((header, after)) = rest.split_first_chunk::<FRAME_HEADER>() {
            let (length, crc) = frame_header(*header, MAX_FRAME).unwrap_or_else(|e| panic!("{e}"));
            let Some((payload, after)) = after.split_at_checked(length) else { break };
            rest = after;
            let message = Message::from_payload(payload, crc).unwrap_or_else(|e| panic!("{e}"));
            if let Message::Batch { columns, .. } = message {
                times.extend(Columns::decode(&columns).unwrap_or_else(|e| panic!("{e}")).time);
            }
        }
        times
    }
}

/// Passes on one direction, in order, each piece when its delay has passed.
fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: Duration,
    jitter: Duration,
    mut chance: u64,
    kept: Option<Arc<Mutex<Vec<u8>>>>,
) {
    let (ready, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (when, bytes) in due {
            std::thread::sleep(when.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            let more = jitter.mul_f64((chance % 1000) as f64 / 1000.0);
            if let Some(kept) = &kept {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
            }
            if ready.send((Instant::now() + delay + more, buffer[..n].to_vec())).is_err() {
                break;
            }
        }
    });
}

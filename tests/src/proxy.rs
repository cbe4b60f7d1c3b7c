//! Proxy between a log-client and the log-server that passes all frames on and checks that no event
//! is older than a watermark sent before it.

use miot_proto::batch::Columns;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Frames seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The last watermark, nanoseconds since 1970 by the node's clock.
    pub watermark: Option<i64>,
    /// Number of times the same watermark was sent again.
    pub repeated: u64,
    /// Number of events passed on.
    pub events: u64,
    /// Latest completion time of these events.
    pub latest: i64,
    /// Description of each violated watermark.
    pub broken: Vec<String>,
}

/// A running proxy that checks watermarks.
#[derive(Debug)]
pub struct Proxy {
    /// Port on loopback at which it listens.
    pub port: u16,
    seen: Arc<Mutex<Seen>>,
}

impl Proxy {
    /// Starts a proxy to a port on loopback.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(to: u16) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // However a connection ends, wait for the next one.
                let _ = pass_on(client, to, &shared);
            }
        });
        Ok(Proxy { port, seen })
    }

    /// Returns a copy of the observations so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn pass_on(mut client: TcpStream, to: u16, seen: &Mutex<Seen>) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", to))?;
    let (mut answers, mut back) = (server.try_clone()?, client.try_clone()?);
    let answering = std::thread::spawn(move || {
        let _ = io::copy(&mut answers, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    });
    loop {
        let mut header = [0; FRAME_HEADER];
        if client.read_exact(&mut header).is_err() {
            break;
        }
        let (length, crc) = frame_header(header, MAX_FRAME).map_err(io::Error::other)?;
        let mut payload = vec![0; length];
        client.read_exact(&mut payload)?;
        let message = Message::from_payload(&payload, crc).map_err(io::Error::other)?;
        look_at(&message, &mut seen.lock().unwrap_or_else(PoisonError::into_inner));
        server.write_all(&header)?;
        server.write_all(&payload)?;
    }
    let _ = server.shutdown(Shutdown::Write);
    let _ = answering.join();
    Ok(())
}

fn look_at(message: &Message, seen: &mut Seen) {
    match message {
        Message::Heartbeat { watermark } => {
            match seen.watermark {
                Some(before) if before == *watermark => seen.repeated += 1,
                Some(before) if before > *watermark => {
                    seen.broken.push(format!("the promise {watermark} after {before}"));
                }
                _ => {}
            }
            seen.watermark = Some(*watermark);
        }
        Message::Batch { columns, .. } => match Columns::decode(columns) {
            Ok(columns) => {
                seen.events += columns.time.len() as u64;
                let promised = seen.watermark.unwrap_or(i64::MIN);
                let below = columns.time.iter().filter(|time| **time < promised);
                let below: Vec<String> =
                    below.map(|time| format!("an event of {time} below {promised}")).collect();
                seen.broken.extend(below);
                seen.latest = columns.time.iter().copied().fold(seen.latest, i64::max);
            }
            Err(error) => seen.broken.push(format!("a batch: {error}")),
        },
        _ => {}
    }
}

//! A log-server on a thread of this process that acknowledges and discards everything.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use anyhow::{Context, Result, bail};
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, VERSION, frame_header};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// The listening thread, ended when this value is dropped.
pub(crate) struct Sink {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Listens on a port of loopback.
    pub(crate) fn start() -> Result<Sink> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("sink".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Relaxed) {
                    return;
                }
                // Ends in an error when the log-client closes the connection.
                let _ = serve(stream);
            }
        })?;
        Ok(Sink { address, stop, thread: Some(thread) })
    }

    /// Address of the listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Wakes the thread, so that it checks whether to end.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut writer: TcpStream) -> Result<()> {
    writer.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 20, writer.try_clone()?);
    let mut payload = Vec::new();
    let Message::Hello { .. } = receive(&mut reader, &mut payload)? else { bail!("no greeting") };
    writer.write_all(&Message::Welcome { version: VERSION, through: 0 }.frame())?;
    let mut unacknowledged = None;
    loop {
        let message = receive(&mut reader, &mut payload)?;
        if matches!(message, Message::Bye) {
            return Ok(());
        }
        unacknowledged = message.seq().or(unacknowledged);
        // Batches that have arrived already are acknowledged together.
        if reader.buffer().len() < FRAME_HEADER
            && let Some(through) = unacknowledged.take()
        {
            writer.write_all(&Message::Ack { through }.frame())?;
        }
    }
}

fn receive(reader: &mut impl Read, payload: &mut Vec<u8>) -> Result<Message> {
    let mut header = [0; FRAME_HEADER];
    reader.read_exact(&mut header)?;
    let (length, crc) = frame_header(header, MAX_FRAME)?;
    payload.resize(length, 0);
    reader.read_exact(payload)?;
    Message::from_payload(payload, crc).context("a frame")
}

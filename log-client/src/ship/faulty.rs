//! A log-server in memory with connections that break: the second implementation of
//! [`Transport`](super::transport::Transport), for tests. Like a broker it stores frames by number
//! and does not interpret them.

use super::transport::{ConnectOutcome, Receiver, Sender, ServerMessage, Transport};
use fastrand::Rng;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;

/// State of the server, and the random events on connections.
#[derive(Debug)]
pub(super) struct FakeServer {
    /// Numbered frames by session and number.
    pub(super) kept: HashMap<u64, BTreeMap<u64, Vec<u8>>>,
    /// Number of frames received more than once.
    pub(super) repeats: usize,
    pub(super) connections: usize,
    pub(super) answers: usize,
    pub(super) said_bye: bool,
    random: Rng,
}

impl FakeServer {
    fn through(&self, session: u64) -> u64 {
        self.kept.get(&session).and_then(|kept| kept.keys().last().copied()).unwrap_or(0)
    }

    fn take(&mut self, session: u64, frame: &[u8]) {
        let (header, payload) = frame.split_first_chunk::<FRAME_HEADER>().unwrap();
        let (_, crc) = frame_header(*header, MAX_FRAME).unwrap();
        let message = Message::from_payload(payload, crc).unwrap();
        match message {
            Message::Bye => self.said_bye = true,
            Message::Pong { sent, .. } => {
                assert_eq!(sent, 7);
                self.answers += 1;
            }
            _ => {}
        }
        let Some(seq) = message.seq().filter(|seq| *seq > 0) else { return };
        let expected = self.through(session) + 1;
        assert!(seq <= expected, "{seq} before {expected}");
        match self.kept.entry(session).or_default().insert(seq, frame.to_vec()) {
            Some(before) => {
                self.repeats += 1;
                assert_eq!(before, frame, "the same number, another message");
            }
            None => assert_eq!(seq, expected),
        }
    }
}

/// Transport to the in-memory server.
#[derive(Debug)]
pub(super) struct FaultyTransport(Arc<Mutex<FakeServer>>);

impl FaultyTransport {
    pub(super) fn new(seed: u64) -> (FaultyTransport, Arc<Mutex<FakeServer>>) {
        let server = FakeServer {
            kept: HashMap::new(),
            repeats: 0,
            connections: 0,
            answers: 0,
            said_bye: false,
            random: Rng::with_seed(seed),
        };
        let server = Arc::new(Mutex::new(server));
        (FaultyTransport(Arc::clone(&server)), server)
    }
}

/// Sending half: frames arrive up to a random one.
#[derive(Debug)]
pub(super) struct FaultySender {
    server: Arc<Mutex<FakeServer>>,
    session: u64,
    news: Option<mpsc::UnboundedSender<ServerMessage>>,
    frames: u64,
}

impl FaultySender {
    fn server(&self) -> MutexGuard<'_, FakeServer> {
        self.server.lock().unwrap()
    }
}

impl Transport for FaultyTransport {
    type Sender = FaultySender;
    type Receiver = mpsc::UnboundedReceiver<ServerMessage>;

    async fn connect(&mut self, session: u64) -> io::Result<ConnectOutcome<FaultySender, Self::Receiver>> {
        let mut server = self.0.lock().unwrap();
        server.connections += 1;
        // On the first connection a permanent refusal would end shipping.
        match server.random.u64(..8) {
            0 => return Err(io::ErrorKind::ConnectionRefused.into()),
            2 => return Ok(ConnectOutcome::NotNow("damaged".into())),
            1 if server.connections > 1 && !server.kept.is_empty() => {
                return Ok(ConnectOutcome::Refused("not now".into()));
            }
            _ => {}
        }
        let (news, receiver) = mpsc::unbounded_channel();
        let _ = news.send(ServerMessage::ClockQuery(7));
        let (frames, through) = (server.random.u64(..12), server.through(session));
        let sender = FaultySender { server: Arc::clone(&self.0), session, news: Some(news), frames };
        Ok(ConnectOutcome::Welcome { sender, receiver, through, minor: 0 })
    }
}

impl Sender for FaultySender {
    async fn send(&mut self, mut frames: &[u8]) -> io::Result<()> {
        while let Some((header, rest)) = frames.split_first_chunk::<FRAME_HEADER>() {
            if self.frames == 0 {
                // Frames that arrived are stored, but no acknowledgment is sent, only perhaps a
                // refusal.
                let refuses = self.server().random.u64(..2) == 0;
                let news = self.news.take().filter(|_| refuses);
                news.map(|news| news.send(ServerMessage::Refused("too much".into())));
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.frames -= 1;
            let (length, _) = frame_header(*header, MAX_FRAME).unwrap();
            let (frame, more) = frames.split_at(FRAME_HEADER + length);
            assert_eq!(rest.len(), frames.len() - FRAME_HEADER);
            let (through, tells) = {
                let mut server = self.server();
                server.take(self.session, frame);
                (server.through(self.session), server.random.u64(..3) == 0 || self.frames > 0)
            };
            if let Some(news) = self.news.as_ref().filter(|_| tells) {
                let _ = news.send(ServerMessage::Acknowledged(through));
            }
            frames = more;
        }
        Ok(())
    }

    async fn finish(&mut self) {
        self.news = None;
    }
}

impl Receiver for mpsc::UnboundedReceiver<ServerMessage> {
    async fn next(&mut self) -> io::Result<ServerMessage> {
        self.recv().await.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

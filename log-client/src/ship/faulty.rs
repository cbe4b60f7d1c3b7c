//! A log-server in memory, on connections that break: the second implementation of
//! [`Transport`](super::transport::Transport), for tests. Like a broker it keeps frames by their numbers and knows
//! nothing of what is in them.

use super::transport::{Answer, News, Receiver, Sender, Transport};
use crate::random::Random;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;

/// What the far end has, and what happens to connections.
#[derive(Debug)]
pub(super) struct Far {
    /// Numbered frames by session and number.
    pub(super) kept: HashMap<u64, BTreeMap<u64, Vec<u8>>>,
    /// Frames that came again.
    pub(super) repeats: usize,
    pub(super) connections: usize,
    pub(super) answers: usize,
    pub(super) said_bye: bool,
    random: Random,
}

impl Far {
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

/// See the module.
#[derive(Debug)]
pub(super) struct Faulty(Arc<Mutex<Far>>);

impl Faulty {
    pub(super) fn new(seed: u64) -> (Faulty, Arc<Mutex<Far>>) {
        let far = Far {
            kept: HashMap::new(),
            repeats: 0,
            connections: 0,
            answers: 0,
            said_bye: false,
            random: Random::new(seed),
        };
        let far = Arc::new(Mutex::new(far));
        (Faulty(Arc::clone(&far)), far)
    }
}

/// What is sent arrives, up to some frame.
#[derive(Debug)]
pub(super) struct Out {
    far: Arc<Mutex<Far>>,
    session: u64,
    news: Option<mpsc::UnboundedSender<News>>,
    frames: u64,
}

impl Out {
    fn far(&self) -> MutexGuard<'_, Far> {
        self.far.lock().unwrap()
    }
}

impl Transport for Faulty {
    type Sender = Out;
    type Receiver = mpsc::UnboundedReceiver<News>;

    async fn connect(&mut self, session: u64) -> io::Result<Answer<Out, Self::Receiver>> {
        let mut far = self.0.lock().unwrap();
        far.connections += 1;
        // At the first connection a refusal would be the end, if it did not pass.
        match far.random.below(8) {
            0 => return Err(io::ErrorKind::ConnectionRefused.into()),
            2 => return Ok(Answer::NotNow("damaged".into())),
            1 if far.connections > 1 && !far.kept.is_empty() => {
                return Ok(Answer::Refused("not now".into()));
            }
            _ => {}
        }
        let (news, incoming) = mpsc::unbounded_channel();
        let _ = news.send(News::Asked(7));
        let (frames, through) = (far.random.below(12), far.through(session));
        let out = Out { far: Arc::clone(&self.0), session, news: Some(news), frames };
        Ok(Answer::Welcome(out, incoming, through, false))
    }
}

impl Sender for Out {
    async fn send(&mut self, mut frames: &[u8]) -> io::Result<()> {
        while let Some((header, rest)) = frames.split_first_chunk::<FRAME_HEADER>() {
            if self.frames == 0 {
                // What has arrived is there; nobody hears of it any more, or only why.
                let refuses = self.far().random.below(2) == 0;
                let news = self.news.take().filter(|_| refuses);
                news.map(|news| news.send(News::Refused("too much".into())));
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.frames -= 1;
            let (length, _) = frame_header(*header, MAX_FRAME).unwrap();
            let (frame, more) = frames.split_at(FRAME_HEADER + length);
            assert_eq!(rest.len(), frames.len() - FRAME_HEADER);
            let (through, tells) = {
                let mut far = self.far();
                far.take(self.session, frame);
                (far.through(self.session), far.random.below(3) == 0 || self.frames > 0)
            };
            if let Some(news) = self.news.as_ref().filter(|_| tells) {
                let _ = news.send(News::Acknowledged(through));
            }
            frames = more;
        }
        Ok(())
    }

    async fn finish(&mut self) {
        self.news = None;
    }
}

impl Receiver for mpsc::UnboundedReceiver<News> {
    async fn next(&mut self) -> io::Result<News> {
        self.recv().await.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

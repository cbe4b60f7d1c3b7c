//! Many nodes at once: log-clients that one thread of the driver simulates.
//!
//! Their batches are prepared in the form in which real log-clients keep them in their spools, so
//! that the simulation only copies them into sockets and reads acknowledgments.

use crate::pattern::{Pattern, Rows};
use anyhow::{Context, Result, bail, ensure};
use miot_proto::batch::Columns;
use miot_proto::wire::{
    FRAME_HEADER, GREETING, Message, Process, ProcessKey, ProcessLoss, Role, Stream, StreamEnd, StreamKey,
    VERSION, frame_header,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Process id on node 0. Those of other nodes follow.
pub(crate) const FIRST_PID: u32 = 1000;

/// Batches to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) pattern: Pattern,
    pub(crate) nodes: u64,
    /// Streams of each node, all of one process.
    pub(crate) streams: u64,
    /// Events of a batch.
    pub(crate) rows: u64,
    /// Batches of each stream.
    pub(crate) batches: u64,
}

impl Plan {
    /// Events of all nodes.
    pub(crate) fn events(&self) -> u64 {
        self.nodes * self.streams * self.rows * self.batches
    }
}

/// Frames of all nodes of a plan.
pub(crate) struct Fleet {
    nodes: Vec<Cargo>,
}

/// Frames of one node.
struct Cargo {
    frames: Vec<u8>,
    /// Positions at which other frames may be inserted, with the last batch number before each.
    seams: Vec<(usize, u64)>,
}

/// Result of sending.
#[derive(Clone, Copy)]
pub(crate) struct Shipped {
    /// Time from the first connection to the last acknowledgment.
    pub(crate) wall: Duration,
    /// CPU time in seconds of the thread that simulates the nodes.
    pub(crate) cpu: f64,
}

impl Fleet {
    /// Creates all frames of a plan. The last event is now, and events of a stream are a
    /// microsecond apart.
    pub(crate) fn build(plan: Plan) -> Fleet {
        Fleet::of(plan, true)
    }

    /// Like [`Fleet::build`], without the ends of streams and processes.
    pub(crate) fn build_open(plan: Plan) -> Fleet {
        Fleet::of(plan, false)
    }

    fn of(plan: Plan, ends: bool) -> Fleet {
        let now = now();
        Fleet { nodes: (0..plan.nodes).map(|node| cargo(plan, node, now, ends)).collect() }
    }

    /// Bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.nodes.iter().map(|cargo| cargo.frames.len() as u64).sum()
    }

    /// Sends everything and waits until it is acknowledged: then it is durable and in order.
    pub(crate) fn ship(&self, address: &str) -> Result<Shipped> {
        self.ship_to_set(&[address], |_| Ok(()))
    }

    /// Like [`Fleet::ship`], to several log-servers: node `n` sends to number `n` modulo their
    /// number. Calls `ended` with the number of a log-server when it has acknowledged everything.
    pub(crate) fn ship_to_set(
        &self,
        addresses: &[&str],
        ended: impl FnMut(usize) -> Result<()>,
    ) -> Result<Shipped> {
        Ok(self.play(addresses, false, ended)?.0)
    }

    /// Like [`Fleet::ship`], but keeps the connections open.
    pub(crate) fn ship_and_stay(&self, address: &str) -> Result<Vec<TcpStream>> {
        Ok(self.play(&[address], false, |_| Ok(()))?.1.into_iter().map(|player| player.socket).collect())
    }

    /// Sends one batch of each stream at a time, and the next ones after their acknowledgment.
    /// Returns the time of each in milliseconds, without the first, which waits for the clock.
    pub(crate) fn ship_one_by_one(&self, address: &str) -> Result<Vec<f64>> {
        let players = self.play(&[address], true, |_| Ok(()))?.1;
        Ok(players.into_iter().flat_map(|player| player.delays.into_iter().skip(1)).collect())
    }

    fn play(
        &self,
        addresses: &[&str],
        one_by_one: bool,
        mut ended: impl FnMut(usize) -> Result<()>,
    ) -> Result<(Shipped, Vec<Player<'_>>)> {
        let (started, before) = (Instant::now(), crate::process::this_thread_cpu());
        let cargo = self.nodes.iter().zip(addresses.iter().cycle()).enumerate();
        let players = cargo.map(|(node, (cargo, address))| Player::connect(address, node, cargo, one_by_one));
        let mut players = players.collect::<Result<Vec<_>>>()?;
        let mut heard = Instant::now();
        let mut working: Vec<usize> = (0..addresses.len()).collect();
        while players.iter().any(|player| !player.is_done()) {
            let mut polled: Vec<libc::pollfd> = players.iter().map(Player::wants).collect();
            // SAFETY: the list has that number of elements.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 1000) };
            ensure!(ready >= 0, "poll: {}", std::io::Error::last_os_error());
            if ready > 0 {
                heard = Instant::now();
            }
            ensure!(heard.elapsed() < PATIENCE, "the log-server does not answer any more");
            for (player, polled) in players.iter_mut().zip(&polled) {
                if polled.revents != 0 {
                    player.go_on()?;
                }
            }
            let is_done =
                |server: &usize| players.iter().skip(*server).step_by(addresses.len()).all(Player::is_done);
            let done: Vec<usize> = working.extract_if(.., |server| is_done(server)).collect();
            done.into_iter().try_for_each(&mut ended)?;
        }
        let cpu = crate::process::this_thread_cpu() - before;
        Ok((Shipped { wall: started.elapsed(), cpu }, players))
    }
}

fn cargo(plan: Plan, node: u64, now: i64, ends: bool) -> Cargo {
    let (mut frames, mut seams, mut last) = (Vec::new(), vec![(0, 0)], 0u64);
    let mut put = |frames: &mut Vec<u8>, message: &dyn Fn(u64) -> Message| {
        last += 1;
        message(last).append_frame(frames);
        last
    };
    let key = ProcessKey { boot: 7, nonce: node + 1, pid: FIRST_PID + node as u32 };
    let span = (plan.rows * plan.batches) as i64 * 1000;
    let first = now - span;
    let process = Process {
        key,
        ppid: 1,
        uid: 1000,
        started: first,
        rank: Some(node as u32),
        exe: b"/usr/bin/simulation".to_vec(),
        cmdline: b"simulation\0--steps=1000".to_vec(),
        job: b"4711".to_vec(),
        cwd: b"/scratch/run".to_vec(),
    };
    put(&mut frames, &|seq| Message::Process { seq, process: process.clone() });
    let mut rows: Vec<Rows> = Vec::new();
    for stream in 0..plan.streams {
        let name = StreamKey { process: key, lane: stream as u32, incarnation: 1 };
        let tid = key.pid + stream as u32;
        let stream = Stream { number: stream as u32 + 1, key: name, tid, comm: b"worker".to_vec() };
        put(&mut frames, &|seq| Message::Stream { seq, stream: stream.clone() });
        rows.push(Rows::new(plan.pattern, node * plan.streams + rows.len() as u64, first));
    }
    let (mut columns, mut scratch) = (Columns::default(), Vec::new());
    for _ in 0..plan.batches {
        let (mut watermark, mut through) = (i64::MAX, 0);
        for (stream, rows) in rows.iter_mut().enumerate() {
            columns.clear();
            (0..plan.rows).for_each(|_| rows.push_to(&mut columns));
            let after = columns.attempt.first().copied().unwrap_or(0);
            // Later than the last event: the log-server keeps an event at the watermark until the
            // next one.
            watermark = watermark.min(rows.time() + 1);
            let mut encoded = Vec::new();
            columns.encode(&mut scratch, &mut encoded);
            let stream = stream as u32 + 1;
            through =
                put(&mut frames, &|seq| Message::Batch { seq, stream, after, columns: encoded.clone() });
        }
        Message::Heartbeat { watermark }.append_frame(&mut frames);
        seams.push((frames.len(), through));
    }
    if ends {
        for (stream, rows) in rows.iter().enumerate() {
            let end = StreamEnd {
                stream: stream as u32 + 1,
                attempts: plan.rows * plan.batches,
                after: plan.rows * plan.batches,
                lost_full: 0,
                lost_nested: 0,
                filtered: 0,
                time: rows.time(),
            };
            put(&mut frames, &|seq| Message::StreamEnd { seq, end });
        }
        let (time, lost) = (first + span, ProcessLoss::default());
        put(&mut frames, &|seq| Message::ProcessEnd { seq, key, time, lost });
    }
    // No further events follow, so the log-server need not wait for this node.
    Message::Heartbeat { watermark: now + 1_000_000_000 }.append_frame(&mut frames);
    seams.push((frames.len(), last));
    Cargo { frames, seams }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// State of one connection.
struct Player<'a> {
    cargo: &'a Cargo,
    socket: TcpStream,
    /// Bytes sent so far, and the position up to which to send next.
    sent: usize,
    seam: usize,
    /// Frames to be inserted at that position.
    answers: Vec<u8>,
    input: Vec<u8>,
    welcome: bool,
    through: u64,
    one_by_one: bool,
    /// Time at which the unacknowledged batch was sent.
    asked: Instant,
    delays: Vec<f64>,
}

impl Player<'_> {
    fn connect<'a>(address: &str, node: usize, cargo: &'a Cargo, one_by_one: bool) -> Result<Player<'a>> {
        let mut socket = TcpStream::connect(address).context("the log-server does not answer")?;
        let (greeting, version, role) = (GREETING, VERSION, Role::Node);
        let node = format!("node{node:04}");
        socket.write_all(&Message::Hello { greeting, version, role, node, session: 1 }.frame())?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Player {
            cargo,
            socket,
            sent: 0,
            seam: 0,
            answers: Vec::new(),
            input: Vec::new(),
            welcome: false,
            through: 0,
            one_by_one,
            asked: Instant::now(),
            delays: Vec::new(),
        })
    }

    fn at_seam(&self) -> bool {
        self.sent == self.cargo.seams[self.seam].0
    }

    /// True while sent batches must be acknowledged before the next.
    fn waits(&self) -> bool {
        self.one_by_one && self.through < self.cargo.seams[self.seam].1
    }

    fn is_done(&self) -> bool {
        self.cargo.seams.last().is_some_and(|last| self.sent == last.0 && self.through >= last.1)
    }

    fn wants(&self) -> libc::pollfd {
        let rest = self.sent < self.cargo.frames.len() && !(self.at_seam() && self.waits());
        let more = self.welcome && (rest || !self.answers.is_empty());
        let events = if more { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 }
    }

    fn go_on(&mut self) -> Result<()> {
        self.read()?;
        if self.welcome { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        loop {
            let at_seam = self.at_seam();
            if at_seam && !self.answers.is_empty() {
                match self.socket.write(&self.answers) {
                    Ok(written) => drop(self.answers.drain(..written)),
                    Err(error) => return would_block(error),
                }
                continue;
            }
            if at_seam {
                if self.seam + 1 == self.cargo.seams.len() || self.waits() {
                    return Ok(());
                }
                self.seam += 1;
                self.asked = Instant::now();
            }
            match self.socket.write(&self.cargo.frames[self.sent..self.cargo.seams[self.seam].0]) {
                Ok(written) => self.sent += written,
                Err(error) => return would_block(error),
            }
        }
    }

    fn read(&mut self) -> Result<()> {
        let mut chunk = [0; 4096];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => bail!("the log-server closed the connection"),
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(error) => {
                    would_block(error)?;
                    break;
                }
            }
        }
        self.take_messages()
    }

    fn take_messages(&mut self) -> Result<()> {
        while let Some(header) = self.input.first_chunk::<FRAME_HEADER>() {
            let (length, crc) = frame_header(*header, 1 << 20)?;
            let Some(payload) = self.input.get(FRAME_HEADER..FRAME_HEADER + length) else { break };
            match Message::from_payload(payload, crc)? {
                Message::Welcome { .. } => self.welcome = true,
                Message::Ping { sent } => {
                    Message::Pong { sent, received: now(), answered: now() }.append_frame(&mut self.answers);
                }
                Message::Ack { through } => {
                    self.through = through;
                    if self.one_by_one && self.at_seam() && !self.waits() {
                        self.delays.push(self.asked.elapsed().as_secs_f64() * 1e3);
                    }
                }
                Message::Refused { reason, .. } => bail!("refused: {reason}"),
                _ => {}
            }
            self.input.drain(..FRAME_HEADER + length);
        }
        Ok(())
    }
}

/// Connects as a node without batches, and waits until the log-server welcomes it and thus serves.
pub(crate) fn greet(address: &str) -> Result<()> {
    let nothing = Cargo { frames: Vec::new(), seams: vec![(0, 0)] };
    let mut player = Player::connect(address, 9999, &nothing, false)?;
    player.socket.set_nonblocking(false)?;
    player.socket.set_read_timeout(Some(PATIENCE))?;
    while !player.welcome {
        let mut chunk = [0; 4096];
        let read = player.socket.read(&mut chunk)?;
        ensure!(read > 0, "the log-server closed the connection");
        player.input.extend_from_slice(&chunk[..read]);
        player.take_messages()?;
    }
    Ok(())
}

fn would_block(error: std::io::Error) -> Result<()> {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
        Ok(())
    } else {
        Err(error.into())
    }
}

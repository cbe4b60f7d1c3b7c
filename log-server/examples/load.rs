//! Cost of a log-server: simulated nodes send prepared frames to a server in this process at full
//! speed. Prints the CPU time of each thread per event.
//!
//! ```text
//! cargo run --release -p miot-log-server --example load -- \
//!     [NODES] [STREAMS PER NODE] [MILLION EVENTS] [DIR]
//! ```

use miot_log_server::{Config, LogServer};
use miot_proto::batch::Columns;
use miot_proto::event::{Event, Ext, NONE};
use miot_proto::op::posix;
use miot_proto::wire::{
    FRAME_HEADER, GREETING, MAX_FRAME, Message, Process, ProcessKey, Role, Stream, StreamKey, VERSION,
    frame_header,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of rows in a batch.
const BATCH: u64 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    miot_log_server::keep_freed_memory();
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().and_then(|a| a.parse().ok()).unwrap_or(default);
    let (nodes, streams, events) = (number(1), number(16), number(10) * 1_000_000);
    let temp = tempfile::tempdir()?;
    let trace = args.next().map_or_else(|| temp.path().to_owned(), Into::into).join("trace");
    let per_stream = events / (nodes * streams) / BATCH * BATCH;
    let total = per_stream * nodes * streams;

    // On a separate thread, so that its time is not counted for the server.
    let prepared =
        std::thread::spawn(move || (0..nodes).map(|node| prepare(node, streams, per_stream)).collect());
    let frames: Vec<Vec<Vec<u8>>> = prepared.join().map_err(|_| "preparing failed")?;
    let before = process_cpu();
    let bytes: usize = frames.iter().flatten().map(Vec::len).sum();
    println!(
        "{nodes} nodes x {streams} streams, {total} events, {:.1} bytes per event on the wire",
        bytes as f64 / total as f64
    );

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = Config { listen: "127.0.0.1:0".into(), trace: trace.clone(), ..Config::default() };
    let started = Instant::now();
    let (report, before_seal) = runtime.block_on(async {
        let server = LogServer::bind(config).await?;
        let address = server.local_addr();
        let (done, finished) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().name("nodes".into()).spawn(move || {
            let senders: Vec<_> = frames
                .into_iter()
                .zip(0..)
                .map(|(frames, node)| std::thread::spawn(move || send(address, node, &frames)))
                .collect();
            for sender in senders {
                if let Ok(Err(error)) = sender.join() {
                    eprintln!("a node failed: {error}");
                }
            }
            let _ = done.send(started.elapsed());
        })?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let watch = tokio::spawn(async move {
            let elapsed = finished.await.unwrap_or_default();
            print_threads(total);
            let _ = stop.send(());
            elapsed
        });
        let report = server.run(async { drop(stopped.await) }).await?;
        Ok::<_, Box<dyn std::error::Error>>((report, watch.await?))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "all acknowledged after {:.2} s: {:.2} M events/s",
        before_seal.as_secs_f64(),
        total as f64 / before_seal.as_secs_f64() / 1e6
    );
    println!(
        "sealed after {seconds:.2} s: {:.2} M events/s, {:.2} bytes per event",
        total as f64 / seconds / 1e6,
        report.bytes as f64 / total as f64
    );
    println!(
        "process: {:.1} ns CPU per event in all (simulated nodes included)",
        (process_cpu() - before) * 1e9 / total as f64
    );
    assert_eq!(report.events, total);
    Ok(())
}

/// Creates the frames of one node: definitions, then rounds of one batch per stream and a
/// heartbeat.
fn prepare(node: u64, streams: u64, per_stream: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut seq = 0;
    let mut next = || {
        seq += 1;
        seq
    };
    let key = ProcessKey { boot: 1, nonce: node, pid: 100 };
    let process = Process {
        key,
        ppid: 1,
        uid: 0,
        started: 0,
        rank: None,
        exe: b"/bin/load".to_vec(),
        cmdline: b"load".to_vec(),
        job: vec![],
        cwd: b"/".to_vec(),
    };
    frames.push(Message::Process { seq: next(), process }.frame());
    for number in 0..streams as u32 {
        let stream = Stream {
            number,
            key: StreamKey { process: key, lane: number, incarnation: 1 },
            tid: 100 + number,
            comm: b"load".to_vec(),
        };
        frames.push(Message::Stream { seq: next(), stream }.frame());
    }
    let start =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64) - 60_000_000_000;
    let (mut scratch, mut columns, mut random) =
        (Vec::new(), Columns::default(), 88172645463325252u64 + node);
    for round in 0..per_stream / BATCH {
        for stream in 0..streams {
            columns.clear();
            for row in 0..BATCH {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let n = round * BATCH + row;
                let opens = n == 0;
                let event = Event {
                    op: if opens { posix::OPEN } else { posix::PREAD },
                    request: n as u32 + 1,
                    enclosing: 0,
                    end: 0,
                    duration: 0,
                    flags: 0,
                    handle: stream + 1,
                    offset: if opens { NONE } else { random % 1000 * 4096 },
                    length: 4096,
                    result: 4096,
                };
                let path = format!("/data/{node}/{stream}");
                let ext = Ext { path1: path.as_bytes(), ..Ext::default() };
                let time = start + (n * 1000 + random % 900) as i64;
                columns.push(1, n, time, 500 + random % 300, &event, opens.then_some(&ext));
            }
            let mut bytes = Vec::new();
            columns.encode(&mut scratch, &mut bytes);
            frames.push(
                Message::Batch { seq: next(), stream: stream as u32, after: 0, columns: bytes }.frame(),
            );
        }
        let watermark = start + ((round + 1) * BATCH * 1000) as i64;
        frames.push(Message::Heartbeat { watermark }.frame());
    }
    frames
}

/// Sends all frames, answers pings, and waits for the last acknowledgment.
fn send(address: SocketAddr, node: u64, frames: &[Vec<u8>]) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    let hello = Message::Hello {
        greeting: GREETING,
        version: VERSION,
        role: Role::Node,
        node: format!("node{node}"),
        session: 1,
    };
    socket.write_all(&hello.frame())?;
    let mut reader = socket.try_clone()?;
    let mut pongs = socket.try_clone()?;
    let wanted = frames.iter().filter(|f| !is_heartbeat(f)).count() as u64;
    // A pong in the middle of a frame would tear it, so both writers hold a lock.
    let turn = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match receive(&mut reader) {
                    Ok(Message::Ack { through }) if through >= wanted => return,
                    Ok(Message::Ping { sent }) => {
                        let answered =
                            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
                        let _turn = turn.lock();
                        let _ =
                            pongs.write_all(&Message::Pong { sent, received: answered, answered }.frame());
                    }
                    Ok(Message::Refused { reason, .. }) => return eprintln!("refused: {reason}"),
                    Ok(_) => {}
                    Err(error) => return eprintln!("connection: {error}"),
                }
            }
        });
        for frame in frames {
            let _turn = turn.lock();
            socket.write_all(frame)?;
        }
        Ok::<_, std::io::Error>(())
    })?;
    socket.write_all(&Message::Bye.frame())?;
    std::thread::sleep(Duration::from_millis(50));
    Ok(())
}

fn is_heartbeat(frame: &[u8]) -> bool {
    let Some((header, payload)) = frame.split_first_chunk::<FRAME_HEADER>() else { return false };
    let crc = frame_header(*header, MAX_FRAME).map_or(0, |(_, crc)| crc);
    payload.len() < 32 && matches!(Message::from_payload(payload, crc), Ok(Message::Heartbeat { .. }))
}

fn receive(socket: &mut TcpStream) -> std::io::Result<Message> {
    let mut header = [0; FRAME_HEADER];
    socket.read_exact(&mut header)?;
    let (length, crc) = frame_header(header, MAX_FRAME).map_err(std::io::Error::other)?;
    let mut payload = vec![0; length];
    socket.read_exact(&mut payload)?;
    Message::from_payload(&payload, crc).map_err(std::io::Error::other)
}

/// Prints the CPU time of each thread that has used some.
fn print_threads(events: u64) {
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let ran = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let nanos: f64 = ran.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
        if nanos / events as f64 > 0.1 {
            println!("  {:<16} {:6.1} ns CPU per event", name.trim(), nanos / events as f64);
        }
    }
}

/// CPU time of this process, seconds.
fn process_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    // Fields 14 and 15 of proc(5), in ticks of 10 ms.
    (ticks(11) + ticks(12)) / 100.0
}

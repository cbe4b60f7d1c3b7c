//! Measures the CPU time of the log-client per event: draining, converting, encoding, shipping.
//!
//! `cargo run --release --example drain_cost [THREADS [EVENTS [seq|random|paths]]]` starts a
//! producer in a separate process, a log-client, and a server in this process that acknowledges and
//! discards. Prints the CPU time of the log-client's two threads per event, as JSON.

use miot_log_client::{Config, LogClient};
use miot_proto::control::WhenFull;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, VERSION, frame_header};
use miot_tracer::{Completion, Ext, begin, end, end_with, op};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

type Anything = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Anything> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "produce") {
        return produce(&arguments[1..]);
    }
    let dir = format!("/dev/shm/miot-drain-cost-{}", std::process::id());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?.to_string();
    std::thread::Builder::new().name("server".into()).spawn(move || serve(&listener))?;
    let client = LogClient::prepare(Config {
        dir: dir.clone().into(),
        server,
        when_full: WhenFull::Wait,
        ..Config::default()
    })?;

    let mut command = Command::new(std::env::current_exe()?);
    let mut producer = command.arg("produce").args(&arguments).env("MIOT_DIR", &dir).spawn()?;
    let started = Instant::now();
    let (cpu, spent) = std::sync::mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(client.run(async {
        while producer.try_wait().is_ok_and(|status| status.is_none()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The sweeper's thread has ended after the run.
        let _ = cpu.send((thread_cpu("miot-sweeper"), started.elapsed()));
    }));
    let own_name = std::fs::read_to_string("/proc/thread-self/comm")?;
    let shipping = thread_cpu(own_name.trim());
    let _ = std::fs::remove_dir_all(&dir);
    let (report, (sweeping, took)) = (report?, spent.recv()?);
    let per_event = |nanos: u64| nanos as f64 / report.events as f64;
    println!(
        "{{\"events\":{},\"sweeper_ns\":{:.1},\"shipper_ns\":{:.1},\"bytes\":{:.2},\"events_per_s\":{:.0},\"lost\":{}}}",
        report.events,
        per_event(sweeping),
        per_event(shipping),
        report.bytes as f64 / report.events as f64,
        report.events as f64 / took.as_secs_f64(),
        report.lost_full,
    );
    Ok(())
}

/// CPU time of a thread of this process so far, nanoseconds.
fn thread_cpu(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|task| task.path());
    let named = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let spent = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.filter(named).filter_map(spent).sum()
}

fn produce(arguments: &[String]) -> Result<(), Anything> {
    let number = |index: usize, default: u64| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (threads, events) = (number(0, 1)?, number(1, 10_000_000)?);
    let kind = arguments.get(2).cloned().unwrap_or_else(|| "seq".into());
    let threads: Vec<_> = (0..threads)
        .map(|thread| {
            let kind = kind.clone();
            std::thread::spawn(move || record(events / threads, thread + 1, &kind))
        })
        .collect();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

fn record(events: u64, seed: u64, kind: &str) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for i in 0..events {
        let random = rng.u64(..);
        let offset = if kind == "seq" { i * 4096 } else { (random % (1 << 40)) & !4095 };
        let Some(begun) = begin(op::posix::READ) else { continue };
        let done = Completion { handle: 7 + random % 4, offset, length: 4096, result: 4096, flags: 0 };
        if kind == "paths" && i % 16 == 0 {
            let path =
                format!("/home/user/project/data/directory{:02}/file{:06}", random % 100, i % 1_000_000);
            end_with(begun, done, &Ext { path1: path.as_bytes(), ..Ext::default() });
        } else {
            end(begun, done);
        }
    }
}

fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let _ = answer(stream);
    }
}

fn answer(mut stream: TcpStream) -> Result<(), Anything> {
    receive(&mut stream)?;
    stream.write_all(&Message::Welcome { version: VERSION, through: 0 }.frame())?;
    loop {
        if let Some(through) = receive(&mut stream)?.seq() {
            stream.write_all(&Message::Ack { through }.frame())?;
        }
    }
}

fn receive(stream: &mut TcpStream) -> Result<Message, Anything> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header)?;
    let (length, crc) = frame_header(header, MAX_FRAME)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Message::from_payload(&payload, crc)?)
}

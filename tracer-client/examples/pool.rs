//! A file-system client with a pool of workers, like `c/pool.c`: callers queue requests, workers
//! serve them. See docs/hooks/instrument.md.
//!
//! ```text
//! cargo build -p miot-tracer --example pool
//! miot run -- target/debug/examples/pool FOLDER CALLERS REQUESTS
//! ```
//!
//! The lines that record requests with MIOT are marked with "MIOT:".

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use miot_tracer::{AsyncRequest, Completion, Ext, Op, complete, op, submit};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};

const WORKERS: usize = 4;
const DEPTH: u64 = 8;
const BLOCK: u64 = 4096;

/// An open file of the client.
struct ServedFile {
    file: File,
    /// MIOT: returned by `miot_tracer::open`.
    handle: u64,
}

struct Request<'a> {
    op: Op,
    file: &'a ServedFile,
    offset: u64,
    buffer: Vec<u8>,
    buffers: Sender<Vec<u8>>,
    /// MIOT: passed along with the request.
    traced: Option<AsyncRequest>,
}

#[derive(Default)]
struct Queue<'a> {
    requests: Mutex<(VecDeque<Request<'a>>, bool)>,
    work: Condvar,
}

#[derive(Default)]
struct Totals {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> Queue<'a> {
    fn submit(&self, mut request: Request<'a>) {
        // MIOT: the request begins when it arrives, before it waits in the queue.
        request.traced = submit(request.op);
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(request);
        self.work.notify_one();
    }

    fn stop(&self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.work.notify_all();
    }

    fn next(&self) -> Option<Request<'a>> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match requests.0.pop_front() {
                Some(request) => return Some(request),
                None if requests.1 => return None,
                None => requests = self.work.wait(requests).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn serve(&self, counts: &[Totals; 2]) {
        while let Some(mut request) = self.next() {
            let (file, length) = (&request.file.file, request.buffer.len() as u64);
            let served = if request.op == op::client::WRITE {
                file.write_at(&request.buffer, request.offset)
            } else {
                file.read_at(&mut request.buffer, request.offset)
            };
            let result = served.map_or_else(errno, |moved| moved as i64);
            // MIOT: the request ends where its result is known, on any thread, before the caller
            // is notified.
            if let Some(traced) = request.traced {
                let (handle, offset) = (request.file.handle, request.offset);
                complete(traced, Completion { handle, offset, length, result, flags: 0 }, &Ext::default());
            }
            let counts = &counts[usize::from(request.op == op::client::WRITE)];
            counts.requests.fetch_add(1, Relaxed);
            counts.bytes.fetch_add(result.max(0) as u64, Relaxed);
            let _ = request.buffers.send(request.buffer);
        }
    }

    fn call(&self, file: &'a ServedFile, requests: u64) {
        let (buffers, free) = channel();
        (0..DEPTH).for_each(|_| _ = buffers.send(Vec::new()));
        for i in 0..requests {
            let Ok(mut buffer) = free.recv() else { return };
            buffer.resize((1 + i * 977 % BLOCK) as usize, 0);
            let op = if i % 3 == 0 { op::client::READ } else { op::client::WRITE };
            let offset = i * 31 % 64 * BLOCK;
            self.submit(Request { op, file, offset, buffer, buffers: buffers.clone(), traced: None });
        }
        (0..DEPTH).for_each(|_| _ = free.recv());
    }
}

fn errno(error: io::Error) -> i64 {
    // 5: EIO.
    -i64::from(error.raw_os_error().unwrap_or(5))
}

fn arguments() -> Option<(PathBuf, usize, u64)> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next()?.into();
    let mut number = || arguments.next()?.to_str()?.parse::<u64>().ok();
    Some((folder, number()? as usize, number()?))
}

fn run(folder: &std::path::Path, callers: usize, requests: u64) -> io::Result<()> {
    let open = |i| {
        let path = folder.join(format!("{i}"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        // MIOT: a file's name is recorded once; requests contain its handle.
        Ok(ServedFile { file, handle: miot_tracer::open(path.as_os_str().as_encoded_bytes()) })
    };
    let files = (0..callers).map(open).collect::<io::Result<Vec<ServedFile>>>()?;
    let (queue, counts) = (Queue::default(), <[Totals; 2]>::default());
    std::thread::scope(|scope| {
        (0..WORKERS).for_each(|_| _ = scope.spawn(|| queue.serve(&counts)));
        let calls: Vec<_> = files.iter().map(|file| scope.spawn(|| queue.call(file, requests))).collect();
        calls.into_iter().for_each(|call| _ = call.join());
        queue.stop();
    });
    files.iter().for_each(|file| _ = miot_tracer::close(file.handle));
    for (name, counts) in ["read", "write"].iter().zip(&counts) {
        println!("{name} {} {}", counts.requests.load(Relaxed), counts.bytes.load(Relaxed));
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some((folder, callers, requests)) = arguments() else {
        eprintln!("usage: pool FOLDER CALLERS REQUESTS");
        return ExitCode::from(2);
    };
    match run(&folder, callers, requests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pool: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

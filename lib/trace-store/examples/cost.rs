//! Cost of storing events: CPU time per event to append and commit, to seal and to read; bytes per
//! event; cost of commits; time of a writer to continue after a crash.
//!
//! `cargo run --profile dist -p miot-trace-store --example cost [directory [millions of events [MiB
//! unsealed]]]`
//!
//! The events are like those of fio with four threads: 4 KiB requests, each thread in its own file,
//! in random order. CPU time is that of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
    UInt16Array, UInt32Array, UInt64Array, new_null_array,
};
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Options, Reader, Table, Writer, schema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Duration of the measurement of each way to commit.
const COMMITS_FOR: Duration = Duration::from_secs(3);

/// Scans of each kind, of which the fastest counts.
const SCANS: usize = 7;

const THREADS: u64 = 4;

/// Generator of batches of fio-like events.
struct Load {
    random: fastrand::Rng,
    sequential: bool,
    time: i64,
    seq: [u64; THREADS as usize],
    node: ArrayRef,
    layer: ArrayRef,
    op: ArrayRef,
}

impl Load {
    fn new(sequential: bool) -> Load {
        let names = |names: &[&str]| -> ArrayRef { Arc::new(StringArray::from(names.to_vec())) };
        Load {
            random: fastrand::Rng::with_seed(1),
            sequential,
            time: 1_763_700_000_000_000_000,
            // The threads begin with different numbers of requests.
            seq: [40, 1000, 7, 333],
            node: names(&["node-17"]),
            layer: names(&["posix"]),
            op: names(&["pread", "pwrite"]),
        }
    }

    fn batch(&mut self, rows: usize) -> RecordBatch {
        let events = schema::of(Table::Events);
        let none = |name: &str| new_null_array(events.field_with_name(name).unwrap().data_type(), rows);
        let (mut times, mut durations, mut threads, mut seqs, mut offsets, mut ops) =
            (vec![], vec![], vec![], vec![], vec![], vec![]);
        for _ in 0..rows {
            let thread = self.random.u64(..THREADS);
            let seq = &mut self.seq[thread as usize];
            *seq += 1;
            self.time += 150 + self.random.u64(..400) as i64;
            times.push(self.time);
            durations
                .push(900 + self.random.u64(..500) as i64 + if self.random.u8(..) < 2 { 20_000 } else { 0 });
            threads.push(thread);
            seqs.push(*seq);
            offsets
                .push(4096 * if self.sequential { *seq as i64 } else { self.random.u64(..1 << 18) as i64 });
            ops.push(i32::from(!self.sequential && self.random.u64(..10) < 3));
        }
        let u64s = |values: Vec<u64>| -> ArrayRef { Arc::new(UInt64Array::from(values)) };
        let u32s = |values: Vec<u32>| -> ArrayRef { Arc::new(UInt32Array::from(values)) };
        let of_threads = |add: u64| u64s(threads.iter().map(|t| t + add).collect());
        let zeros = || Int32Array::from(vec![0; rows]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC")),
            Arc::new(Int64Array::from(durations)),
            Arc::new(DictionaryArray::<NameKey>::new(zeros(), Arc::clone(&self.node))),
            u64s(vec![1; rows]),
            u32s(vec![4321; rows]),
            u32s(threads.iter().map(|t| *t as u32 + 4322).collect()),
            Arc::new(DictionaryArray::<NameKey>::new(zeros(), Arc::clone(&self.layer))),
            Arc::new(DictionaryArray::<NameKey>::new(Int32Array::from(ops), Arc::clone(&self.op))),
            of_threads(1),
            none("file2"),
            of_threads(7),
            Arc::new(Int64Array::from(offsets)),
            none("offset2"),
            Arc::new(Int64Array::from(vec![4096; rows])),
            none("arg"),
            Arc::new(Int64Array::from(vec![4096; rows])),
            Arc::new(UInt16Array::from(vec![0; rows])),
            of_threads(1),
            u64s(seqs.clone()),
            u32s(seqs.iter().map(|s| *s as u32 + 1).collect()),
            none("enclosing"),
            none("cpu_time"),
            none("caller_tid"),
            none("caller_uid"),
            none("mpi_rank"),
            none("mpi_size"),
            none("etypes"),
            none("type_size"),
            none("type_extent"),
        ];
        schema::batch(Table::Events, columns).unwrap()
    }
}

/// Returns the CPU time of this process so far, nanoseconds.
fn cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the CPU time of a function, nanoseconds.
fn cpu_of(scan: impl Fn() -> usize) -> f64 {
    let start = cpu();
    black_box(scan());
    (cpu() - start) as f64
}

/// Reads all rows as every reader of MIOT does: checksums of a row group before its rows.
fn verified_scan(dir: &Path) -> usize {
    Reader::open(dir).unwrap().events().map(|batch| batch.unwrap().num_rows()).sum()
}

/// Reads all rows with the Parquet reader alone, in batches of the same size.
fn bare_scan(dir: &Path) -> usize {
    let parts = Reader::open(dir).unwrap().sealed().map(|(_, path)| path).collect::<Vec<_>>();
    let rows = |path: PathBuf| {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        let batches = reader.with_batch_size(1 << 14).build().unwrap();
        batches.map(|batch| batch.unwrap().num_rows()).sum::<usize>()
    };
    parts.into_iter().map(rows).sum()
}

fn bytes(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum()
}

fn measure(dir: &Path, sequential: bool, rows: usize, events: usize) {
    let _ = std::fs::remove_dir_all(dir);
    let mut writer = Writer::create(dir, Options { seal_rows: u64::MAX, ..Options::default() }).unwrap();
    let mut load = Load::new(sequential);
    let batches: Vec<RecordBatch> = (0..events / rows).map(|_| load.batch(rows)).collect();
    let events = (batches.len() * rows) as f64;
    let start = cpu();
    for (i, batch) in batches.iter().enumerate() {
        writer.append(Table::Events, batch).unwrap();
        if (i + 1) * rows % 65_536 < rows {
            writer.commit().unwrap();
        }
    }
    writer.commit().unwrap();
    let append = (cpu() - start) as f64 / events;
    drop(batches);
    let live = bytes(&dir.join("live")) as f64 / events;
    let start = cpu();
    writer.finish().unwrap();
    let seal = (cpu() - start) as f64 / events;
    let sealed = bytes(&dir.join("events")) as f64 / events;
    let (mut read, mut bare) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..SCANS {
        read = read.min(cpu_of(|| verified_scan(dir)) / events);
        bare = bare.min(cpu_of(|| bare_scan(dir)) / events);
    }
    assert_eq!((verified_scan(dir), bare_scan(dir)), (events as usize, events as usize));
    let name = if sequential { "sequential" } else { "random" };
    println!(
        "{name:<11} {rows:>6}  {append:>6.1} ns {live:>6.2} B   {seal:>6.1} ns {sealed:>6.2} B   {read:>6.1} ns   {bare:>6.1} ns ({:+.1} %)",
        100.0 * (read / bare - 1.0)
    );
}

/// Returns the longest of the shortest `percent` of `times`, microseconds.
fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times[(times.len() - 1) * percent / 100] * 1e6
}

/// Measures the sync of one block, and commits of batches of different sizes.
fn commits(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let file = File::create(dir.join("block")).unwrap();
    let mut times: Vec<f64> = (0..500)
        .map(|block| {
            file.write_all_at(&[block as u8; 4096], block * 4096).unwrap();
            let start = Instant::now();
            file.sync_data().unwrap();
            start.elapsed().as_secs_f64()
        })
        .collect();
    let (half, most) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("\nfdatasync of 4 KiB more of a file: p50 {half:.0} us, p99 {most:.0} us");
    println!("commit every   events/s   commits/s   p50        p99");
    for every in [0, 10, 50, 200] {
        let _ = std::fs::remove_dir_all(dir);
        let mut writer = Writer::create(dir, Options { seal_rows: u64::MAX, ..Options::default() }).unwrap();
        let batch = Load::new(true).batch(512);
        let (begun, mut last, mut events, mut times) = (Instant::now(), Instant::now(), 0, vec![]);
        while begun.elapsed() < COMMITS_FOR {
            writer.append(Table::Events, &batch).unwrap();
            events += 512;
            if last.elapsed() >= Duration::from_millis(every) {
                let start = Instant::now();
                writer.commit().unwrap();
                times.push(start.elapsed().as_secs_f64());
                last = Instant::now();
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{every:>9} ms   {:>8.0}   {:>9.0}   {:>7.0} us {:>7.0} us",
            events as f64 / seconds,
            times.len() as f64 / seconds,
            percentile(&mut times, 50),
            percentile(&mut times, 99)
        );
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Measures the time from the start of a writer to its first row, with this many unsealed bytes.
fn recovery(dir: &Path, bytes: u64) {
    let options = Options { seal_rows: u64::MAX, seal_bytes: u64::MAX, ..Options::default() };
    let mut writer = Writer::create(dir, options.clone()).unwrap();
    let mut load = Load::new(false);
    while writer.live_size().1 < bytes {
        writer.append(Table::Events, &load.batch(4096)).unwrap();
        writer.commit().unwrap();
    }
    let (events, bytes) = writer.live_size();
    drop(writer);
    let live = File::open(dir.join("live/part-000000.events.arrows")).unwrap();
    for cached in [false, true] {
        if !cached {
            rustix::fs::fadvise(&live, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let start = Instant::now();
        let (writer, recovered) = Writer::open(dir, options.clone()).unwrap();
        println!(
            "continued after a crash with {} MiB of {events} events unsealed, {}: {:.2} s",
            bytes >> 20,
            if cached { "in the page cache" } else { "not in the page cache" },
            start.elapsed().as_secs_f64()
        );
        drop((writer, recovered));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let parent = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let millions: usize = args.next().map_or(2, |m| m.parse().unwrap());
    let dir = parent.join(format!("miot-cost-{}", std::process::id()));
    println!(
        "{millions} million events, 4 threads             live               sealed           read        without checksums"
    );
    println!("load         batch  CPU/event  size      CPU/event  size     CPU/event");
    for sequential in [true, false] {
        for rows in [512, 4096, 32_768] {
            measure(&dir, sequential, rows, millions * 1_000_000);
        }
    }
    let unsealed: u64 = args.next().map_or(1024, |mib| mib.parse().unwrap());
    commits(&parent.join(format!("miot-commits-{}", std::process::id())));
    recovery(&parent.join(format!("miot-recovery-{}", std::process::id())), unsealed << 20);
    if std::env::var_os("MIOT_KEEP").is_none() {
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

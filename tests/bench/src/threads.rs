//! `threads`: CPU time per recorded operation when many threads record at once.
//!
//! A run is a burst: each thread records fewer events than its lane holds. With more threads than
//! processors no reader can keep up, and a dropped record would count as a cheap one.

use crate::Bench;
use crate::lttng::{Lttng, To};
use crate::played::{Played, Reads};
use crate::stats::Summary;
use crate::worker::{self, Worker};
use anyhow::Result;
use serde_json::{Map, Value, json};

const BURST: u64 = 15_000;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let played = Played::start(&bench.memory.path().join("miot"), Reads::Copies, &Played::ample())?;
    let lttng = Lttng::start(bench.disk.path())?;
    let mut workers = Vec::new();
    for way in ["floor", "shared-ring", "miot"] {
        let mut command = worker::own(way)?;
        command.env("MIOT_DIR", played.dir());
        workers.push((way, Worker::start(way, command)?));
    }
    if let Some(lttng) = &lttng {
        lttng.record("miot-bench-threads", &To::Local(&bench.disk.path().join("lttng-trace")), false)?;
        workers.push(("lttng", Worker::start("lttng", lttng.worker("pair"))?));
    }
    let counts: &[u64] = bench.pick(&[1, 2, 4, 8, 16, 32, 64], &[1, 2, 4, 16, 64], &[1, 4]);
    let mut results = Map::new();
    println!("CPU ns per operation {:>10} {:>12} {:>10} {:>10}", "floor", "shared ring", "MIOT", "LTTng");
    for &threads in counts {
        let mut times = vec![Vec::new(); workers.len()];
        for repetition in 0..=bench.pick(21, 5, 1) {
            for ((way, worker), times) in workers.iter_mut().zip(&mut times) {
                let count = threads * if *way == "lttng" { 4_000 } else { BURST };
                let run = worker.run(count, threads)?;
                if repetition > 0 {
                    times.push(run.cpu_ns / count as f64);
                }
                played.catch_up()?;
            }
        }
        let row: Map<String, Value> = workers
            .iter()
            .zip(times)
            .map(|((way, _), times)| ((*way).to_string(), json!(Summary::of(times))))
            .collect();
        print!("{threads:3} threads         ");
        for (way, width) in [("floor", 10), ("shared-ring", 12), ("miot", 10), ("lttng", 10)] {
            print!(" {:width$.1}", row.get(way).and_then(|time| time["median"].as_f64()).unwrap_or(f64::NAN));
        }
        println!();
        results.insert(threads.to_string(), Value::Object(row));
    }
    let lost = played.losses();
    for (_, worker) in workers {
        worker.finish()?;
    }
    let discarded = lttng
        .as_ref()
        .map(|lttng| lttng.stop("miot-bench-threads"))
        .transpose()?
        .map(|(discarded, _)| discarded);
    Ok(
        json!({ "threads": results, "miot_lost": lost, "lttng_discarded": discarded, "lttng": lttng.is_some() }),
    )
}

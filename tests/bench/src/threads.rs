//! `threads`: CPU time per recorded operation when many threads record at once.
//!
//! A run is a burst: each thread records fewer events than its lane holds. With more threads than
//! processors no reader can keep up, and a dropped record would count as a cheap one.

use crate::Bench;
use crate::lttng::{self, Lttng, To};
use crate::played::{Played, Reads};
use crate::proof::{Expected, Watched};
use crate::stats::Summary;
use crate::worker::{self, Worker};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::rc::Rc;

const BURST: u64 = 15_000;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let dir = bench.memory.path().join("miot");
    let played = Rc::new(Played::start(&dir, Reads::Copies, &Played::ample())?);
    let watched = Watched::played(&played, Expected::Slots(1));
    let trace = bench.disk.path().join("lttng-trace");
    let lttng = Lttng::start(bench.disk.path())?;
    let mut workers = Vec::new();
    for way in ["floor", "shared-ring", "miot"] {
        let mut command = worker::own(way)?;
        command.env("MIOT_DIR", played.dir());
        workers.push((way, Worker::start(way, command)?));
    }
    if let Some(lttng) = &lttng {
        lttng.record("miot-bench-threads", &To::Local(&trace), false)?;
        workers.push(("lttng", Worker::start("lttng", lttng.worker("pair"))?));
    }
    let counts: &[u64] = bench.pick(&[1, 2, 4, 8, 16, 32, 64], &[1, 2, 4, 16, 64], &[1, 4]);
    let mut results = Map::new();
    println!("CPU ns per operation {:>10} {:>12} {:>10} {:>10}", "floor", "shared ring", "MIOT", "LTTng");
    for &threads in counts {
        let mut times = vec![Vec::new(); workers.len()];
        let before = workers.iter().map(|(_, worker)| worker.calls()).collect::<Vec<_>>();
        let proof = watched.start()?;
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
        let mut row: Map<String, Value> = workers
            .iter()
            .zip(times)
            .map(|((way, _), times)| ((*way).to_string(), json!(Summary::of(times))))
            .collect();
        if let Some(((_, worker), before)) = workers.iter().zip(before).find(|((way, _), _)| *way == "miot") {
            row.insert("recorded".into(), proof.end(worker, worker.calls() - before)?);
        }
        print!("{threads:3} threads         ");
        for (way, width) in [("floor", 10), ("shared-ring", 12), ("miot", 10), ("lttng", 10)] {
            print!(" {:width$.1}", row.get(way).and_then(|time| time["median"].as_f64()).unwrap_or(f64::NAN));
        }
        println!();
        results.insert(threads.to_string(), Value::Object(row));
    }
    let lost = played.recorded().lost;
    let mut pairs = 0;
    for (way, worker) in workers {
        pairs += if way == "lttng" { worker.calls() } else { 0 };
        worker.finish()?;
    }
    let discarded = lttng.as_ref().map(|lttng| {
        let (discarded, _) = lttng.stop("miot-bench-threads")?;
        lttng::missing(&trace, 2 * pairs, discarded)
    });
    let discarded = discarded.transpose()?;
    Ok(
        json!({ "threads": results, "miot_lost": lost, "lttng_discarded": discarded, "lttng": lttng.is_some() }),
    )
}

//! Part of `op`: additional cost of the first operation of a process and of a thread.
//!
//! The first operation of a process creates its segment. The first of a thread claims a lane: a new
//! one, or one of an ended thread. Lanes have their default size.

use crate::Bench;
use crate::played::{Played, Reads};
use crate::process::Aside;
use crate::proof::{Expected, Watched};
use crate::stats::Summary;
use crate::worker::{self, Worker};
use anyhow::Result;
use miot_proto::control::Settings;
use serde_json::{Value, json};
use std::rc::Rc;

/// Number of measured threads of a process.
const THREADS: u64 = 16;

pub(crate) fn run(bench: &Bench, aside: &Aside) -> Result<Value> {
    let dir = bench.memory.path().join("first");
    let played = Rc::new(Played::start(&dir, Reads::Copies, &Settings::default())?);
    let watched = Watched::played(&played, Expected::Slots(1));
    let (mut process, mut new, mut reused) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.pick(60, 5, 2) {
        let mut command = worker::own("miot-idle")?;
        command.env("MIOT_DIR", played.dir());
        aside.pin(&mut command);
        let mut worker = Worker::start("first", command)?;
        let proof = watched.start()?;
        process.extend(worker.first(0)?);
        new.extend(worker.first(THREADS)?);
        // Their lanes are reused when the reader finds them empty.
        played.catch_up()?;
        reused.extend(worker.first(THREADS)?);
        proof.end(&worker, worker.calls())?;
        worker.finish()?;
    }
    let rows = [
        ("first of a process: the segment and a lane", process),
        ("first of a thread: a new lane", new),
        ("first of a thread: the lane of an ended one", reused),
    ];
    println!("{:55} {:>9}", "CPU beyond that of a later operation", "µs");
    let rows = rows.map(|(label, times)| {
        let us = Summary::of(times.into_iter().map(|ns| ns / 1e3).collect());
        println!("{label:55} {:9.1}", us.median);
        json!({ "label": label, "us": us })
    });
    Ok(json!(rows))
}
